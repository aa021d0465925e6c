#!/bin/sh
# Copies the ledger and the state Redis of compose.yaml to a folder, while everything runs.
#
#   deploy/backup.sh FOLDER
#
# The first of SLUICEGATE_SENTINELS names the primary of the state Redis. Without `ha` there is no
# Sentinel: run `SLUICEGATE_SENTINELS= deploy/backup.sh FOLDER`.
# SLUICEGATE_EXEC runs a command in a service; SLUICEGATE_PREFIX comes before the service's name. For
# example `podman exec -i` and `sluicegate_`.
set -eu
umask 077
folder=${1:?usage: deploy/backup.sh FOLDER}
in_service() {
    name=$1
    shift
    ${SLUICEGATE_EXEC:-docker compose exec -T} "${SLUICEGATE_PREFIX:-}$name" "$@"
}
take() {
    file=$1
    shift
    if ! "$@" >"$folder/$file.part" || [ ! -s "$folder/$file.part" ]; then
        echo "deploy/backup.sh: $file could not be made; nothing in $folder was changed" >&2
        exit 1
    fi
}

mkdir -p "$folder"
sentinels=${SLUICEGATE_SENTINELS-sentinel-0 sentinel-1 sentinel-2}
primary=redis-state
if [ -n "$sentinels" ]; then
    primary=$(in_service "${sentinels%% *}" redis-cli -p 26379 \
        sentinel get-master-addr-by-name state | head -n 1)
fi
trap 'rm -f "$folder/state.rdb.part" "$folder/ledger.dump.part"' EXIT
trap 'exit 1' HUP INT TERM
# The state first: events that the ledger has and the stream not are counted once all the same.
# To a file first: on a pipe some versions of redis-cli put their messages among the bytes.
take state.rdb in_service "$primary" sh -eu -c '
    trap "rm -f /data/backup.rdb" EXIT
    redis-cli --rdb /data/backup.rdb >/dev/null 2>&1
    cat /data/backup.rdb
'
take ledger.dump in_service database sh -c \
    'PGPASSWORD=$POSTGRES_PASSWORD exec pg_dump --host 127.0.0.1 --username "$POSTGRES_USER" \
        --format custom --dbname "$POSTGRES_DB"'
# Together: never a state of one day beside a ledger of another.
mv "$folder/state.rdb.part" "$folder/state.rdb"
mv "$folder/ledger.dump.part" "$folder/ledger.dump"
echo "$folder: state.rdb of $primary, ledger.dump"
