"""A file layer that records every step, and the disks that a crash after any of them could leave.

What a machine keeps is less than what a process sees. Content is sure after fsync of the file, a name after fsync of its
folder; of everything else any part may survive: nothing, all of it, a subset, half a write, a later write without an
earlier one (the hole reads as zeros). `Disk` replays a recording and keeps both views; `Loss` says which part survives.
"""

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

from meshbus.log.files import Files, Part


class Step(NamedTuple):
    """One operation on the disk; `file` is a number for each file that ever existed."""

    what: str
    path: PurePosixPath = PurePosixPath()
    other: PurePosixPath = PurePosixPath()
    file: int = -1
    at: int = 0
    data: bytes = b""


class Recorder(Files):
    """Perform all operations below a folder, and record them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.steps: list[Step] = []
        self._by_path: dict[PurePosixPath, int] = {}
        self._by_handle: dict[int, int] = {}
        self._files = 0
        for path in sorted(base.rglob("*")):
            if path.is_file():
                self._by_path[self._name(path)] = self._new()

    def mark(self, data: bytes) -> None:
        """Record a mark of the test between the steps."""
        self.steps.append(Step("mark", data=data))

    def make_folder(self, path: Path) -> None:
        missing = [place for place in (path, *path.parents) if not place.exists()]
        super().make_folder(path)
        self.steps += [Step("mkdir", self._name(place)) for place in reversed(missing)]

    def create(self, path: Path) -> int:
        handle = super().create(path)
        self._by_handle[handle] = self._by_path[self._name(path)] = self._new()
        self.steps.append(Step("create", self._name(path), file=self._by_handle[handle]))
        return handle

    def reopen(self, path: Path) -> int:
        handle = super().reopen(path)
        self._by_handle[handle] = self._by_path[self._name(path)]
        return handle

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        self.steps.append(Step("write", file=self._by_handle[handle], at=at, data=b"".join(parts)))
        return super().write_some(handle, parts, at)

    def truncate(self, handle: int, size: int) -> None:
        super().truncate(handle, size)
        self.steps.append(Step("truncate", file=self._by_handle[handle], at=size))

    def fsync(self, handle: int) -> None:
        self.steps.append(Step("fsync", file=self._by_handle[handle]))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._by_path[self._name(new)] = self._by_path.pop(self._name(old))
        self.steps.append(Step("rename", self._name(old), self._name(new)))

    def remove(self, path: Path) -> None:
        if path.exists():
            super().remove(path)
            del self._by_path[self._name(path)]
            self.steps.append(Step("remove", self._name(path)))

    def fsync_folder(self, path: Path) -> None:
        if path.is_relative_to(self.base):
            self.steps.append(Step("fsync_folder", self._name(path)))

    def _name(self, path: Path) -> PurePosixPath:
        return PurePosixPath(path.relative_to(self.base))

    def _new(self) -> int:
        self._files += 1
        return self._files


class Unsynced(Files):
    """Files without waiting for the disk: the tests after a crash do not crash again."""

    def fsync(self, handle: int) -> None:
        pass

    def fsync_folder(self, path: Path) -> None:
        pass


class Loss(StrEnum):
    """What survives of the steps that were not synced."""

    NOTHING_LOST = "nothing lost"
    """Only the process died."""
    ALL_LOST = "all lost"
    NAMES_ONLY = "names only"
    CONTENT_ONLY = "content only"
    TORN = "torn"
    """Everything except half of the last write to each file."""
    RANDOM = "random"


FOLDER = -1

Image: TypeAlias = tuple[tuple[PurePosixPath, bytes | None], ...]
"""The content of a disk: files with their bytes, folders with None."""


def lay_out(image: Image, target: Path) -> None:
    """Write an image as a folder."""
    target.mkdir()
    for path, content in image:
        if content is None:
            (target / path).mkdir()
        else:
            (target / path).write_bytes(content)


class _File:
    def __init__(self, content: bytes = b"") -> None:
        self.sure = bytearray(content)
        self.open: list[Step] = []

    def after(self, steps: Sequence[Step]) -> bytes:
        content = bytearray(self.sure)
        for step in steps:
            if step.what == "truncate":
                del content[step.at :]
            else:
                content.extend(bytes(max(step.at - len(content), 0)))
                content[step.at : step.at + len(step.data)] = step.data
        return bytes(content)


class Disk:
    """A disk as the process sees it, and as it is after a crash."""

    def __init__(self, base: Path) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[PurePosixPath, int] = {}
        self._open: list[tuple[PurePosixPath, int | None]] = []
        """Changes of names that were not synced: the path, and what it names from now on."""
        for number, path in enumerate(sorted(path for path in base.rglob("*") if path.is_file()), 1):
            self._files[number] = _File(path.read_bytes())
        files = iter(range(1, len(self._files) + 1))
        for path in sorted(base.rglob("*")):
            self._names[PurePosixPath(path.relative_to(base))] = next(files) if path.is_file() else FOLDER

    def take(self, step: Step) -> None:
        """Apply one more step."""
        match step.what:
            case "mkdir":
                self._open.append((step.path, FOLDER))
            case "create":
                self._files[step.file] = _File()
                self._open.append((step.path, step.file))
            case "write" | "truncate":
                self._files[step.file].open.append(step)
            case "fsync":
                file = self._files[step.file]
                file.sure, file.open = bytearray(file.after(file.open)), []
            case "rename":
                number = self._seen()[step.path]
                self._open += [(step.other, number), (step.path, None)]
            case "remove":
                self._open.append((step.path, None))
            case "fsync_folder":
                self._names = self._apply([change for change in self._open if change[0].parent == step.path])
                self._open = [change for change in self._open if change[0].parent != step.path]

    def left(self, loss: Loss, rng: random.Random) -> Image:
        """Return what a crash now would leave."""
        image: dict[PurePosixPath, bytes | None] = {}
        for path, number in sorted(self._apply(self._surviving_names(loss, rng)).items()):
            if path.parent != PurePosixPath() and path.parent not in image:
                continue  # its folder did not survive
            if number == FOLDER:
                image[path] = None
            else:
                file = self._files[number]
                image[path] = file.after(list(_surviving_content(file.open, loss, rng)))
        return tuple(image.items())

    def _surviving_names(self, loss: Loss, rng: random.Random) -> list[tuple[PurePosixPath, int | None]]:
        if loss in {Loss.ALL_LOST, Loss.CONTENT_ONLY}:
            return []
        return [change for change in self._open if loss is not Loss.RANDOM or rng.random() < 0.5]

    def _apply(self, changes: Sequence[tuple[PurePosixPath, int | None]]) -> dict[PurePosixPath, int]:
        names = dict(self._names)
        for path, number in changes:
            if number is None:
                names.pop(path, None)
            else:
                names[path] = number
        return names

    def _seen(self) -> dict[PurePosixPath, int]:
        return self._apply(self._open)


def _surviving_content(steps: Sequence[Step], loss: Loss, rng: random.Random) -> Iterator[Step]:
    if loss in {Loss.ALL_LOST, Loss.NAMES_ONLY}:
        return
    for number, step in enumerate(steps):
        if loss is Loss.TORN and number == len(steps) - 1 and step.what == "write":
            yield step._replace(data=step.data[: len(step.data) // 2])
        elif loss is Loss.RANDOM and step.what == "write":
            kept = rng.choice([0, rng.randrange(len(step.data) + 1), len(step.data)])
            if kept:
                yield step._replace(data=step.data[:kept])
        else:
            yield step
