#!/usr/bin/env bash
# The official OpenAI clients against the real server with a real model: answers streamed and not, alone and in company,
# errors, then many clients at once for a while.
#
#   scripts/check-clients.sh BINARY MODEL.gguf [SOAK_SECONDS]
#
# Needs Python (a virtual environment is made in ${OXYDLLM_CI_CACHE:-~/.cache/oxydllm}); the Node client is checked where
# there is Node 20 or newer. Exit code 77: the clients cannot be installed here, nothing was checked.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "$1")
model=$(realpath "$2")
soak=${3:-120}
cache=${OXYDLLM_CI_CACHE:-$HOME/.cache/oxydllm}
python=$cache/venv-clients/bin/python
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

if ! { [ -x "$python" ] && "$python" -c 'import openai' 2>/dev/null; }; then
    python3 -m venv --clear "$cache/venv-clients" &&
        "$python" -m pip install --quiet --disable-pip-version-check openai || {
        echo "the Python client cannot be installed" >&2
        exit 77
    }
fi

export HOME=$work
"$binary" pull "$model" --name demo/smollm2 >/dev/null
start_server() {
    "$binary" start --port 0 --max-context-len 1024 "$@" >"$work/server.log" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        address=$(grep -oE 'listening address=[0-9.:]+' "$work/server.log" | cut -d= -f2 || true)
        [ -n "$address" ] && return
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/server.log" >&2
    return 1
}

start_server
echo "-- Python client"
"$python" scripts/clients/check_client.py "http://$address/v1" demo/smollm2

if command -v npm >/dev/null && node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)'; then
    echo "-- Node client"
    node_folder=$cache/node-clients
    mkdir -p "$node_folder"
    [ -d "$node_folder/node_modules/openai" ] ||
        (cd "$node_folder" && npm install --silent --no-audit --no-fund openai@6)
    cp scripts/clients/check_client.mjs "$node_folder/"
    node "$node_folder/check_client.mjs" "http://$address/v1" demo/smollm2
else
    echo "-- Node client: skipped, no Node 20 here"
fi

if [ "$soak" != 0 ]; then
    echo "-- soak: 64 clients for $soak s"
    "$python" scripts/clients/soak.py "http://$address/v1" demo/smollm2 "$server" --seconds "$soak"
fi

kill -INT "$server"
wait "$server"
server=
echo "ok: the server stopped cleanly"
