#!/bin/sh
# Build a container image of a node from a Debian package of it, without a registry of images: the root is made from the
# packages of the system. Requires root, mmdebstrap and buildah.
#
#   tools/release/image.sh dist/meshbus_0.1.0_amd64.deb [NAME]      by default meshbus
set -eu
package=${1:?usage: tools/release/image.sh PACKAGE.deb [NAME]}
name=${2:-meshbus}
recipe=$(dirname "$0")/Containerfile
suite=bookworm # whose Python the package is for

for tool in mmdebstrap buildah; do
    command -v "$tool" >/dev/null || { echo "image: $tool is not installed; install it with your system's package manager" >&2; exit 1; }
done
[ -f "$package" ] || { echo "image: $package does not exist; make it with 'make release'" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$package" "$folder/meshbus.deb"
mmdebstrap --quiet --variant=minbase --include=python3,adduser \
    --customize-hook="copy-in $folder/meshbus.deb /" --customize-hook='chroot "$1" dpkg -i /meshbus.deb' \
    --customize-hook='rm "$1/meshbus.deb"' "$suite" "$folder/root.tar"
# chroot: the build runs no program of the image, and needs no right to make control groups.
buildah build --isolation chroot --quiet --tag "$name" --file "$recipe" "$folder"
