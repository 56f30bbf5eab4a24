"""Consumers of logs publish their positions, so that others see their lag."""

from pathlib import Path

from meshbus.log.consumers import CONSUMERS, Consumer, lags, list_consumers, publish_consumer


def test_the_newest_position_of_a_consumer_is_found(tmp_path: Path) -> None:
    assert list_consumers(tmp_path) == []
    publish_consumer(tmp_path, "silver", {"a": 3}, 10)
    publish_consumer(tmp_path, "silver", {"a": 7, "b": 1}, 20)
    publish_consumer(tmp_path, "gold", {"a": 9}, 30)
    found = list_consumers(tmp_path)
    assert found == [Consumer("gold", {"a": 9}, 30), Consumer("silver", {"a": 7, "b": 1}, 20)]
    assert [lags(found, channel, 9) for channel in ("a", "b", "c")] == [{"gold": 0, "silver": 2}, {"silver": 8}, {}]


def test_any_name_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = ["events of /srv/a", "events of /srv/b", "../outside", "", "." * 300, "plain"]
    (tmp_path / "logs").mkdir()
    for number, name in enumerate(names):
        publish_consumer(tmp_path / "logs", name, {"a": number}, 0)
    found = {consumer.consumer: consumer.next["a"] for consumer in list_consumers(tmp_path / "logs")}
    assert found == {name: number for number, name in enumerate(names)}
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_log_that_began_anew_has_no_negative_lag(tmp_path: Path) -> None:
    publish_consumer(tmp_path, "silver", {"a": 100}, 0)
    assert lags(list_consumers(tmp_path), "a", 5) == {"silver": 0}


def test_invalid_files_are_not_consumers(tmp_path: Path) -> None:
    publish_consumer(tmp_path, "silver", {"a": 3}, 10)
    for name, content in (("half.json", b'{"consumer": "x"'), ("_aside.json.7", b""), ("other.json", b"[]")):
        (tmp_path / CONSUMERS / name).write_bytes(content)
    assert [consumer.consumer for consumer in list_consumers(tmp_path)] == ["silver"]


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / CONSUMERS).write_bytes(b"a file in the way")
    publish_consumer(tmp_path, "silver", {"a": 3}, 10)
    assert list_consumers(tmp_path) == []


def test_who_follows_a_whole_log_dir_is_seen_at_each_of_its_logs(tmp_path: Path) -> None:
    publish_consumer(tmp_path, "silver", {"published:a": 3, "received:a": 5}, 10)
    (tmp_path / "published").mkdir()
    publish_consumer(tmp_path / "published", "own", {"a": 1}, 10)
    assert list_consumers(tmp_path / "published") == [Consumer("own", {"a": 1}, 10), Consumer("silver", {"a": 3}, 10)]
    assert list_consumers(tmp_path / "received") == [Consumer("silver", {"a": 5}, 10)]


def test_a_file_from_before_there_were_versions_is_read_and_a_newer_one_is_left_out(tmp_path: Path) -> None:
    (tmp_path / CONSUMERS).mkdir()
    (tmp_path / CONSUMERS / "a.json").write_text('{"consumer": "a", "next": {}, "at_ns": 1}')
    (tmp_path / CONSUMERS / "b.json").write_text('{"version": 2, "consumer": "b", "next": {}, "at_ns": 1}')
    assert list_consumers(tmp_path) == [Consumer("a", {}, 1)]
