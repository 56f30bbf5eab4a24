"""A guide page as a list of things to do: the fenced blocks, and on which machine each is for."""

import re
from pathlib import Path
from typing import NamedTuple

from tests.house.tree import ROOT

GUIDE = ROOT / "docs" / "guide"


class Step(NamedTuple):
    """One fenced block of a page."""

    line: int
    kind: str
    """The word after the fence: sh, toml, python, console."""
    text: str
    before: str
    """The text between the block before it and this one."""

    @property
    def machines(self) -> list[str]:
        """The machines that the text before it names last: `On the robot:`."""
        named = re.findall(r"[Oo]n (both machines|the \w+)", self.before)
        last = named[-1] if named else ""
        return ["robot", "base"] if last == "both machines" else [last.removeprefix("the ")]


def steps_of(page: str) -> list[Step]:
    """Return the fenced blocks of a guide page, in order."""
    found, block, start, kind, before = [], list[str](), 0, "", list[str]()
    for number, line in enumerate(Path(GUIDE / page).read_text("utf-8").splitlines(), 1):
        if start and line.startswith("```"):
            found.append(Step(start, kind, "\n".join(block) + "\n", " ".join(before)))
            block, start, before = [], 0, []
        elif start:
            block.append(line)
        elif line.startswith("```"):
            start, kind = number + 1, line[3:].strip()
        else:
            before.append(line)
    return found
