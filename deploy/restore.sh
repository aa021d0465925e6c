#!/bin/sh
# Puts a backup of `deploy/backup.sh` in the place of the state Redis and of the ledger.
#
#   docker compose stop gateway-1 gateway-2 billing request-log
#   docker compose up --wait database redis-state redis-state-replica sentinel-0 sentinel-1 sentinel-2
#   deploy/restore.sh FOLDER
#   docker compose up --wait
#
# Without `ha` leave out the services that only `ha` has, and run
# `SLUICEGATE_SENTINELS= deploy/restore.sh FOLDER`.
# The ledger comes last, in one transaction: if anything fails, it is unchanged.
# SLUICEGATE_EXEC and SLUICEGATE_PREFIX as for `deploy/backup.sh`; SLUICEGATE_SETTLE are the seconds
# in which each Sentinel learns of roles.
set -eu
folder=${1:?usage: deploy/restore.sh FOLDER}
fail() {
    echo "deploy/restore.sh: $*" >&2
    exit 1
}
for file in ledger.dump state.rdb; do
    [ -s "$folder/$file" ] || fail "$folder/$file is missing; name a folder of deploy/backup.sh"
done
in_service() {
    name=$1
    shift
    ${SLUICEGATE_EXEC:-docker compose exec -T} "${SLUICEGATE_PREFIX:-}$name" "$@"
}
primary_by() {
    in_service "$1" redis-cli -p 26379 sentinel get-master-addr-by-name state </dev/null | head -n 1
}
sentinels=${SLUICEGATE_SENTINELS-sentinel-0 sentinel-1 sentinel-2}
down_after() {
    silent=
    for sentinel in $sentinels; do
        said=$(in_service "$sentinel" redis-cli -p 26379 \
            sentinel set state down-after-milliseconds "$1" </dev/null) || true
        [ "$said" = OK ] || silent="$silent $sentinel"
    done
    [ -z "$silent" ] || fail "did not take 'down-after-milliseconds $1' of 'state':$silent"
}

in_service database pg_restore --list <"$folder/ledger.dump" >/dev/null \
    || fail "$folder/ledger.dump cannot be read; nothing has changed"
primary=redis-state
[ -z "$sentinels" ] || primary=$(primary_by "${sentinels%% *}")
[ -n "$primary" ] || fail "${sentinels%% *} names no primary; nothing has changed"

# The primary is a replica while it copies, and Sentinel takes the role from one that is so for
# long. The former value is that of `deploy/sentinel.sh`.
# It asks servers for their role each 10 s, and must not find the former one with that value.
if [ -n "$sentinels" ]; then
    trap 'sleep "${SLUICEGATE_SETTLE:-11}"; down_after 3000' EXIT
    trap 'exit 1' HUP INT TERM
    down_after 3600000
fi

# A second server beside the primary reads the file, and the primary copies it as a replica does,
# its own replicas too: no server has to start without its data.
in_service "$primary" sh -eu -c '
    umask 077
    rm -rf /data/restore
    mkdir /data/restore
    trap "rm -rf /data/restore" EXIT
    trap "exit 1" HUP INT TERM
    cat >/data/restore/dump.rdb
    printf "requirepass \"%s\"\n" "$REDISCLI_AUTH" >/data/restore/redis.conf
    redis-server /data/restore/redis.conf --port 6390 --bind 127.0.0.1 --dir /data/restore \
        --save "" --appendonly no --repl-diskless-sync-delay 0 >/dev/null </dev/null &
    server=$!
    trap "redis-cli replicaof no one >/dev/null; kill $server || true; rm -rf /data/restore" EXIT
    wait_for() {
        for _ in $(seq 600); do
            if "$@"; then return; fi
            kill -0 $server || break
            sleep 0.1
        done
        echo "deploy/restore.sh: gave up waiting: $*; the ledger is as it was" >&2
        exit 1
    }
    # By its process: another run may have left a server on that port.
    is_loaded() {
        [ "$(redis-cli -p 6390 ping 2>/dev/null)" = PONG ] \
            && redis-cli -p 6390 info server | tr -d "\r" | grep -qx "process_id:$server"
    }
    is_copied() {
        redis-cli info replication | grep -q "^master_link_status:up" \
            && [ "$(redis-cli dbsize)" = "$(redis-cli -p 6390 dbsize)" ]
    }
    wait_for is_loaded
    redis-cli replicaof 127.0.0.1 6390 >/dev/null
    wait_for is_copied
' <"$folder/state.rdb"
for sentinel in $sentinels; do
    [ "$(primary_by "$sentinel")" = "$primary" ] \
        || fail "$sentinel names another primary than $primary: run it again; the ledger is as it was"
done

in_service database sh -c \
    'PGPASSWORD=$POSTGRES_PASSWORD exec pg_restore --host 127.0.0.1 --username "$POSTGRES_USER" \
        --clean --if-exists --single-transaction --dbname "$POSTGRES_DB"' <"$folder/ledger.dump" \
    || fail "the state Redis is restored and the ledger is as it was: run it again"
echo "restored $folder to the database and to $primary"
