"""A hot file of packets on the disk: reads its bytes, which log/packets/block.py explains."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from meshbus.errors import LogError, LogFault
from meshbus.log.packets.block import Content, NewerFile, read_content


def read_hot(path: Path) -> Content:
    """Return the content of a hot file up to its last whole block.

    Raises UnknownFile if it has no whole header, and LogError if a newer meshbus wrote it.
    """
    try:
        return read_content(np.fromfile(path, np.uint8).data)
    except NewerFile as error:
        raise LogError(LogFault.NEWER, f"{path}: {error}") from None
