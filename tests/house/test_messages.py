"""Messages and docstrings are plain English, as far as that can be checked by machine."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tools.messages import Catalog, Message, collect, messages_of

PHRASES = [
    r"\bthere (is|are|was|were) (no|nothing|nobody|none)\b",  # "no logs in x", "unknown reason 'x'"
    r"\b(is|are|was|be) no (?!longer\b)[a-z]",  # "is not a"
    r"\b(whoever|whomever|whichever|somebody|nobody|everybody|everyone|anybody)\b",
    r"\b(ends|end) with \d",  # "exits with status 3 if"
    r"\bof one's own\b|\bfor a moment\b|\bin the manner of\b|\bby way of\b|\bso to speak\b",
    r"\bas (it is |it was )?said\b|\bas (it is )?told\b|\bwas told\b|\bwhat (is|was) (said|told|heard)\b",
    r"\b(so many|so long|so often)\b",
    r"\bkeep one of the two\b|\bis given too\b|\bare given too\b",
    r"\b(hung|hang|hangs) up\b|\bshak(e|es|ing) hands\b|\bturn(ed|s)? away\b|\bthe door\b|\bknock",
    r"\bsay (which|where|what|who|in which)\b",
    r"\b(handed|hand|hands) (on|over)\b",
    r"\b(we|us|our|ours|ourselves)\b",
    r"\blook(s|ed)? into\b",
    r"\bspoken here\b|\bspeaks?\b",
]
"""Phrases that were replaced by usual terms. A message that needs one says it in other words."""

FIRST_WORDS = re.compile(
    r"(Gives?|Says?|Tells?|Hears?|Take note|Hand|Let|Have|Has|Be|Look|Make up|Come|Go on|Forget|Note that)\b"
)
"""First words of docstrings that have a usual form: `Return …`, `Return whether …`, `Record …`, `Handle …`."""


@cache
def _all() -> list[Message]:
    """Read the source once: it takes seconds."""
    return collect(docstrings=True)


def _messages(*, docstrings: bool = False) -> list[Message]:
    return [message for message in _all() if (message.kind == "doc") == docstrings]


def _show(found: Iterable[Message]) -> str:
    return "\n".join(map(str, found))


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_message_uses_a_phrase_of_the_old_dialect(phrase: str) -> None:
    messages = [message._replace(text=re.sub(r"{.*?}", "{}", message.text)) for message in _messages()]
    found = [message for message in messages if re.search(phrase, message.text, re.IGNORECASE)]
    assert not found, f"say it in usual words:\n{_show(found)}"


def test_docstrings_begin_with_a_usual_verb() -> None:
    docs = _messages(docstrings=True)
    found = [message for message in docs if FIRST_WORDS.match(message.text)]
    assert len(docs) > 500
    assert not found, f"begin with Return, Return whether, Record, Handle, Raise, …:\n{_show(found)}"


def test_messages_have_no_stray_spaces_and_no_prefix_twice() -> None:
    bad = re.compile(r"^\s|\s$|^error\b: |\berror: error\b|: : |;;|\.;|\s[;:,.]( |$)", re.IGNORECASE)
    found = [message for message in _messages() if bad.search(message.text)]
    assert not found, _show(found)


def test_errors_are_no_full_sentences_and_help_is() -> None:
    """An error is shown after a prefix, so it has no capital and no period; a help text stands alone."""
    found = [message for message in _messages() if message.kind == "error" and re.search(r"[^.]\.$", message.text)]
    capital = re.compile(r"(?!Spark |Java |Parquet )[A-Z][a-z]+ ")  # names may begin a message
    found += [message for message in _messages() if message.kind == "error" and capital.match(message.text)]
    found += [message for message in _messages() if message.kind == "help" and not message.text.endswith(".")]
    assert not found, _show(found)


def test_the_list_is_sorted_and_complete_enough() -> None:
    found = _messages()
    assert found == sorted(found)
    assert {message.kind for message in found} == {"error", "help", "log", "print", "reason", "text"}
    texts = {message.text for message in found}
    assert {
        "--seconds: must be in (0, {MAX_SECONDS}], got {seconds}",
        "--reason: unknown reason '{reason}'; choose from {WORDS}",
        "{bad} of {findings} checks failed; the first is {check}: {found}",
        "List the peers of a node.",
        "Filter by drop reason: {WORDS}.",
    } <= texts


SAMPLE = '''
import logging

_log = logging.getLogger("x")
WORDS = {"a": "one of the words", "b": ("two words", 1)}
_EMPTY = "it is empty"


class OddError(MeshError):
    def __init__(self, key, problem):
        super().__init__(f"{key} is odd: {problem}")


class OddFault(StrEnum):
    """Why it is odd."""

    TOO_ODD = "too_odd"


@app.command
def run(path: Annotated[str, Parameter(help="Path of the file.")]):
    """Run it.

    Twice.
    """
    problem = f"{path!r} has {len(rows)} rows" if path else "no path"
    if path:
        raise OddError("path", problem)
    _log.warning("cannot run %s", path)
    note(f"{', '.join(names)} did not run" + (" again" if twice else ""))
    raise ValueError(_EMPTY)


def _fail(where, problem):
    raise OddError(where, problem)


def check():
    """Give the result."""
    return _fail("x", "it is too large")
'''


def test_how_messages_are_found(tmp_path: Path) -> None:
    tree = ast.parse(SAMPLE)
    found = list(messages_of(tree, "x.py", Catalog([tree]), docstrings=True))
    assert {(message.kind, message.text) for message in found} == {
        ("doc", "Why it is odd."),
        ("doc", "Run it."),
        ("doc", "Give the result."),
        ("error", "path: '{path}' has {rows} rows"),
        ("error", "path: no path"),
        ("error", "it is empty"),
        ("error", "{key} is odd: {problem}"),
        ("help", "Path of the file."),
        ("help", "Run it. Twice."),
        ("log", "cannot run %s"),
        ("print", "{names} did not run"),
        ("print", "{names} did not run again"),
        ("reason", "OddFault.TOO_ODD = too_odd"),
        ("text", "it is too large"),
        ("text", "one of the words"),
        ("text", "two words"),
    }
    (tmp_path / "odd.py").write_text(SAMPLE)
    assert [str(message) for message in collect(source=tmp_path) if message.kind == "log"] == [
        f"{tmp_path.name}/odd.py:29: log: cannot run %s"
    ]
    assert collect(["other"], source=tmp_path) == []
