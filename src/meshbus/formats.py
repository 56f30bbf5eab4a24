"""Formats on disk: which version of each this build writes and reads, and what it says about a file of another one.

A module that writes files which a later build reads names their format in `ON_DISK`, beside the code. docs/formats.md is
written from these tuples (`python -m tools.formats`). The rules are the same for all of them:

- A version is a whole number. It grows when an older build would misread the file. What an older build may ignore, such as
  another field of a JSON object, changes no version.
- A build reads every version from `oldest` to its own. A file of another version is refused with one sentence, before
  anything is changed: it stays as it is, and the build that wrote it can go on with it.
- The version is compared before anything else, such as a checksum: a newer version may have another layout.
"""

from __future__ import annotations

from typing import Any

import msgspec

from meshbus.errors import ConfigError


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One row of docs/formats.md."""

    name: str
    """A short word for it, unique among all formats, for messages."""
    where: str
    """The files, as a user finds them."""
    what: str
    """What they hold."""
    version: int
    """The newest version that this build writes, and reads."""
    oldest: int = 1
    """The oldest version that this build reads."""
    mark: str
    """Where the version stands."""
    refused: str
    """What does not work with a file of a newer version; everything else does."""

    @property
    def readable(self) -> str:
        """The versions that this build reads, in words."""
        if self.oldest == self.version:
            return f"version {self.version}"
        return f"versions {self.oldest} to {self.version}"

    def problem(self, found: int) -> str | None:
        """Return why a file of a version is refused, to be put after its path; None if it is read."""
        if self.oldest <= found <= self.version:
            return None
        if found > self.version:
            writer, advice = "a newer meshbus", "use the meshbus that wrote it, or a newer one"
        else:
            writer, advice = "an older meshbus", "use the meshbus that wrote it, or start without this file"
        return (
            f"{self.name}, version {found}, was written by {writer}; this one reads {self.readable}; {advice}; nothing"
            " was changed"
        )


FILE_VERSION = "file_version"
"""Key of the version in a file that people write."""

ON_DISK = (
    Format(
        name="settings file",
        where="`node.toml`, `policy_file`, the file of `meshbus pipeline run`, `contexts.toml`",
        what="settings of nodes and pipelines, policies, contexts: files that people write",
        version=1,
        mark=f"`{FILE_VERSION}`, which nobody has to write; 1 if it is missing. Settings that a build does not know are refused by name",
        refused="the command or node that reads it; a running node keeps the policy that it has",
    ),
)


def take_file_version(table: dict[str, Any], source: str) -> None:
    """Remove the version from the content of a file that people write. Raises ConfigError if it is not readable."""
    version = table.pop(FILE_VERSION, 1)
    if not isinstance(version, int) or version < 1:
        raise ConfigError(FILE_VERSION, f"must be a whole number from 1 on, got {version!r}", source=source)
    if problem := ON_DISK[0].problem(version):
        raise ConfigError(FILE_VERSION, problem, source=source)
