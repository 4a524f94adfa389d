#!/bin/sh
# Checks the `cuda` feature on a machine without CUDA: everything under it compiles without warnings, links and starts, and the
# program says why it refuses or falls back.
#
#   scripts/check-cuda.sh
#
# Builds against a stand-in for the toolkit (scripts/gpu/make-stand-in-cuda.sh), so no kernel runs and no CUDA source is compiled.
# Runs the tests about devices only: the others are the same in a build without features. Toolkit and build output stay in
# ${OXYDLLM_CI_CACHE:-~/.cache/oxydllm}/cuda-check (1.5 GB). About 11 minutes of processor time the first time, then what changed.
# Exit status 77: cannot run here; the last line says why.
set -eu
cd "$(dirname "$0")/.."

cache=${OXYDLLM_CI_CACHE:-$HOME/.cache/oxydllm}/cuda-check
cannot() {
    printf '%s\n' "$*"
    exit 77
}
[ "$(uname -s)" = Linux ] || cannot "the stand-in for the CUDA toolkit is for Linux"
for tool in cargo cc ar awk cksum; do
    command -v $tool >/dev/null || cannot "$tool is not installed"
done

# One stand-in for each version of what it is made from: its path is what makes the build scripts of cudarc and candle-kernels run again.
version=$({ cat scripts/gpu/make-stand-in-cuda.sh scripts/gpu/stand-in-nvcc && grep -A 1 -E '^name = "(cudarc|candle-kernels)"$' Cargo.lock; } | cksum | cut -d ' ' -f 1)
toolkit=$cache/toolkit-$version
mkdir -p "$cache"
if [ ! -d "$toolkit" ]; then
    partial=$(mktemp -d "$cache/partial.XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    trap 'exit 130' INT TERM
    scripts/gpu/make-stand-in-cuda.sh "$partial"
    rm -rf "$cache"/toolkit-*
    mv "$partial" "$toolkit"
    trap - EXIT
fi
unset CUDA_PATH CUDA_ROOT CUDA_TOOLKIT_ROOT_DIR CUDNN_LIB CUDARC_CUDA_VERSION NVCC_CCBIN
export CUDA_HOME="$toolkit" NVCC="$toolkit/bin/nvcc" PATH="$toolkit/bin:$PATH" CUDA_COMPUTE_CAP=90

# Nothing is optimised: compiling is nearly all the work here.
cargo() {
    command=$1
    shift
    command cargo "$command" --locked --features cuda --target-dir "$cache/target" --config profile.dev.opt-level=0 \
        --config 'profile.dev.package."*".opt-level=0' --config profile.dev.debug=false "$@"
}

# expect MINIMUM ARGUMENT...: runs the tests chosen by the arguments; a choice that matches too few is an error.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
expect() {
    minimum=$1
    shift
    status=0
    cargo test "$@" >"$log" 2>&1 || status=$?
    cat "$log"
    [ $status -eq 0 ] || exit $status
    passed=$(grep '^test result: ok' "$log" | grep -oE '[0-9]+ passed' | awk '{ sum += $1 } END { print sum + 0 }')
    [ "$passed" -ge "$minimum" ] || {
        printf 'only %d tests match `%s`, expected at least %d\n' "$passed" "$*" "$minimum"
        exit 1
    }
}
cargo test --no-run --lib --test it
expect 6 --lib device::
expect 5 --test it devices::
cargo clippy --all-targets -- -D warnings
