# Starts a Sentinel of the state Redis; what it learns is kept in its volume.
set -eu
umask 077

if [ ! -s /data/sentinel.conf ]; then
    cat >/data/sentinel.conf.new <<END
dir /data
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel monitor state redis-state 6379 2
sentinel failover-timeout state 10000
END
    mv /data/sentinel.conf.new /data/sentinel.conf
fi

# The password may be another than at the last start, and `deploy/restore.sh` may have been killed.
# A Sentinel announces its address. It would look up the name of another one at each message of it,
# and stand still for a second each time while the name server is silent.
grep -v -e '^sentinel auth-pass ' -e '^sentinel down-after-milliseconds ' \
    -e '^sentinel announce-ip ' /data/sentinel.conf >/data/sentinel.conf.new
echo 'sentinel down-after-milliseconds state 3000' >>/data/sentinel.conf.new
printf 'sentinel auth-pass state "%s"\n' "$REDISCLI_AUTH" >>/data/sentinel.conf.new
mv /data/sentinel.conf.new /data/sentinel.conf
unset REDISCLI_AUTH
exec redis-server /data/sentinel.conf --sentinel
