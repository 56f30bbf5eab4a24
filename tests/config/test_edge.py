"""What can be wrong with an `[[edge]]` table is said with its place and what would be right."""

from pathlib import Path

import pytest

from meshbus.config.edge import EdgeEntry, EdgeSecurity, covers, is_prefix
from meshbus.config.node import NodeConfig
from meshbus.errors import ConfigError

IN = {"publishers": "tcp://127.0.0.1:5555", "channels_in": ["a/"]}
OUT = {"subscribers": "ipc:///run/x.sock", "channels_out": ["a/"]}


def test_a_bridge_is_a_table_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        '[[edge]]\nsubscribers = "tcp://*:5556"\nchannels_out = ["sensors/"]\nsecurity = "curve"\n'
        'curve_secret_file = "edge.key"\ncurve_clients = ["x"]\n'
    )
    (entry,) = NodeConfig.load(file, env={}).edge
    assert entry == EdgeEntry(
        subscribers="tcp://*:5556",
        channels_out=("sensors/",),
        security=EdgeSecurity.CURVE,
        curve_secret_file=tmp_path / "edge.key",
        curve_clients=("x",),
    )


@pytest.mark.parametrize(
    "table",
    [
        IN,
        OUT,
        {**IN, **OUT},
        {
            **IN,
            "channels_in": [
                "",
            ],
        },
        {**IN, "publishers": "tcp://name:1"},
        {**OUT, "channels_out": ["a/", "a/b"]},  # a plain publisher knows a/b alone
    ],
)
def test_good_ones(table: dict[str, object]) -> None:
    assert len(NodeConfig.load(env={}, edge=[table]).edge) == 1


@pytest.mark.parametrize(
    ("table", "place", "problem"),
    [
        ({}, "publishers", "neither publishers nor subscribers is set"),
        ({"publishers": "tcp://127.0.0.1:1"}, "channels_in", "required because"),
        ({"channels_out": ["a"]}, "subscribers", "required because"),
        ({**IN, "publishers": "udp://x"}, "publishers", "write it as tcp://host:port"),
        ({**IN, "publishers": "tcp://*:5555"}, "publishers", "reachable from other machines"),
        ({**IN, "publishers": "tcp://10.0.0.7:5555"}, "publishers", "reachable from other machines"),
        ({**IN, "notices": "tcp://*:5555"}, "notices", "reachable from other machines"),
        ({**IN, "channels_in": ["A/"]}, "channels_in", "upper case"),
        ({**IN, "channels_in": ["a//"]}, "channels_in", "segments cannot be empty"),
        ({**IN, "channels_in": ["a/", "a/b/"]}, "channels_in", "'a/b/' is already covered by 'a/'"),
        ({**IN, "channels_in": ["a", "a"]}, "channels_in", "'a' is already covered by 'a'"),
        ({**IN, "strip": "b/"}, "strip", "'a/' in channels_in does not begin with 'b/'"),
        ({**IN, "security": "plain"}, "passwords_file", "required because security is 'plain'"),
        (
            {**IN, "security": "curve", "curve_secret_file": "k"},
            "curve_clients",
            "required because security is 'curve'",
        ),
        ({**IN, "passwords_file": "x"}, "passwords_file", "only allowed if security is 'plain'"),
        ({**IN, "security": "none"}, "security", "one of null, plain, curve"),
    ],
)
def test_bad_ones(table: dict[str, object], place: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        NodeConfig.load(env={}, edge=[table])
    assert raised.value.key == f"edge[0].{place}"


def test_a_name_stands_for_itself_and_a_prefix_for_all_under_it() -> None:
    assert [is_prefix(text) for text in ("", "a/", "a")] == [True, True, False]
    assert covers("", "a")
    assert covers("a/", "a/b/c")
    assert covers("a", "a")
    assert not covers("a", "a/b")
    assert not covers("a/", "ab")
