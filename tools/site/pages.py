"""The source of the site: the Markdown of the project, and the place of each page in the navigation.

A forge shows README.md for a folder, also where a link names the folder alone. A site needs index.md for that, so pages and
links are renamed here. Nothing else is changed: what is wrong on the site is mended in the Markdown.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

PATTERNS = ("*.md", "docs/**/*.md")
TEMPLATE = "0000-template.md"
"""How a decision is written; a page for people who write one in a clone."""
DECISIONS = """\
# Decisions

Why things are the way they are. Each page records one choice that someone may question.
"""

_LINK = re.compile(r"(?P<text>\[[^\]]*\]\()(?P<path>[^)\s#]+)(?P<rest>(?:#[^)\s]*)?\))")


def stage(root: Path, into: Path) -> None:
    """Copy all pages of a project and the files that they link to, and add the navigation."""
    pages = [page for pattern in PATTERNS for page in sorted(root.glob(pattern)) if page.name != TEMPLATE]
    for page in pages:
        text = page.read_text("utf-8")
        _write(into / _renamed(page.relative_to(root)), _relinked(page, text, root))
        for target in _targets(page, text):
            if target.is_file() and target.suffix != ".md":
                place = into / target.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(target, place)
    _write(into / "docs/decisions/index.md", DECISIONS)
    _navigate(root, into)


def _renamed(page: Path) -> Path:
    """Return where a page lies on the site."""
    return page.with_name("index.md") if page.name == "README.md" else page


def _relinked(page: Path, text: str, root: Path) -> str:
    """Return the text of a page with links to index.md instead of README.md or a folder."""

    def relink(link: re.Match[str]) -> str:
        target = _resolve(page, link["path"])
        if not target.is_relative_to(root) or not (target.is_dir() or target.name == "README.md"):
            return link[0]
        index = target / "index.md" if target.is_dir() else _renamed(target)
        return f"{link['text']}{Path(os.path.relpath(index, page.parent)).as_posix()}{link['rest']}"

    return _LINK.sub(relink, text)


def _targets(page: Path, text: str) -> Iterator[Path]:
    """Yield the paths that a page links to, in their order."""
    for link in _LINK.finditer(text):
        yield _resolve(page, link["path"])


def _resolve(page: Path, link: str) -> Path:
    return Path(os.path.normpath(page.parent / link))


def _navigate(root: Path, into: Path) -> None:
    """Give every page its place: guides first, then what is looked up, then what is about the project."""
    front, guide, decisions = (into / folder / "index.md" for folder in (".", "docs/guide", "docs/decisions"))
    reference = [*(into / "docs").glob("*.md"), *(into / "docs/wire").glob("*.md")]
    about = [page for page in into.glob("*.md") if page != front]
    _append(front, _contents(into, [guide]))
    _append(front, _contents(into, sorted(reference), "Reference"))
    _append(front, _contents(into, [*sorted(about), decisions], "Project"))
    # The guides are listed in the order in which their front page names them.
    named = _targets(root / "docs/guide/README.md", (root / "docs/guide/README.md").read_text("utf-8"))
    listed = [page for target in named if (page := into / target.relative_to(root)).parent == guide.parent]
    rest = sorted(set(guide.parent.glob("*.md")) - {*listed, guide})
    _append(guide, _contents(into, [*dict.fromkeys(listed), *rest]))
    _append(decisions, _contents(into, sorted(set(decisions.parent.glob("*.md")) - {decisions}), hidden=False))


def _contents(into: Path, pages: Iterable[Path], caption: str = "", *, hidden: bool = True) -> str:
    """Return the directive that puts pages into the navigation."""
    options = [":maxdepth: 1", *([":hidden:"] if hidden else []), *([f":caption: {caption}"] if caption else [])]
    names = [f"/{page.relative_to(into).with_suffix('').as_posix()}" for page in pages]
    return "\n".join(["```{toctree}", *options, "", *names, "```"])


def _append(page: Path, text: str) -> None:
    _write(page, f"{page.read_text('utf-8')}\n{text}\n")


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, "utf-8")
