"""The demo shows a real event going through, and real refusals."""

import pytest

from meshbus.cli import demo


def test_the_walk_ends_with_the_event_and_its_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main()
    text = capsys.readouterr().out
    assert text.count(demo.EVENT.decode()) == 2  # sent and received
    assert "planner ALLOWED, a stranger DENIED" in text
    assert "refused, replayed" in text
    assert "refused, bad_tag" in text
    verdicts = {
        line.split()[1]: line for line in text.splitlines() if line.strip().startswith("to ") and len(line.split()) > 2
    }
    assert "forward" in verdicts["3"]
    assert "NOT_ANCESTOR" in verdicts["3.8"]
    assert "UNKNOWN_SUBNET" in verdicts["9"]
    assert "every other byte as it was: True" in text
    assert f"{demo.CHANNEL.hash:016x}" in text


def test_colors_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("\033" in line for line in demo.walk())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert any("\033" in line for line in demo.walk())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any("\033" in line for line in demo.walk())
