"""Tables for people, lines of JSON for programs, notes beside them."""

import json

import pytest

from meshbus.cli.output import for_people, note, plural, show_facts, show_line, show_rows, show_text

ROWS: list[dict[str, object]] = [
    {"node_id": "00ff", "tags": ["a", "b"], "up": True},
    {"node_id": "0100", "tags": [], "up": None},
]


def test_a_pipe_gets_one_json_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, ("node_id",), json=False, empty="none")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_a_terminal_gets_a_table(
    terminal: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    show_rows(ROWS, ("node_id", "tags", "up"), json=False, empty="none")
    header, first, second = (line.split() for line in _plain(capsys.readouterr().out).splitlines())
    assert header == ["node", "id", "tags", "up"]
    assert first == ["00ff", "a,", "b", "yes"]
    assert second == ["0100", "–", "–"]


def test_json_can_be_asked_for_on_a_terminal(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, (), json=True, empty="")
    show_facts({"a": 1}, json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [*ROWS, {"a": 1}]


def test_facts_are_shown_below_each_other(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    show_facts({"public_key": "ab" * 32, "limits": {"a": 1, "b": None}, "none": {}, "no": False}, json=False)
    lines = _plain(capsys.readouterr().out).splitlines()
    assert [line.split() for line in lines] == [
        ["public", "key", "ab" * 32],
        ["limits", "a=1,", "b=–"],
        ["none", "–"],
        ["no", "no"],
    ]


def test_text_that_looks_like_markup_is_shown_unchanged(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    show_facts({"name": "[bold]x[/bold] :smile:"}, json=False)
    assert "[bold]x[/bold] :smile:" in _plain(capsys.readouterr().out)


def test_control_characters_are_spelled_out(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\033]0;title\007\u009b2Jb\nc"
    show_facts({"tags": [evil]}, json=False)
    show_text(evil)
    note(evil)
    out, err = capsys.readouterr()
    for text in (_plain(out), err):
        assert not set(text) & {"\033", "\007", "\u009b"}
        assert "\\x1b]0;title" in text
    assert err.count("\n") == 1


def test_colors_only_without_no_color(
    terminal: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_rows(ROWS, ("node_id",), json=False, empty="")
    assert "\033[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    show_rows([{"x": 1}], ("x",), json=False, empty="")
    assert "\033" not in capsys.readouterr().out


def test_an_empty_result_is_mentioned_on_a_terminal_only(
    terminal: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_rows([], ("a",), json=False, empty="no peers yet")
    assert capsys.readouterr() == ("", "meshbus: no peers yet\n")
    show_rows([], ("a",), json=True, empty="no peers yet")
    assert capsys.readouterr() == ("", "")


def test_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    note("hello")
    assert capsys.readouterr() == ("", "meshbus: hello\n")


def test_a_line_can_hold_any_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_line({"text": "ü\n", "other": ValueError("x")})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"text": "ü\n", "other": "x"}


def test_captured_output_is_not_a_terminal() -> None:
    assert not for_people(json=False)


def _plain(text: str) -> str:
    import re

    return re.sub(r"\033\[[0-9;]*m", "", text)


def test_a_count_agrees_with_its_noun() -> None:
    assert [plural(count, "log") for count in (0, 1, 2)] == ["0 logs", "1 log", "2 logs"]
