#!/usr/bin/env bash
# Installs the programs that tests marked `system` use and that no wheel carries.
set -euo pipefail

# program:package
wanted=(chromium:chromium)

missing=()
for entry in "${wanted[@]}"; do
    command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
done
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
