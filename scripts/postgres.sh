#!/usr/bin/env bash
# A PostgreSQL server on loopback, for the tests of PostgresStore.
#
#   scripts/postgres.sh start [SETTING=VALUE ...]   starts a server, if it does not run yet, and prints its URL
#   scripts/postgres.sh url                         prints the URL of the server, or fails if it does not run
#   scripts/postgres.sh pool                        starts a pgbouncer in transaction mode, and prints its URL
#   scripts/postgres.sh crash                       stops the server at once, as a crash does; `start` goes on with its data
#   scripts/postgres.sh stop                        stops the server, and removes its data
#
# The server is Debian's (packages postgresql and pgbouncer), or the one in PATH. Its data are in $EMITREE_POSTGRES_FOLDER, which is
# $TMPDIR/emitree-postgres otherwise. It has a certificate for `localhost`, which `root.crt` in that folder verifies.
set -euo pipefail

folder=${EMITREE_POSTGRES_FOLDER:-${TMPDIR:-/tmp}/emitree-postgres}
data=$folder/data

# The server refuses to run as root.
as_user() {
  if [ "$(id -u)" = 0 ]; then
    (cd / && exec setpriv --reuid=postgres --regid=postgres --clear-groups env HOME="$folder" "$@")
  else
    "$@"
  fi
}

tool() {
  local newest
  newest=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
  if [ -n "$newest" ] && [ -x "$newest/$1" ]; then
    echo "$newest/$1"
  elif ! command -v "$1"; then
    echo "there is no $1: install Debian's packages postgresql and pgbouncer, or put $1 into PATH" >&2
    exit 1
  fi
}

runs() { [ -d "$data" ] && as_user "$(tool pg_ctl)" -D "$data" status >/dev/null; }

url() {
  runs || { echo "no server runs in $folder: call scripts/postgres.sh start" >&2; exit 1; }
  echo "postgres://postgres@localhost:$(cat "$folder/port")/postgres"
}

# A port that nothing listens on now. It is kept, so that clients find the server again after a crash.
free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
}

# A certificate for `localhost`, which an authority of its own has signed.
certify() {
  local key="-newkey rsa:2048 -nodes -days 3650"
  as_user openssl req -x509 $key -subj "/CN=emitree tests" -keyout "$folder/root.key" -out "$folder/root.crt"
  as_user openssl req -x509 $key -subj "/CN=localhost" -addext "subjectAltName=DNS:localhost" \
    -addext "basicConstraints=critical,CA:FALSE" -CA "$folder/root.crt" -CAkey "$folder/root.key" \
    -keyout "$data/server.key" -out "$data/server.crt"
} 2>/dev/null

create() {
  mkdir -p "$folder"
  [ "$(id -u)" != 0 ] || chown postgres "$folder"
  as_user "$(tool initdb)" -D "$data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync >/dev/null
  certify
  free_port >"$folder/port"
}

start() {
  if ! runs; then
    [ -d "$data" ] || create
    local options="-p $(cat "$folder/port") -c listen_addresses=localhost -c unix_socket_directories= -c ssl=on"
    local setting
    for setting in "$@"; do options+=" -c $setting"; done
    as_user "$(tool pg_ctl)" -D "$data" -w -l "$folder/log" -o "$options" start >/dev/null || {
      tail "$folder/log" >&2
      exit 1
    }
  fi
  url
}

# The pool takes any database of the server. Its port is the next one.
pool() {
  local server port
  server=$(url)
  port=$(($(cat "$folder/port") + 1))
  if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    printf '"postgres" ""\n' >"$folder/users"
    cat >"$folder/pgbouncer.ini" <<END
[databases]
* = host=localhost port=$(cat "$folder/port")
[pgbouncer]
listen_addr = localhost
listen_port = $port
unix_socket_dir =
auth_type = trust
auth_file = $folder/users
pool_mode = transaction
max_client_conn = 1000
default_pool_size = 4
logfile = $folder/pgbouncer.log
pidfile = $folder/pgbouncer.pid
END
    as_user "$(PATH=$PATH:/usr/sbin tool pgbouncer)" -d -q "$folder/pgbouncer.ini"
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
  fi
  echo "${server/:$((port - 1))/:$port}"
}

stop() {
  ! runs || as_user "$(tool pg_ctl)" -D "$data" -m "$1" -w stop >/dev/null
}

case ${1:-} in
  start) shift; start "$@" ;;
  url) url ;;
  crash) stop immediate ;;
  pool) pool ;;
  stop) stop fast; [ ! -s "$folder/pgbouncer.pid" ] || kill "$(cat "$folder/pgbouncer.pid")"; rm -rf "$folder" ;;
  *) sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,11p; exit 2 ;;
esac
