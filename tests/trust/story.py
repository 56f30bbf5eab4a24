"""What happens to the secrets of a fleet, in one story that a short and a long test tell."""

from __future__ import annotations

import shutil

from meshbus.cli.exit import Exit
from meshbus.keyfile import load_identity, load_psk
from tests.cli.running import program, until
from tests.trust.applications import Publisher, Subscriber
from tests.trust.fleet import FIRST, HOLDERS, ORDERS, POSES, STATES, Fleet


class Story:
    """A fleet under load, and what its applications have seen."""

    def __init__(self, fleet: Fleet, *, pause_s: float, events: int) -> None:
        """Start with four nodes, a policy that came from one of them, and events that flow.

        Each publisher waits `pause_s` between two events; there are at least `events` of each around every change.
        """
        self.fleet = fleet
        self._pause_s, self._events = pause_s, events
        self._heard: dict[str, list[Subscriber]] = {}
        self.publishers: dict[str, Publisher] = {}
        fleet.start(*FIRST)
        fleet.apply("base", 1, ["south"])
        self._publish("base", POSES, [("east", ()), ("west", ())])
        self._publish("west", ORDERS, [("base", ()), ("east", ())])

    def _publish(self, name: str, channel: str, subscribers: list[tuple[str, tuple[str, ...]]]) -> None:
        self._heard[channel] = [self.fleet.subscribe(who, channel, *more) for who, more in subscribers]
        self.publishers[channel] = self.fleet.publish(name, channel, len(subscribers), self._pause_s)
        self.go_on()

    def go_on(self) -> None:
        """Wait until every application has said more, and look whether all sessions are secure meanwhile."""
        goals = {channel: len(one.reports) + self._events for channel, one in self.publishers.items()}

        def look() -> list[int]:
            for name in self.fleet.nodes:
                self.fleet.alive(name)
            for publisher in self.publishers.values():
                publisher.check_running()
            return [len(one.got) - goal for channel, goal in goals.items() for one in self._heard[channel]]

        until(look, lambda ahead: min(ahead) >= 0)

    # ── changes under load ──────────────────────────────────────────────────────────────────

    def join(self) -> None:
        """Let a node join by an invite, as a program of its own, and take its part."""
        fleet = self.fleet
        made = fleet.at("base", "invite", "--name", "rover", "--ttl", "10m").row
        place = fleet.folder / "rover" / "node.toml"
        joined = program("join", made["token"], made["address"], place)
        assert joined.code == Exit.OK, joined.err
        fleet.at("base", "invite", "--name", "other", "--ttl", "10m")  # keeps the listener open
        again = program("join", made["token"], made["address"], fleet.folder / "thief" / "node.toml")
        assert (again.code, "Another node has used this invite first" in again.err) == (Exit.DENIED, True)
        place.write_text(
            f'log_dir = "log"\n{place.read_text("utf-8")}\n[[channels]]\nprefix = ""\nlog = "published"\n', "utf-8"
        )
        fleet.run("rover", place)
        fleet.meet()
        fleet.wait_policy(1)
        self._heard[POSES].append(fleet.subscribe("rover", POSES, "--since", "first"))
        self._publish("rover", STATES, [("base", ())])

    def rotate_mesh_key(self) -> None:
        """Replace the mesh key at every node, end the window early, and try the old one."""
        fleet = self.fleet
        old, new = fleet.next_mesh_key()
        for name in fleet.nodes:
            fleet.at(name, "rotate", "psk", new)
            self.go_on()
        fleet.reader.psks.append(load_psk(new))
        ended = new.with_suffix(".ended")
        lines = [line for line in new.read_text("utf-8").splitlines() if not line.startswith(("previous", "until"))]
        ended.touch(mode=0o600)  # as `meshbus rotate psk` wants it
        ended.write_text("\n".join(lines) + "\n", "utf-8")
        for name in fleet.nodes:
            assert "no longer" in fleet.at(name, "rotate", "psk", ended).row["change"]
            self.go_on()
        refused = fleet.ask_as_stranger("base", old)
        assert refused.code == Exit.UNREACHABLE, refused
        until(lambda: fleet.counter("base", "drop.handshake_retired_key"), bool)
        assert fleet.ask_as_stranger("base", ended).code == Exit.OK

    def rotate_issuer(self) -> None:
        """Replace the key that issues tokens: both are trusted, the node of the new one renews, the old one goes."""
        fleet = self.fleet
        fleet.apply("base", 2, ["south", "north"])
        fleet.stop("south")
        fleet.bring_in("north")
        for name in HOLDERS:
            until(lambda name=name: fleet.token_issuer(name), lambda key: key == fleet.key("north"))  # type: ignore[misc]
        self.go_on()
        fleet.apply("east", 3, ["north"])  # at another node than before
        self.go_on()
        before = fleet.counter("west", "token.untrusted")
        assert f"{ORDERS}" in fleet.refused_subscription("west", ORDERS, issuer="south")
        until(lambda: fleet.counter("west", "token.untrusted"), lambda count: count > before)

    def rotate_identity(self) -> None:
        """Replace the key of a node that publishes, subscribes and holds a token, and try a copy of the old one."""
        fleet = self.fleet
        old = fleet.folder / "stolen.toml"
        shutil.copy(fleet.place("west", "id.toml"), old)
        fleet.at("west", "rotate", "identity", "--identity", fleet.folder / "issuer.toml")
        assert fleet.key("west") != load_identity(old).entity_id.hex()
        self.go_on()
        fleet.meet()
        before = fleet.counter("base", "refuse.revoked")
        assert fleet.ask_as(old, "base").code == Exit.UNREACHABLE
        assert fleet.counter("base", "refuse.revoked") > before

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def check(self) -> int:
        """Compare what was published with what was printed; return how many events there were."""
        total = 0
        for channel, publisher in self.publishers.items():
            published = publisher.finish()
            total += len(published)
            for one in self._heard[channel]:
                until(lambda one=one: one.got, lambda got, last=published[-1]: last in got[-1:])  # type: ignore[misc]
                assert one.got == published, f"{channel}: lost, doubled or out of order"
        fleet = self.fleet
        assert not fleet.insecure
        for name in fleet.nodes:
            assert not fleet.counter(name, "drop.insecure")
            assert not fleet.counter(name, "refuse.downgrade")
        assert fleet.reader.sealed > len(self.publishers[POSES].published)
        assert b"subprotocol:0x4d04" in fleet.reader.plain, "the reader reads what is in the clear"
        assert POSES.encode() + b"#" not in fleet.reader.plain
        assert ORDERS.encode() + b"#" not in fleet.reader.plain
        return total

    def revoke(self) -> None:
        """Revoke a publisher, a subscriber and a node, in sessions that are open; each order is given at another node."""
        fleet = self.fleet
        fleet.disobey("west")
        fleet.wait_subscribers("west", ORDERS, 2)
        east, _, rover = self._heard[POSES]
        west = fleet.subscribe("west", POSES)  # its first application has ended with the node
        fleet.wait_subscribers("base", POSES, 2)

        seen = [list(one.got) for one in self._heard[ORDERS]]
        fleet.revoke("base", "west", "--publish")
        assert fleet.say("west", ORDERS, "from a revoked publisher") == 2, "it sends, and nobody listens"
        for name in ("base", "east"):
            until(lambda name=name: fleet.counter(name, "drop.revoked_publisher"), bool)  # type: ignore[misc]
            assert "west" in fleet.alive(name)
        assert [one.got for one in self._heard[ORDERS]] == seen

        self._tell("to all", east, west, reader=rover)
        fleet.revoke("north", fleet.key("east"), "--subscribe")
        self._tell("not to east", west, reader=rover)
        fleet.revoke("east", fleet.nodes["rover"].public_key)  # a node that it has no session with
        for name in fleet.nodes.keys() - {"rover"}:
            assert "rover" not in fleet.alive(name)
        self._tell("to west only", west)
        until(lambda: fleet.counter("base", "refuse.revoked"), bool)  # it tries again
        assert "rover" not in fleet.alive("base")
        assert fleet.status("rover")["revoked"], "it says why nobody talks to it"
        assert [one.got[-1] for one in (east, rover, west)] == ["to all", "not to east", "to west only"]

    def _tell(self, text: str, *subscribers: Subscriber, reader: Subscriber | None = None) -> None:
        """Publish an event at base, which goes to these subscribers, to one that reads the log, and to no others."""
        assert self.fleet.say("base", POSES, text) == len(subscribers)
        for one in (*subscribers, reader) if reader else subscribers:
            until(lambda one=one: one.got[-1:], lambda last: last == [text])  # type: ignore[misc]
