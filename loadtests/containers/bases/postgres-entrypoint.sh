#!/bin/sh
# Does at the first start what the official image does, as far as compose.yaml needs it.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/password
    initdb --username="${POSTGRES_USER:-postgres}" --pwfile=/tmp/password --encoding=UTF8 \
        --auth-host=scram-sha-256 --auth-local=trust >/dev/null
    rm /tmp/password
    printf 'host all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses= -c unix_socket_directories=/tmp" start >/dev/null
    createdb --host=/tmp --username="${POSTGRES_USER:-postgres}" "${POSTGRES_DB:-postgres}" || true
    pg_ctl -w -m fast stop >/dev/null
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/tmp
