"""Logs on disk from a shell: good ones shown, bad ones answered in one sentence."""

import threading
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.log.consumers import publish_consumer
from meshbus.log.durability import LogConfig, Retention, Tiering
from meshbus.log.log import Redex
from tests.cli.conftest import Meshbus


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    with Redex(root, background=False, clock=lambda: 1_700_000_000_123_456_789) as redex:
        log = redex.open("sensors/lidar", retention=Retention(max_events=5), origin=255)
        log.append_batch([b"gone"] * 2)
        log.seal()
        log.append_batch([b"two", b"\xff\x00", b"four"])
        log.seal()
        log.append_batch([b"five", b"six"], headers={"kind": b"text"})
        log.expire()
        redex.open("a").append(b"x")
    return root


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_ls_shows_the_contents_of_each_log(meshbus: Meshbus, logs: Path) -> None:
    result = meshbus("log", "ls", logs)
    assert (result.code, result.err) == (Exit.OK, "")
    assert [row["channel"] for row in result.rows] == ["a", "sensors/lidar"]
    row = result.rows[1]
    assert (row["first"], row["next"], row["segments"], row["hot_events"]) == (2, 7, 1, 2)
    assert len(row["log_id"]) == 32
    assert row["lag"] == {}


def test_ls_shows_the_lag_of_consumers(meshbus: Meshbus, logs: Path) -> None:
    publish_consumer(logs, "silver", {"sensors/lidar": 5}, 0)
    publish_consumer(logs, "report", {"sensors/lidar": 7, "a": 0}, 0)
    rows = meshbus("log", "ls", logs).rows
    assert [row["lag"] for row in rows] == [{"report": 1}, {"report": 0, "silver": 2}]


def test_ls_shows_lag_on_a_terminal(meshbus: Meshbus, logs: Path, terminal: None) -> None:
    assert "lag" not in meshbus("log", "ls", logs).out
    publish_consumer(logs, "silver", {"sensors/lidar": 5}, 0)
    assert "silver 2" in meshbus("log", "ls", logs).out


def test_ls_shows_a_table_on_a_terminal(meshbus: Meshbus, logs: Path, terminal: None) -> None:
    result = meshbus("log", "ls", logs)
    assert "sensors/lidar" in result.out
    assert "hot events" in result.out
    (logs / "empty").mkdir()
    assert "no logs in" in meshbus("log", "ls", logs / "empty").err


def test_cat_shows_events_sealed_and_hot(meshbus: Meshbus, logs: Path) -> None:
    rows = meshbus("log", "cat", logs, "sensors/lidar").rows
    assert [row["seq"] for row in rows] == [2, 3, 4, 5, 6]
    assert [row.get("payload") for row in rows] == ["two", None, "four", "five", "six"]
    assert rows[1]["payload_base64"] == "/wA="
    assert rows[0]["ts"] == "2023-11-14T22:13:20.123456+00:00"
    assert (rows[0]["origin"], rows[0]["pub_seq"]) == ("00000000000000ff", 2)
    assert "headers" not in rows[0]
    assert rows[4]["headers"] == {"kind": "text"}
    assert [row["seq"] for row in meshbus("log", "cat", logs, "sensors/lidar", "--since", 3, "--until", 5).rows] == [
        3,
        4,
    ]


def test_cat_on_a_terminal_and_raw(meshbus: Meshbus, logs: Path, request: pytest.FixtureRequest) -> None:
    assert meshbus("log", "cat", logs, "sensors/lidar", "--raw", "--since", 4).out == "four\nfive\nsix\n"
    request.getfixturevalue("terminal")
    shown = meshbus("log", "cat", logs, "sensors/lidar", "--since", 4).out
    assert shown.splitlines()[0] == "4  2023-11-14T22:13:20.123456+00:00  four"


def test_tail_follows_a_log_that_is_being_written(meshbus: Meshbus, logs: Path) -> None:
    with Redex(logs, background=False) as redex:
        log = redex.open("sensors/lidar")
        writer = threading.Timer(0.2, lambda: log.append(b"live"))
        writer.start()
        result = meshbus("log", "tail", logs, "sensors/lidar", "--since", 5, "--count", 3, "--timeout", 10)
        writer.join()
    assert result.code == Exit.OK
    assert [row["payload"] for row in result.rows] == ["five", "six", "live"]


