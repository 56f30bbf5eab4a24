"""Requests and replies: what is asked, answered and shown."""

import asyncio

import pytest

from meshbus.cli.exit import Exit
from meshbus.cli.requests import _answer
from meshbus.errors import LocalProtocolError
from tests.cli.conftest import Meshbus
from tests.cli.meshes import WHO, PreparedMesh

ROW = {**WHO, "channel": "plan", "payload": "left", "took_ms": 1.0}


def test_the_reply_is_a_row_or_raw(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = PreparedMesh(request=[ROW]).use(monkeypatch)
    assert meshbus("req", "plan", "where", "--node", "hub").row == ROW
    assert mesh.asked == [("request", ("plan", b"where"), {"node": "hub", "timeout_s": 5.0})]


@pytest.mark.usefixtures("terminal")
def test_people_get_the_payload(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh(request=[ROW, {**WHO, "channel": "plan", "payload_base64": "/w=="}]).use(monkeypatch)
    assert meshbus("req", "plan", "x").out == "left\n"
    assert meshbus("req", "plan", "x").out == "b'\\xff'\n"


def test_an_answer_is_a_text_a_program_or_the_request() -> None:
    assert asyncio.run(_answer(b"q", None, None)) == b"q"
    assert asyncio.run(_answer(b"q", "text", None)) == b"text"
    assert asyncio.run(_answer(b"q", None, "tr a-z A-Z")) == b"Q"


@pytest.mark.parametrize(
    ("program", "complaint"),
    [("sh -c 'exit 4'", "exited with status 4"), ("no-such-program", "cannot be run"), ("", "cannot be run")],
)
def test_a_program_that_fails_is_told_on_both_sides(
    program: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LocalProtocolError, match=complaint):
        asyncio.run(_answer(b"q", None, program))
    assert complaint in capsys.readouterr().err


def test_a_responder_has_one_answer(meshbus: Meshbus) -> None:
    result = meshbus("reply", "plan", "text", "--run", "cat")
    assert (result.code, result.out) == (Exit.USAGE, "")
