"""Check the links of a built site: inside it, everything exists; outside, nothing is loaded, and addresses are well formed.

No address is asked for: a check must depend neither on the network nor on other people's servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class Link(NamedTuple):
    """One link of a page."""

    target: str
    loads: bool = False
    """Whether the browser loads the target with the page, such as a script or a picture."""


class Checked(NamedTuple):
    """What a check found."""

    broken: list[str]
    """A line for each link that leads nowhere."""
    external: list[str]
    """The addresses of other hosts, sorted."""


class _Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what a tag links to, and its name."""
        found = {name: value or "" for name, value in attrs}
        if found.get("id"):
            self.anchors.add(found["id"])
        if "href" in found:
            self.links.append(Link(found["href"], loads=tag == "link"))
        if "src" in found:
            self.links.append(Link(found["src"], loads=True))


def check(folder: Path) -> Checked:
    """Check all pages in a folder."""
    root = folder.resolve()
    pages = {path: _Page(path.read_text("utf-8")) for path in sorted(root.rglob("*.html"))}
    anchors = {path: page.anchors for path, page in pages.items()}
    broken: list[str] = []
    external: set[str] = set()
    for path, page in pages.items():
        for link in page.links:
            if link.target.startswith("data:"):
                continue
            if _leaves(link.target):
                external.add(link.target)
                fault = fault_of(link)
            else:
                fault = _missing(path, link.target, anchors)
            if fault:
                broken.append(f"{path.relative_to(root).as_posix()}: {link.target}: {fault}")
    return Checked(broken, sorted(external))


def fault_of(link: Link) -> str:
    """Return what is wrong with the address of another host, or nothing."""
    if link.loads:
        return "the page loads something from another host"
    try:
        address = urlsplit(link.target)
        host, _ = address.hostname or "", address.port
    except ValueError as error:
        return f"not an address: {error}"
    if address.scheme not in {"http", "https"}:
        return "not an address that starts with http:// or https://"
    if "." not in host.strip("."):
        return "not an address with the full name of a host"
    return ""


def _leaves(target: str) -> bool:
    return target.startswith("//") or ":" in target.partition("/")[0].partition("#")[0].partition("?")[0]


def _missing(page: Path, target: str, anchors: Mapping[Path, set[str]]) -> str:
    """Return what a link inside the site does not find, or nothing."""
    path, _, anchor = target.partition("#")
    file = unquote(path.partition("?")[0])
    found = (page.parent / file).resolve() if file else page
    if not found.is_file():  # without a server, a folder shows no page
        return "no such file"
    if anchor and unquote(anchor) not in anchors.get(found, ()):
        return "no such place on that page"
    return ""
