#!/bin/sh
# Makes FOLDER a stand-in for a CUDA toolkit: enough to build, link and start the `cuda` feature where no CUDA is.
#
#   scripts/gpu/make-stand-in-cuda.sh FOLDER
#
# bin/nvcc is stand-in-nvcc. lib/ has static archives in place of the libraries that candle links, every function of which
# answers as on a machine without a GPU; their names are read off the bindings in the sources of cudarc, so nothing of CUDA is needed or
# contained. A build against it must not be released: it cannot use a GPU even where there is one.
# Needs cc, ar and cargo with the dependencies fetched or a network.
set -eu

[ $# -eq 1 ] || {
    printf 'usage: %s FOLDER\n' "$0" >&2
    exit 2
}
mkdir -p "$1/bin" "$1/lib" "$1/include"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

cp scripts/gpu/stand-in-nvcc "$folder/bin/nvcc"
chmod +x "$folder/bin/nvcc"

host=$(rustc -vV | sed -n 's/^host: //p')
cudarc=$(cargo metadata --locked --format-version 1 --features cuda --filter-platform "$host" | grep -o '"[^"]*/cudarc[^/"]*/Cargo.toml"' | head -n 1 | tr -d '"')
cudarc=$(dirname "$cudarc")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# archive NAME BINDINGS CODE: lib/libNAME.a, whose functions return CODE, or a text where the bindings say so.
archive() {
    awk -v code="$3" '
        /extern "C" [{]/ { declares = 1; next }
        declares && match($0, /fn [A-Za-z0-9_]+[(]/) {
            name = substr($0, RSTART + 3, RLENGTH - 4)
            if (!seen[name]++) {
                if ($0 ~ /-> [*]const/) printf "const char *%s(void) { return \"no CUDA\"; }\n", name
                else printf "long %s(void) { return %d; }\n", name, code
            }
        }
        { declares = 0 }
    ' "$cudarc/src/$2/sys/mod.rs" >"$work/$1.c"
    [ -s "$work/$1.c" ] || {
        printf 'no functions found in the %s bindings of %s\n' "$2" "$cudarc" >&2
        exit 1
    }
    cc -w -fPIC -c "$work/$1.c" -o "$work/$1.o"
    rm -f "$folder/lib/lib$1.a"
    ar rcs "$folder/lib/lib$1.a" "$work/$1.o"
}

# The codes: no device; not initialised (three times); internal error.
archive cuda driver 100
archive cublas cublas 1
archive cublasLt cublaslt 1
archive curand curand 101
archive nvrtc nvrtc 11
# Nothing is called in it, but it is linked.
rm -f "$folder/lib/libcudart.a"
ar rcs "$folder/lib/libcudart.a"
