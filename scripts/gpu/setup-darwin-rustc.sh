#!/bin/sh
# Makes FOLDER/rustc: a compiler with a standard library for aarch64-apple-darwin, to type-check for macOS on Linux.
#
#   scripts/gpu/setup-darwin-rustc.sh FOLDER
#
# It is Debian's compiler for web browsers (`rustc-web`, unpacked and not installed, because its packages exclude rustup's)
# with the standard library built from the sources of the same version (`rust-web-src`): rustup's own compiler cannot build
# another version's library. It is not a cross compiler: there is no linker and no SDK, so it checks and never links.
# Downloads 137 MB, takes one to three minutes and 600 MB. FOLDER may be moved afterwards. Exit status 77: not possible on this system.
set -eu

say() { printf '%s\n' "$*" >&2; }
cannot() {
    say "$*"
    exit 77
}

[ $# -eq 1 ] || {
    say "usage: $0 FOLDER"
    exit 2
}
for tool in apt-get apt-cache dpkg cargo; do
    command -v "$tool" >/dev/null || cannot "no $tool here: the compiler for aarch64-apple-darwin comes from Debian's packages"
done

if [ "$(id -u)" -eq 0 ]; then
    apt-get update -qq || say "apt-get update failed, going on with the package lists there are"
fi
version=$(apt-cache policy rust-web-src 2>/dev/null | awk '/Candidate:/ { print $2 }')
case $version in
'' | '(none)') cannot "the package rust-web-src is not known here (Debian 12 with its security updates has it)" ;;
esac

case $1 in
/*) folder=$1 ;;
*) folder=$PWD/$1 ;;
esac
mkdir -p "$(dirname "$folder")"
partial=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$partial"' EXIT
trap 'exit 130' INT TERM
chmod 755 "$partial"
root=$partial/root
mkdir -p "$root" "$partial/packages"

# The packages of one version; the names of two carry version numbers of their own.
cd "$partial/packages"
std=$(apt-cache show "libstd-rust-web-dev=$version" | sed -n 's/^Depends: \(libstd-rust-web-[0-9.]*\).*/\1/p')
llvm=$(apt-cache show "$std=$version" | sed -n 's/.*\(libllvm[0-9]*\).*/\1/p' | head -n 1)
apt-get download -qq "rustc-web=$version" "rust-web-src=$version" "libstd-rust-web-dev=$version" "$std=$version" "$llvm" ||
    cannot "the packages of rustc-web $version cannot be downloaded"
for package in *.deb; do
    dpkg -x "$package" "$root"
done
rm -f -- *.deb

# Of the sources only the library is needed.
sources=$(readlink -f "$root/usr/lib/rustlib/src/rust")
find "$sources" -mindepth 1 -maxdepth 1 ! -name library ! -name Cargo.lock -exec rm -rf {} +

cat >"$partial/rustc" <<'WRAPPER'
#!/bin/sh
root=$(cd "$(dirname "$0")" && pwd)/root
for LD_LIBRARY_PATH in "$root"/usr/lib/*-linux-gnu; do :; done
export LD_LIBRARY_PATH
exec "$root/usr/bin/rustc" "$@"
WRAPPER
chmod +x "$partial/rustc"

# The library goes into the compiler's own folder, so that a check needs no unstable flag: RUSTC_BOOTSTRAP would switch
# nightly features on in every crate that probes for them.
build=$partial/build
mkdir -p "$build/src"
: >"$build/src/lib.rs"
printf '[package]\nname = "empty"\nversion = "0.0.0"\nedition = "2024"\n[profile.dev]\ndebug = 0\n[workspace]\n' >"$build/Cargo.toml"
cd "$build"
RUSTC=$partial/rustc RUSTC_BOOTSTRAP=1 cargo build --quiet --target-dir "$build/target" --target aarch64-apple-darwin \
    -Zbuild-std=std,panic_abort,panic_unwind,proc_macro,test
library=$root/usr/lib/rustlib/aarch64-apple-darwin/lib
mkdir -p "$library"
cp "$build"/target/aarch64-apple-darwin/debug/deps/*.rlib "$library/"
rm -f "$library"/libempty-*
cd "$partial/.."
rm -rf "$build" "$partial/packages"

# Whoever was first wins; a broken one is replaced.
if [ -x "$folder/rustc" ] && "$folder/rustc" --version >/dev/null 2>&1; then
    exit 0
fi
rm -rf "$folder"
mv "$partial" "$folder"
trap - EXIT
"$folder/rustc" --version
