"""Packages of a release, made without a network: wheel, sdist, Debian package, bill of materials, checksums."""
