#!/usr/bin/env bash
# Makes the base of all images, debian:bookworm-slim, with debootstrap: for engines that cannot pull it.
#
#   sudo compose/base-image.sh [MIRROR]
#
# It is Debian's minimal system without manuals and package lists, and it trusts the authorities that this machine's
# owner added, so that images can be built behind a proxy that inspects what passes. Does nothing where the image is.
set -euo pipefail

image=debian:bookworm-slim

if docker image inspect "$image" >/dev/null 2>&1; then
  echo "$image is here already"
  exit 0
fi
command -v debootstrap >/dev/null || { echo "debootstrap is not installed: apt-get install debootstrap" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "debootstrap needs root: sudo $0" >&2; exit 1; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
echo "Making $image from ${1:-the default mirror}: about a minute"
debootstrap --variant=minbase bookworm "$root" "$@" >"$root.log" 2>&1 ||
  { tail -20 "$root.log" >&2; echo "debootstrap failed; its whole log is $root.log" >&2; exit 1; }
rm -f "$root.log"

mirror=$(awk '$1 == "deb" { print $2; exit }' "$root/etc/apt/sources.list") # where debootstrap has found it
cat >"$root/etc/apt/sources.list" <<SOURCES
deb $mirror bookworm main
deb $mirror bookworm-updates main
deb ${mirror%/debian}/debian-security bookworm-security main
SOURCES
# What Debian's own slim image leaves out, for later packages too.
cat >"$root/etc/dpkg/dpkg.cfg.d/slim" <<'SLIM'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
SLIM
cat >"$root/etc/apt/apt.conf.d/slim" <<'APT'
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
APT
if [ -d /usr/local/share/ca-certificates ]; then
  mkdir -p "$root/usr/local/share/ca-certificates"
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$root/usr/local/share/ca-certificates/" \;
fi
find "$root/usr/share/doc" -type f ! -name copyright -delete
rm -rf "$root"/usr/share/{man,info,locale}/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/* \
  "$root"/tmp/* "$root"/var/cache/debconf/*-old

tar -C "$root" -c . | docker import --change 'CMD ["bash"]' - "$image" >/dev/null
docker image ls "$image"
