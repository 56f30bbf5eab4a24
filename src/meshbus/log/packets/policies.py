"""The policies that records were made under: one small file each, numbered, beside the packets.

    <folder>/_policies/0000000003.json

The number is the `policy_version` of the rows. It means the same for ever in this folder: a policy that comes back, also
after a restart, gets the number that it had. So whoever reads a row can judge it again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from meshbus.errors import LogError, LogFault
from meshbus.log.files import translated
from meshbus.log.folder import aside
from meshbus.policy.gatewaypolicy import GatewayPolicy

if TYPE_CHECKING:
    from meshbus.log.files import Files

POLICIES = "_policies"
MOST = 1_024
"""Policies that are kept; beyond, the oldest are removed."""

_NAME = re.compile(r"(\d{10})\.json")


def load_policies(folder: Path) -> dict[int, GatewayPolicy]:
    """Read the policies of a recorder's folder by their numbers; raises LogError when one is damaged."""
    found: dict[int, GatewayPolicy] = {}
    for path in sorted((folder / POLICIES).glob("*.json")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        try:
            found[int(match[1])] = msgspec.json.decode(path.read_bytes(), type=GatewayPolicy)
        except msgspec.MsgspecError as error:
            raise LogError(
                LogFault.CORRUPT, f"{path} is no policy: {error}; restore it from a copy, or remove it"
            ) from None
    return found


class PolicyBook:
    """Gives numbers to policies, at once, and writes down later those that are new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        known = load_policies(folder)
        self._numbers = {policy: number for number, policy in known.items()}
        self._next = max(known, default=0) + 1
        self._unwritten: dict[int, GatewayPolicy] = {}

    def number_of(self, policy: GatewayPolicy) -> int:
        """Give the number of a policy; touches no file."""
        number = self._numbers.get(policy)
        if number is None:
            number = self._numbers[policy] = self._next
            self._unwritten[number] = policy
            self._next += 1
        return number

    def write(self, files: Files) -> None:
        """Write down what is new, safely, and forget the oldest beyond MOST."""
        for number, policy in list(self._unwritten.items()):
            path = self._path(number)
            with translated(path, "cannot write"):
                files.write_aside(path, aside(path), [msgspec.json.format(msgspec.json.encode(policy), indent=1)])
            del self._unwritten[number]
        if len(self._numbers) > MOST:
            known = list(self._numbers.items())  # in one step: the other thread may add meanwhile
            for policy, number in sorted(known, key=lambda item: item[1])[:-MOST]:
                with translated(self._path(number), "cannot remove"):
                    files.remove(self._path(number))
                del self._numbers[policy]

    def _path(self, number: int) -> Path:
        return self._folder / POLICIES / f"{number:010d}.json"
