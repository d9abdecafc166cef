#!/usr/bin/env bash
# Starts Arize Phoenix on loopback, to look at spans. Needs Python 3.10 to 3.13 with `venv`, and 900 MB of disk.
#
#     scripts/phoenix.sh [PORT]        the default is 6006; stop it with Ctrl-C
#
# Then, for a recording:
#
#     OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:6006 \
#       cargo run -p emitree-otlp --example export -- run.jsonl --open-inference --content
set -euo pipefail
cd "$(dirname "$0")/.."

port=${1:-6006}
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
venv=$target/phoenix
if ! [ -x "$venv/bin/phoenix" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check arize-phoenix==20.26.1
fi
mkdir -p "$venv/data"
export PHOENIX_WORKING_DIR=$venv/data PHOENIX_HOST=127.0.0.1 PHOENIX_PORT=$port PHOENIX_GRPC_PORT=$((port + 1)) \
  PHOENIX_TELEMETRY_ENABLED=false PHOENIX_ALLOW_EXTERNAL_RESOURCES=false PHOENIX_DISABLE_AGENT_ASSISTANT=true \
  PHOENIX_AGENTS_DISABLE_WEB_ACCESS=true PHOENIX_AGENTS_DISABLE_BASH=true PHOENIX_AGENTS_DISABLE_GITHUB=true \
  PHOENIX_ENABLE_MCP_SERVER=false
# Phoenix binds its gRPC port to all interfaces; this keeps it on loopback.
exec "$venv/bin/python" -c '
import sys, grpc.aio._server as server
bind = server.Server.add_insecure_port
server.Server.add_insecure_port = lambda self, address: bind(self, address.replace("[::]", "127.0.0.1"))
from phoenix.server.main import main
sys.argv = ["phoenix", "serve"]
sys.exit(main())'
