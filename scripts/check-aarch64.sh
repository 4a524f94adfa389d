#!/bin/sh
# Tests the CPU kernels on aarch64: every op on the levels `neon`, `neon-dotprod`, `neon-i8mm` and `scalar`, compared by bits.
#
#   scripts/check-aarch64.sh
#
# On an aarch64 machine: the tests of `ops`. On x86-64 with Linux: the same under qemu's user-mode emulation, of a package made of the
# modules that kernels consist of (the whole library takes five times as long to compile and shows nothing more here). It is linked
# statically by the linker that comes with Rust, so it needs qemu-aarch64 (Debian: qemu-user) and
# `rustup target add aarch64-unknown-linux-musl`, but no C compiler. Output stays in ${OXYDLLM_CI_CACHE:-~/.cache/oxydllm}/aarch64-check
# (130 MB). Some ten minutes of processor time, most of it for the emulation. Exit status 77: cannot run here; the last line says why.
set -eu
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-musl
cache=${OXYDLLM_CI_CACHE:-$HOME/.cache/oxydllm}/aarch64-check
cannot() {
    printf '%s\n' "$*"
    exit 77
}
command -v cargo >/dev/null || cannot "cargo is not installed"
case $(uname -s)-$(uname -m) in
*-aarch64 | *-arm64) exec cargo test --locked --lib ops:: ;;
Linux-x86_64) ;;
*) cannot "the emulation of aarch64 is for Linux on x86-64" ;;
esac
command -v qemu-aarch64 >/dev/null || cannot "qemu-aarch64 is not installed (Debian: qemu-user)"
[ -d "$(rustc --print target-libdir --target $target)" ] || cannot "Rust has no standard library for $target: \`rustup target add $target\`"

# The modules of `ops` and what they use, with the dependencies of those in the versions of Cargo.lock.
package=$cache/package
mkdir -p "$package"
cp Cargo.lock "$package"
dependencies() {
    for name; do
        grep "^$name = " Cargo.toml
    done
}
cat >"$package/Cargo.toml" <<END
[package]
name = "kernels"
version = "0.0.0"
edition = "2024"
[lib]
path = "lib.rs"
[dependencies]
$(dependencies half libc libm memmap2 thiserror)
[dev-dependencies]
$(dependencies tempfile)
[profile.dev]
opt-level = 1
debug = false
[profile.dev.package."*"]
opt-level = 0
[workspace]
END
{
    for module in error.rs env.rs cgroup.rs threads/mod.rs quant/mod.rs ops/mod.rs; do
        name=${module%/mod.rs}
        printf '#[path = "%s/src/%s"]\npub mod %s;\n' "$PWD" "$module" "${name%.rs}"
    done
    cat <<END
#[cfg(test)]
mod levels {
    use crate::ops::CpuLevel::{self, Neon, NeonDot, NeonI8mm, Scalar};

    #[test]
    fn neon_is_tested_alone_with_dot_products_and_with_products_of_matrices() {
        assert_eq!(CpuLevel::available(), [Scalar, Neon, NeonDot, NeonI8mm]);
    }
}
END
} >"$package/lib.rs"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER="qemu-aarch64 -cpu max"
exec cargo test --manifest-path "$package/Cargo.toml" --target $target --target-dir "$cache/target" --lib -- ops:: levels::
