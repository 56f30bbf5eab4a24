"""One member process, led by hand, with a node of the test as its only peer."""

import json
from pathlib import Path

from meshbus.demo.member import frame, reading
from meshbus.demo.messages import ANSWER, Counts, Done, Flow, Join, Left, Line, Link, Listen, Publish, Up, Wish, pack
from meshbus.demo.process import Process
from meshbus.demo.roles import ALARMS, NOTES, POSES, write_files
from meshbus.node.node import Node


def test_a_reading_is_json_and_differs() -> None:
    rows = [json.loads(reading(number)) for number in range(100)]
    assert [row["n"] for row in rows] == list(range(100))
    assert len({(row["x"], row["y"]) for row in rows}) == 100


def test_a_frame_is_as_large_as_asked_for_and_differs() -> None:
    assert len(frame(1, 200_000)) == 200_000
    assert frame(1, 16) != frame(2, 16)


async def test_a_member_does_what_it_is_told_and_counts(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    last: list[Counts] = []

    def news(line: Line) -> bool:
        if isinstance(line, Left):
            last.append(line.counts)
        return isinstance(line, Counts | Left)

    command = ("-m", "meshbus.demo.member", str(files.config("west-guest")))
    async with (
        Node.open(psk_file=tmp_path / "mesh-key.toml", ephemeral=True) as node,
        Process("guest", *command, says=ANSWER.decode, errors=tmp_path / "err", news=news) as member,
    ):
        assert isinstance(await member.answer(), Up)
        member.tell(pack(Join((Link(node.public_key.hex(), node.address),))))
        assert await member.answer() == Done()
        node_id, publisher = node.node_id, node.publisher(POSES)
        member.tell(pack(Listen((Wish(f"{node.node_id:016x}", POSES),))))
        assert await member.answer() == Done()
        await publisher.publish_batch([b"one", b"two"])
        async with node.subscribe(NOTES, publisher=files.identities["west-guest"].node_id) as notes:
            member.tell(pack(Publish((Flow(NOTES, 50), Flow(ALARMS, 20, reliable=True)), 0.2)))
            assert await member.answer() == Done()
            received: list[bytes] = []
            while len(received) < 10:
                batch = await notes.next_batch()
                assert batch is not None
                received += batch.payloads()
        await member.leave()
    assert received == [reading(number) for number in range(10)]
    (counts,) = last
    assert (counts.published, counts.limited) == ({NOTES: 10, ALARMS: 4}, {})
    assert counts.received == {f"{node_id:016x}": {POSES: 2}}
    assert counts.edge == {}
