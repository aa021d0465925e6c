# Starts a server of the state Redis under Sentinel.
#
# The configuration is written anew at each start, but for the role, which Sentinel rewrites in it:
# a server that was away comes back as what it was, and follows the primary that replaced it.
set -eu
umask 077

if [ -s /data/redis.conf ]; then
    role=$(grep '^replicaof ' /data/redis.conf || true)
elif [ "$HOSTNAME" != redis-state ]; then
    role='replicaof redis-state 6379'
else
    # The first start, or its volume was lost: then the other server has what it lacks, and would
    # lose that by following it. Whoever Sentinel names: it promotes the other if that is needed.
    until size=$(timeout 2 redis-cli -h redis-state-replica dbsize 2>/dev/null) \
        && [ "$size" -ge 0 ] 2>/dev/null; do
        echo 'waiting for redis-state-replica, which may have the data that this server lacks' >&2
        sleep 1
    done
    role=
    if [ "$size" -gt 0 ]; then role='replicaof redis-state-replica 6379'; fi
fi

cat >/data/redis.conf.new <<END
dir /data
requirepass "$REDISCLI_AUTH"
masterauth "$REDISCLI_AUTH"
maxmemory 512mb
maxmemory-policy noeviction
save ""
appendonly yes
appendfsync everysec
repl-diskless-sync-delay 0
replica-announce-ip $HOSTNAME
$role
END
mv /data/redis.conf.new /data/redis.conf
exec redis-server /data/redis.conf