def test_tail_without_since_waits_for_new_events(meshbus: Meshbus, logs: Path) -> None:
    result = meshbus("log", "tail", logs, "a", "--timeout", 0.05)
    assert (result.code, result.out) == (Exit.OK, "")
    assert "no event for 0.05 s" in result.err
    assert meshbus("log", "tail", logs, "a", "--timeout", 0, "--count", 1).code == Exit.PARTIAL


def test_verify_passes_and_then_finds_damage(meshbus: Meshbus, logs: Path) -> None:
    assert meshbus("log", "verify", logs) == (Exit.OK, "", "")
    (segment,) = logs.glob("sensors_lidar-*/*.parquet")
    damage(segment)
    result = meshbus("log", "verify", logs)
    assert (result.code, result.row["channel"], result.row["file"]) == (Exit.FAILED, "sensors/lidar", segment.name)
    assert "1 problem; the first" in result.err
    assert meshbus("log", "verify", logs, "a").code == Exit.OK


def test_seal_writes_the_rest_to_parquet(meshbus: Meshbus, logs: Path) -> None:
    assert meshbus("log", "seal", logs, "sensors/lidar").row == {
        "channel": "sensors/lidar", "sealed_events": 2, "segments": 2,
    }  # fmt: skip
    assert len(list(logs.glob("sensors_lidar-*/*.parquet"))) == 2
    with Redex(logs, background=False) as redex:
        redex.open("sensors/lidar")
        result = meshbus("log", "seal", logs, "sensors/lidar")
        assert (result.code, result.err.count("\n")) == (Exit.FAILED, 1)
        assert "is being written by another process" in result.err


@pytest.mark.parametrize("verb", ["cat", "tail", "verify", "seal"])
def test_an_unknown_channel_is_an_error_and_is_not_created(meshbus: Meshbus, logs: Path, verb: str) -> None:
    result = meshbus("log", verb, logs, "sensors/radar")
    assert result.code == Exit.USAGE
    assert "no log of sensors/radar" in result.err
    assert len(list(logs.iterdir())) == 2
    assert meshbus("log", verb, logs, "Sensors").code == Exit.USAGE


@pytest.mark.parametrize("verb", ["ls", "verify"])
def test_the_error_of_a_bad_path_is_one_line(meshbus: Meshbus, tmp_path: Path, verb: str) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "nowhere", tmp_path / "file"):
        result = meshbus("log", verb, place)
        assert result.code == Exit.USAGE
        assert result.err == f"meshbus: {place} is not a folder of logs; check the path\n"


def test_a_damaged_log_does_not_hide_the_others(meshbus: Meshbus, logs: Path) -> None:
    (manifest,) = logs.glob("sensors_lidar-*/_manifest.json")
    damage(manifest)
    result = meshbus("log", "ls", logs)
    assert (result.code, result.row["channel"]) == (Exit.PARTIAL, "a")
    assert "restore it from a copy" in result.err
    assert result.err.count("\n") == 1
    cat = meshbus("log", "cat", logs, "sensors/lidar")
    assert (cat.code, cat.out) == (Exit.FAILED, "")
    assert "restore it from a copy" in cat.err


def test_damage_is_reported_after_the_good_events(meshbus: Meshbus, logs: Path) -> None:
    with Redex(logs, background=False) as redex:
        redex.open("sensors/lidar").append(b"what is before this is synced")
    (hot,) = logs.glob("sensors_lidar-*/_hot/*.hot")
    content = bytearray(hot.read_bytes())
    content[100] ^= 1
    hot.write_bytes(content)
    result = meshbus("log", "cat", logs, "sensors/lidar")
    assert result.code == Exit.FAILED
    assert [row["seq"] for row in result.rows] == [2, 3, 4]
    assert "were synced and are damaged" in result.err
    assert "were synced and are damaged" in meshbus("log", "ls", logs).err


