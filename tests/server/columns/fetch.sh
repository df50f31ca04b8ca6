#!/bin/sh
# Download Debian's ClickHouse and ZooKeeper, and unpack them into a folder. Needs apt-get, but no root, and installs nothing.
set -eu
cd "$(dirname "$0")/../../.."
root=$PWD/.tools/clickhouse
[ -e "$root/.complete" ] && exit 0
command -v apt-get >/dev/null && command -v dpkg >/dev/null || { echo "ClickHouse is not downloaded: apt-get is missing." >&2; exit 1; }
rm -rf "$root"
mkdir -p "$root/deb"
if [ "$(id -u)" = 0 ]; then apt-get update -qq || true; fi
libraries=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    clickhouse-server clickhouse-common | grep '^lib' | sort -u)
packages="clickhouse-server clickhouse-common"
for name in $libraries; do
    case $name in libc6 | libgcc-s1) continue ;; esac
    dpkg -s "$name" >/dev/null 2>&1 || packages="$packages $name"
done
packages="$packages libzookeeper-java libslf4j-java libnetty-java libsnappy-java libdropwizard-metrics-java"
command -v java >/dev/null || packages="$packages openjdk-17-jre-headless"
cd "$root/deb"
# shellcheck disable=SC2086
apt-get download -qq $packages 2>/dev/null || { echo "ClickHouse is not downloaded: apt-get download failed." >&2; exit 1; }
for file in *.deb; do dpkg -x "$file" ..; done
cd ..
rm -rf deb usr/share/doc
touch .complete
