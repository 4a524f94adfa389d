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

say() { printf '%s\n' "$*" >&2; }

prepare_python() {
    python=$cache/venv-perplexity/bin/python
    requirements=$root/scripts/check-perplexity.txt
    if ! cmp -s "$requirements" "$cache/venv-perplexity/installed.txt"; then
        say "installing the models and Python packages into $cache/venv-perplexity"
        python3 -m venv --clear "$cache/venv-perplexity"
        "$python" -m pip install --quiet --disable-pip-version-check gguf==0.19.0 numpy safetensors
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$requirements"
        cp "$requirements" "$cache/venv-perplexity/installed.txt"
    fi
}

build_llama_cpp() {
    LLAMA_CPP_BIN=$cache/llama.cpp/bin
    if [ -x "$LLAMA_CPP_BIN/llama-completion" ] && [ -x "$LLAMA_CPP_BIN/llama-perplexity" ] && [ -x "$LLAMA_CPP_BIN/llama-tokenize" ]; then
        return
    fi
    say "building llama.cpp in $cache/llama.cpp"
    mkdir -p "$cache/llama.cpp/download"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        --dest "$cache/llama.cpp/download" llama-cpp-python==0.3.36
    printf '%s  %s\n' 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e \
        "$cache/llama.cpp/download/llama_cpp_python-0.3.36.tar.gz" | sha256sum --check --quiet
    tar -xzf "$cache/llama.cpp/download/llama_cpp_python-0.3.36.tar.gz" -C "$cache/llama.cpp"
    cmake -S "$cache/llama.cpp/llama_cpp_python-0.3.36/vendor/llama.cpp" -B "$cache/llama.cpp/build" -DCMAKE_BUILD_TYPE=Release \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF >&2
    cmake --build "$cache/llama.cpp/build" --parallel --target llama-perplexity llama-completion llama-tokenize >&2
    mkdir -p "$LLAMA_CPP_BIN"
    cp "$cache/llama.cpp/build/bin/llama-perplexity" "$cache/llama.cpp/build/bin/llama-completion" \
        "$cache/llama.cpp/build/bin/llama-tokenize" "$LLAMA_CPP_BIN/"
}

prepare_python
[ -n "${LLAMA_CPP_BIN:-}" ] || build_llama_cpp
exec "$python" "$root/scripts/check-perplexity.py" --bin "$root/target/release/oxydllm" --llama "$LLAMA_CPP_BIN" --cache "$cache" "$@"