def test_an_expired_range_is_an_error_with_the_first_available(meshbus: Meshbus, logs: Path) -> None:
    result = meshbus("log", "cat", logs, "sensors/lidar", "--since", 0)
    assert (result.code, result.out) == (Exit.FAILED, "")
    assert "the first available is 2" in result.err


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The folders of two nodes, as `log_dir` lays them out."""
    for node in ("robot", "base"):
        for side in ("published", "received"):
            with Redex(tmp_path / "fleet" / node / "log" / side, background=False) as redex:
                redex.open(f"{node}/{side}").append(b"x")
    with Redex(tmp_path / "fleet" / "robot" / "log" / "received", background=False) as redex:
        redex.open("robot/published").append(b"again")
    return tmp_path / "fleet"


def test_ls_works_at_any_level(meshbus: Meshbus, fleet: Path) -> None:
    every = meshbus("log", "ls", fleet)
    assert every.code == Exit.OK
    assert [(row["folder"], row["channel"]) for row in every.rows] == [
        ("base/log/published", "base/published"),
        ("base/log/received", "base/received"),
        ("robot/log/published", "robot/published"),
        ("robot/log/received", "robot/published"),
        ("robot/log/received", "robot/received"),
    ]
    one = meshbus("log", "ls", fleet / "robot" / "log")
    assert [row["folder"] for row in one.rows] == ["published", "received", "received"]
    side = meshbus("log", "ls", fleet / "robot" / "log" / "published")
    assert [(row["folder"], row["channel"]) for row in side.rows] == [(".", "robot/published")]
    (log,) = (fleet / "robot" / "log" / "published").iterdir()
    assert [row["channel"] for row in meshbus("log", "ls", log).rows] == ["robot/published"]


def test_a_terminal_shows_the_folder_where_it_is_needed(meshbus: Meshbus, fleet: Path, terminal: None) -> None:
    assert "folder" in meshbus("log", "ls", fleet).out
    assert "folder" not in meshbus("log", "ls", fleet / "base" / "log" / "published").out


def test_a_log_is_found_below_the_directory(meshbus: Meshbus, fleet: Path) -> None:
    assert [row["payload"] for row in meshbus("log", "cat", fleet, "base/received").rows] == ["x"]
    assert meshbus("log", "verify", fleet).code == Exit.OK
    assert meshbus("log", "verify", fleet, "base/received").code == Exit.OK
    assert meshbus("log", "seal", fleet / "base", "base/received").row["sealed_events"] == 1
    assert meshbus("log", "tail", fleet, "base/received", "--since", 0, "--count", 1).row["payload"] == "x"


def test_a_log_of_several_nodes_must_be_chosen(meshbus: Meshbus, fleet: Path) -> None:
    result = meshbus("log", "cat", fleet, "robot/published")
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert "robot/published has several logs" in result.err
    assert str(fleet / "robot" / "log" / "received") in result.err


def test_help_shows_where_each_command_starts(meshbus: Meshbus) -> None:
    for verb, default in (
        ("cat", "default: the oldest event"),
        ("tail", "default: only events that are appended from"),
    ):
        assert default in " ".join(meshbus("log", verb, "--help").out.replace("│", " ").split())


def test_a_schema_is_declared_beside_a_log_and_shown(meshbus: Meshbus, logs: Path) -> None:
    assert meshbus("log", "schema", logs, "sensors/lidar").rows == []
    first = meshbus("log", "schema", logs, "sensors/lidar", "--codec", "json", "--fields", "temp DOUBLE")
    assert first.rows == [{"first": 0, "codec": "json", "fields": "temp DOUBLE", "message": ""}]
    again = meshbus("log", "schema", logs, "sensors/lidar", "--codec", "json", "--fields", "temp DOUBLE")
    assert "valid there already" in again.err
    later = meshbus("log", "schema", logs, "sensors/lidar", "--codec", "utf8")
    assert [(row["first"], row["codec"]) for row in later.rows] == [(0, "json"), (7, "utf8")]
    placed = meshbus("log", "schema", logs, "sensors/lidar", "--codec", "raw", "--first", "3")
    assert [row["first"] for row in placed.rows] == [0, 3, 7]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("--codec", "xml"), "unknown codec 'xml'; choose from raw, utf8, json"),
        (("--codec", "json", "--fields", "a WHAT"), "unknown type WHAT"),
        (("--codec", "utf8", "--fields", "a INT"), "utf8 payloads have no columns"),
        (("--codec", "protobuf", "--message", "x.Y"), "protobuf payloads need"),
        (("--codec", "protobuf", "--message", "x.Y", "--descriptor", "lost"), "lost cannot be read"),
    ],
)
def test_a_schema_that_cannot_be_used_is_not_stored(
    meshbus: Meshbus, logs: Path, given: tuple[str, ...], problem: str
) -> None:
    result = meshbus("log", "schema", logs, "a", *given)
    assert result.code is not Exit.OK
    assert problem in result.err
    assert meshbus("log", "schema", logs, "a").rows == []


@pytest.fixture
def tiered(tmp_path: Path) -> Path:
    """Two segments on object storage, of which one is local too, and one that is only local."""
    root = tmp_path / "tiered"
    store = f"file://{tmp_path}/store"
    for first, tier in ((0, Tiering(store, after_s=0)), (2, Tiering(store, after_s=0, local_bytes=1 << 20)), (4, None)):
        with Redex(root, background=False) as redex:
            log = redex.open("sensors/lidar", LogConfig(tier=tier))
            log.append_batch([b"%d" % number for number in range(first, first + 2)])
            log.seal()
            log.tier()
    return root


def test_ls_shows_the_place_and_size_of_each_segment(meshbus: Meshbus, tiered: Path) -> None:
    result = meshbus("log", "ls", tiered, "--segments")
    assert (result.code, result.err) == (Exit.OK, "")
    assert [(row["first"], row["end"], row["place"]) for row in result.rows] == [
        (0, 2, "remote"),
        (2, 4, "both"),
        (4, 6, "local"),
    ]
    store = tiered.parent / "store"
    for row in result.rows:
        files = [*tiered.rglob(f"*{row['first']:020d}-*.parquet"), *store.rglob(f"*{row['first']:020d}-*.parquet")]
        assert {path.stat().st_size for path in files} == {row["bytes"]}
        assert [f"file://{path}" for path in files if path.is_relative_to(store)] == (
            [row["uri"]] if row["uri"] else []
        )
    sizes = [row["bytes"] for row in result.rows]
    row = meshbus("log", "ls", tiered).row
    assert (row["local_bytes"], row["remote_bytes"]) == (sum(sizes[1:]), sum(sizes[:2]))
    assert row["waits"] is None


def test_a_terminal_shows_both_sizes_only_with_object_storage(
    meshbus: Meshbus, tiered: Path, logs: Path, terminal: None
) -> None:
    assert "remote bytes" in meshbus("log", "ls", tiered).out
    assert "remote bytes" not in meshbus("log", "ls", logs).out
    assert "both" in meshbus("log", "ls", tiered, "--segments").out


def test_ls_shows_why_a_log_waits_for_object_storage(meshbus: Meshbus, tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    with Redex(tmp_path / "logs", background=False) as redex:
        log = redex.open("a", LogConfig(tier=Tiering(f"file://{tmp_path}/store/x", after_s=0)))
        log.append(b"x")
        log.seal()
        log.keep_tier()
        result = meshbus("log", "ls", tmp_path / "logs")
    assert result.code == Exit.OK
    assert f"a waits for object storage: cannot write file://{tmp_path}/store/x" in result.err
    assert result.row["waits"] in result.err


def test_cat_and_verify_follow_segments_to_object_storage(meshbus: Meshbus, tiered: Path) -> None:
    assert [row["payload"] for row in meshbus("log", "cat", tiered, "sensors/lidar").rows] == list("012345")
    assert meshbus("log", "verify", tiered).code == Exit.OK
    gone = next((tiered.parent / "store").rglob("*.parquet"))
    for path in (tiered.parent / "store").rglob("*.parquet"):
        path.unlink()
    assert meshbus("log", "verify", tiered).code == Exit.FAILED
    result = meshbus("log", "cat", tiered, "sensors/lidar")
    assert result.code == Exit.FAILED
    assert "is gone from object storage; restore it from a copy" in result.err
    assert gone.parent.name in result.err
