#!/usr/bin/env bash
# Installs the programs that tests marked `system` and `make bench NAME=hit` use and no wheel carries.
set -euo pipefail

# program:package
wanted=(chromium:chromium wrk:wrk nginx:nginx-light ip:iproute2 iptables:iptables haproxy:haproxy promtool:prometheus redis-server:redis-server)

missing=()
for entry in "${wanted[@]}"; do
    # Programs for root alone may be where others do not look.
    PATH="$PATH:/usr/sbin:/sbin" command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
done
# What the rival in loadtests/rivals needs beside nginx; modules are no programs.
for package in libnginx-mod-http-lua lua-nginx-redis lua-cjson; do
    dpkg-query --show "$package" >/dev/null 2>&1 || missing+=("$package")
done
# Debian keeps it out of the path, in a folder for each version.
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
