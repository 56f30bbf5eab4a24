"""Packages of a release, made without a network: wheel, sdist, Debian package, site, bill of materials, checksums."""
