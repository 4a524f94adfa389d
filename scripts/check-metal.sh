#!/bin/sh
# Type-checks the library and the program with the `metal` feature for macOS (aarch64-apple-darwin), on Linux or on a Mac.
#
#   scripts/check-metal.sh
#
# Linux: with a compiler that has the macOS standard library (scripts/gpu/setup-darwin-rustc.sh, made once, 600 MB) and real
# Metal bindings, but without SDK, linker and Metal compiler: nothing is linked, run, or said about Metal sources. C sources of dependencies
# are passed over (scripts/gpu/darwin-cc). Compiler and output stay in ${OXYDLLM_CI_CACHE:-~/.cache/oxydllm} (1 GB). About 10 minutes
# of processor time the first time, then what changed. Exit status 77: cannot run here; the last line says why.
set -eu
cd "$(dirname "$0")/.."
root=$PWD

cache=${OXYDLLM_CI_CACHE:-$HOME/.cache/oxydllm}
cannot() {
    printf '%s\n' "$*"
    exit 77
}
for tool in cargo cc ar; do
    command -v $tool >/dev/null || cannot "$tool is not installed"
done

# make_compiler: $compiler, made or made again when there is none or it is older than the project's minimum.
make_compiler() {
    minimum=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    is_recent() {
        found=$("$compiler" --version 2>/dev/null | cut -d ' ' -f 2)
        [ -n "$found" ] && [ "$(printf '%s\n' "$minimum" "$found" | sort -V | head -n 1)" = "$minimum" ]
    }
    is_recent && return
    rm -rf "${compiler%/*}"
    scripts/gpu/setup-darwin-rustc.sh "${compiler%/*}" 2>&1 || exit $?
    is_recent || cannot "the packaged compiler is version $found, the project needs $minimum"
}

case $(uname -s) in
Darwin) ;;
Linux)
    compiler=$cache/darwin-rustc/rustc
    make_compiler
    export RUSTC="$compiler" CC_aarch64_apple_darwin="$root/scripts/gpu/darwin-cc" AR_aarch64_apple_darwin=ar
    ;;
*) cannot "the compiler for aarch64-apple-darwin is for Linux, or comes with a Mac" ;;
esac
# Macros and build scripts run once: optimising them takes longer.
exec cargo check --locked --lib --bins --features metal --target aarch64-apple-darwin --target-dir "$cache/metal-check" \
    --config 'profile.dev.package."*".opt-level=0'
