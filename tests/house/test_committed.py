"""What is committed works anywhere: no registry addresses, no paths of one machine."""

import re

from tests.house.tree import ROOT, committed_files, name_of

# Written in pieces, so that this file does not contain what it forbids.
HOSTS = ["py" + "pi.org", "python" + "hosted.org", "ana" + "conda.org", "npm" + "js.org", "crates" + ".io"]
FOLDERS = ["home", "Users", "root", "work"]
FORBIDDEN = {
    "a package registry": re.compile("|".join(re.escape(host) for host in HOSTS)),
    "a path of one machine": re.compile(r"(?<![\w./}])/(?:" + "|".join(FOLDERS) + r")/\w"),
}


def test_no_file_names_a_registry_or_a_machine() -> None:
    found = [
        f"{name_of(path)}:{number} names {what}: {line.strip()[:80]}"
        for path in committed_files()
        for number, line in enumerate(_text_of(path.read_bytes()).splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def _text_of(content: bytes) -> str:
    """The text of a file, or nothing if it is binary."""
    return "" if b"\0" in content[:8192] else content.decode("utf-8", "replace")


def test_no_lock_that_records_addresses() -> None:
    names = {name_of(path) for path in committed_files()}
    found = sorted(name for name in names if re.fullmatch(r"(.*/)?(uv\.lock|pylock(\..*)?\.toml|poetry\.lock)", name))
    assert not found, f"{found}: the lock is requirements/*.txt, written by `make lock`"


def test_continuous_integration_runs_the_same_command_as_people() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    assert "make test" in script.read_text("utf-8")
