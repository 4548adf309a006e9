#!/bin/sh
# Fetches container engines that are newer than Debian 12's, and unpacks them into a folder, where nothing else
# finds them: docker.io, docker-cli, docker-compose and containerd of Debian's unstable release, which do with Debian 12's libc.
#   newer.sh FOLDER
# Debian's own lists of packages stay as they are: these have lists of their own, which go again.
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd)
work="$folder/work"
rm -rf "$work" "$folder/new"
mkdir -p "$work/lists/partial" "$folder/new"
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -n 1)
printf 'Types: deb\nURIs: %s\nSuites: sid\nComponents: main\nSigned-By: %s\n' \
    "$mirror" /usr/share/keyrings/debian-archive-keyring.gpg > "$work/debian.sources"
set -- -qq -o "Dir::Etc::SourceList=$work/debian.sources" -o "Dir::Etc::SourceParts=/dev/null" \
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=" \
    -o APT::Sandbox::User=root -o Acquire::Retries=1 -o Acquire::http::Timeout=10 -o Acquire::Languages=none
apt-get "$@" update
cd "$work"
apt-get "$@" download docker.io docker-cli docker-compose containerd
for package in ./*.deb; do
    dpkg-deb -x "$package" "$folder/new"
done
ln -sf ../libexec/docker/cli-plugins/docker-compose "$folder/new/usr/bin/docker-compose"
rm -rf "$folder/engines"
mv "$folder/new" "$folder/engines"
rm -rf "$work"
