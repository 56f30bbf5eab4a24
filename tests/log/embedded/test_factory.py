"""The row of the embedded backend: which logs it finds."""

from pathlib import Path

from meshbus.log.embedded.factory import Embedded
from meshbus.names.channel import ChannelName
from tests.log.making import CHANNEL, open_log


def test_a_log_exists_once_it_was_opened(tmp_path: Path) -> None:
    assert not Embedded().exists(tmp_path, ChannelName(CHANNEL))
    open_log(tmp_path).close()
    assert Embedded().exists(tmp_path, ChannelName(CHANNEL))
    assert not Embedded().exists(tmp_path, ChannelName("other"))


def test_a_damaged_manifest_does_not_hide_the_other_logs(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    (good,) = tmp_path.iterdir()
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "_manifest.json").write_text("{}")
    (entry,), (problem,) = Embedded().find(tmp_path)
    assert (entry.channel, entry.folder) == (CHANNEL, good)
    assert "bad" in str(problem)
