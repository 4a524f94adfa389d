# Sourced by scripts that compare with llama.cpp. shellcheck shell=sh

# prepare_python ROOT CACHE: sets $python to one that has the models and packages of the comparisons, installed once.
prepare_python() {
    python=$2/venv-perplexity/bin/python
    requirements=$1/scripts/check-perplexity.txt
    cmp -s "$requirements" "$2/venv-perplexity/installed.txt" && return
    printf '%s\n' "installing the models and Python packages into $2/venv-perplexity" >&2
    python3 -m venv --clear "$2/venv-perplexity"
    "$python" -m pip install --quiet --disable-pip-version-check gguf==0.19.0 numpy safetensors
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$requirements"
    cp "$requirements" "$2/venv-perplexity/installed.txt"
}

# build_llama_cpp PYTHON CACHE TARGET...: sets $LLAMA_CPP_BIN to a folder with those programs, built once from the sources in the PyPI
# package llama-cpp-python, for this machine, with the project's default flags. Needs cmake and a C++ compiler.
build_llama_cpp() {
    python=$1 folder=$2/llama.cpp
    shift 2
    LLAMA_CPP_BIN=$folder/bin
    missing=
    for target in "$@"; do
        [ -x "$LLAMA_CPP_BIN/$target" ] || missing=1
    done
    [ -n "$missing" ] || return 0
    printf '%s\n' "building llama.cpp in $folder" >&2
    mkdir -p "$folder/download" "$LLAMA_CPP_BIN"
    archive=$folder/download/llama_cpp_python-0.3.36.tar.gz
    [ -f "$archive" ] || "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        --dest "$folder/download" llama-cpp-python==0.3.36
    printf '%s  %s\n' 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e "$archive" | sha256sum --check --quiet
    tar -xzf "$archive" -C "$folder"
    cmake -S "$folder/llama_cpp_python-0.3.36/vendor/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF >&2
    cmake --build "$folder/build" --parallel "$(nproc)" --target "$@" >&2
    for target in "$@"; do
        cp "$folder/build/bin/$target" "$LLAMA_CPP_BIN/"
    done
}
