#!/bin/sh
# Times oxydllm and llama.cpp on the same files, threads and machine, in turns, and prints one Markdown table.
#
#   scripts/bench-vs-llamacpp.sh [--bin target/release/oxydllm] [--repeat 5] [--threads N] [--prompt 512] [--gen 64] [--only WORD] [--sixteen-k] [--list]
#   scripts/bench-vs-llamacpp.sh --families [--check] [--repeat 5] [--threads N]   # every dense family at the same shapes
#
# Makes random models at real geometries (7 GB), fetches SmolLM2 and Gemma 3 270M (350 MB) and, unless LLAMA_CPP_BIN names a folder
# with llama-bench, llama-batched-bench and llama-completion, builds llama.cpp: once, into ${OXYDLLM_CI_CACHE:-~/.cache/oxydllm}. A full
# run takes about an hour; figures mean something on an otherwise idle machine only. Needs python3 with venv; for the build
# cmake and a C++ compiler. Never run by CI.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${OXYDLLM_CI_CACHE:-$HOME/.cache/oxydllm}
mkdir -p "$cache"
# shellcheck source=scripts/llama-cpp.sh
. "$root/scripts/llama-cpp.sh"
prepare_python "$root" "$cache"
[ -n "${LLAMA_CPP_BIN:-}" ] || build_llama_cpp "$python" "$cache" llama-bench llama-batched-bench llama-completion
comparison=compare.py
if [ "${1:-}" = --families ]; then
    comparison=families.py
    shift
fi
exec "$python" "$root/scripts/bench/$comparison" --bin "$root/target/release/oxydllm" --llama "$LLAMA_CPP_BIN" --cache "$cache" "$@"
