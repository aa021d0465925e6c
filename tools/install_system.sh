#!/usr/bin/env bash
# Installs programs that no wheel contains, for tests marked `system` and `make bench NAME=hit`.
set -euo pipefail

# program:package
wanted=(chromium:chromium wrk:wrk nginx:nginx-light ip:iproute2 iptables:iptables haproxy:haproxy promtool:prometheus redis-server:redis-server)

missing=()
for entry in "${wanted[@]}"; do
    # Programs for root may be in folders that are not on the PATH of other users.
    PATH="$PATH:/usr/sbin:/sbin" command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
done
# The rival in loadtests/rivals needs these modules of nginx, which are not programs.
for package in libnginx-mod-http-lua lua-nginx-redis lua-cjson; do
    dpkg-query --show "$package" >/dev/null 2>&1 || missing+=("$package")
done
# Debian keeps PostgreSQL's programs out of the PATH, in a folder for each version.
if ! command -v initdb >/dev/null && ! compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; then
    missing+=(postgresql)
fi
if [ ${#missing[@]} -eq 0 ]; then
    echo "system programs: all present"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "please install by hand: ${missing[*]}" >&2
    exit 1
fi
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
