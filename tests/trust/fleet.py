"""A fleet of nodes that are `meshbus up` in processes of their own, each in a folder as on a machine of its own.

    base ── east ── west      everybody is connected with everybody; the path of west to base leads through a tap
      └──── south             south has the identity that issues tokens

What operators do is done by verbs. Every node has a copy of the mesh key and of the policy of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_identity, create_psk, format_tokens, load_identity, load_psk, load_tokens
from meshbus.names.identity import noise_public_key
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.cli.conftest import Meshbus, Result
from tests.cli.running import SCRIPT, Running, program, started, until
from tests.eavesdrop import End
from tests.interop.reader import Reader
from tests.interop.tap import Tap
from tests.patience import PATIENCE_S
from tests.ports import free_udp_ports
from tests.trust.applications import Publisher, Subscriber, publishing, subscribing

NAMES = ("base", "east", "west", "south", "north")
FIRST = NAMES[:4]
"""Those that run from the beginning; north comes later."""
POSES, ORDERS, STATES = "poses/base", "orders/west", "states/rover"
"""Channels by their publisher. Orders need a token, also to publish them."""
HOLDERS = ("base", "east", "west")
"""Nodes with a token for orders."""
TOKEN_S, ELAPSED_S = 3600, 2500
"""Tokens were issued so long ago that they are to be renewed as soon as somebody can, and have long to go."""


class Fleet:
    """The nodes, the applications and the operator of one test."""

    def __init__(self, folder: Path, meshbus: Meshbus, stack: ExitStack) -> None:
        self.folder, self._meshbus, self._stack = folder, meshbus, stack
        self._addresses = dict(zip(NAMES, (f"127.0.0.1:{port}" for port in free_udp_ports(len(NAMES))), strict=True))
        self.nodes: dict[str, Running] = {}
        self.insecure: list[dict[str, Any]] = []
        """Sessions that somebody saw without keys of their own."""
        self.issuer = create_identity(folder / "issuer.toml").entity_id.hex()
        create_psk(folder / "mesh.key")
        for name in NAMES:
            (folder / name).mkdir()
            create_identity(self.place(name, "id.toml"))
            (folder / name / "policy.toml").write_text("# nothing is restricted\n", "utf-8")
        self.reader = stack.enter_context(self._tapped("west", "base"))
        for name in FIRST:
            shutil.copy(folder / "mesh.key", self.place(name, "mesh.key"))
            self._write_settings(name)
        for name in HOLDERS:
            self.write_token(self.place(name, "own.token"), self.key(name), "south")

    def place(self, name: str, file: str) -> Path:
        """Return where a node has one of its files."""
        return self.folder / name / file

    def key(self, name: str) -> str:
        return load_identity(self.place(name, "id.toml")).entity_id.hex()

    # ── nodes ───────────────────────────────────────────────────────────────────────────────

    def start(self, *names: str) -> None:
        """Start nodes, and wait until everybody knows everybody."""
        for name in names:
            self.run(name, self.place(name, "node.toml"))
        self.meet()

    def run(self, name: str, config: Path) -> None:
        """Start a node with its configuration."""
        command: list[str | Path] = [SCRIPT, "up", config, "--admin", config.parent / "run" / "admin.sock"]
        self.nodes[name] = self._stack.enter_context(started(command))

    def stop(self, name: str) -> None:
        assert self.nodes.pop(name).stop()[0] == 0

    def bring_in(self, name: str) -> None:
        """Add a node that has the mesh key in force and no policy yet, by hand."""
        shutil.copy(self.place("base", "mesh.key"), self.place(name, "mesh.key"))
        self._write_settings(name)
        self.start(name)

    def disobey(self, name: str) -> None:
        """Start a node again as a thief would: without anybody who could give it orders."""
        self.stop(name)
        lines = self.settings(name).splitlines()
        kept = [line for line in lines if not line.startswith(("policy_file", "policy_issuers"))]
        self.place(name, "node.toml").write_text("\n".join(kept), "utf-8")
        self.start(name)

    def meet(self) -> None:
        """Wait until everybody has a session with everybody; rover has one with base only."""
        for name in self.nodes:
            others = self.nodes.keys() - {name, "rover"} if name != "rover" else {"base"}
            until(lambda name=name: self.alive(name), lambda found, others=others: found >= others)  # type: ignore[misc]

    def alive(self, name: str) -> set[str]:
        """Return the names of those that a node has a session with; note those that are not secure."""
        rows = [row for row in self.at(name, "peers").rows if row["health"] == "alive"]
        self.insecure += [row for row in rows if row["profile"] and not row["secure"]]
        return {row["name"] for row in rows}

    def status(self, name: str) -> dict[str, Any]:
        """Return what a node says about itself, also if it says that something is wrong."""
        return self._meshbus("status", "--admin", self.nodes[name].admin).row

    def counter(self, name: str, counter: str) -> int:
        return sum(row["count"] for row in self.at(name, "counters").rows if row["counter"] == counter)

    def _write_settings(self, name: str) -> None:
        (self.folder / name / "node.toml").write_text(self.settings(name), "utf-8")

    def settings(self, name: str) -> str:
        """Return the settings of a node; it connects to those before it."""
        text = (
            f'name = "{name}"\nbind = "{self._addresses[name]}"\nidentity = "id.toml"\npsk_file = "mesh.key"\n'
            f'secure = "require"\nlog_dir = "log"\npolicy_file = "policy.toml"\npolicy_issuers = ["{self.issuer}"]\n'
            "handshake_timeout_s = 0.5\nheartbeat_s = 0.5\nsession_timeout_s = 30\n"
        )
        text += {
            "base": 'issuer_key = "../issuer.toml"\n',
            "north": f'renew_tokens_s = {TOKEN_S}\nrenew_issuers = ["{self.key("south")}"]\n',
        }.get(name, "")
        text += 'tokens = ["own.token"]\n' if name in HOLDERS else ""
        text += '[[channels]]\nprefix = ""\nlog = "published"\n'
        for other in NAMES[: NAMES.index(name)]:
            if other != "south" or name != "north":  # that one has gone when north comes
                address = self._tap_address if (name, other) == ("west", "base") else self._addresses[other]
                text += f'[[peers]]\naddress = "{address}"\npublic_key = "{self.key(other)}"\n'
        return text

    def write_token(self, place: Path, subject: str, issuer: str) -> None:
        token = PermissionToken.issue(
            load_identity(self.place(issuer, "id.toml")),
            bytes.fromhex(subject),
            Scope.PUBLISH | Scope.SUBSCRIBE | Scope.RENEWABLE,
            ORDERS,
            ttl_s=TOKEN_S,
            now=time.time() - ELAPSED_S,  # noqa: TID251 - as the command that issues tokens does
            entropy=os.urandom,
        )
        place.write_text(format_tokens((token,)), "utf-8")

    # ── the operator ────────────────────────────────────────────────────────────────────────

    def at(self, name: str, *arguments: object) -> Result:
        """Run a verb at a node, which must succeed."""
        done = self._meshbus(*arguments, "--admin", self.nodes[name].admin)
        assert done.code == 0, done.err
        return done

    def next_mesh_key(self) -> tuple[Path, Path]:
        """Make the next mesh key, and return where the present one and the next one are."""
        number = len(list(self.folder.glob("*.old.key")))
        old, new = self.folder / f"{number}.old.key", self.folder / f"{number}.new.key"
        shutil.copy(self.place("base", "mesh.key"), old)
        made = self._meshbus("key", "psk", new, "--after", old, "--window", "24h")
        assert made.code == 0, made.err
        return old, new

    def ask_as_stranger(self, name: str, mesh_key: Path) -> Result:
        """Ping a node as somebody whom nobody knows, with a mesh key."""
        return self._ask(name, mesh_key, "ephemeral=true")

    def ask_as(self, identity: Path, name: str) -> Result:
        """Ping a node with the identity of somebody and the mesh key in force."""
        return self._ask(name, self.place(name, "mesh.key"), f"identity={identity}")

    def _ask(self, name: str, mesh_key: Path, who: str) -> Result:
        return program(
            "ping", "--count", "1", "--connect", self._addresses[name], "--public-key", self.key(name),
            "--set", f"psk_file={mesh_key}", "--set", who, "--set", "handshake_timeout_s=0.5",
        )  # fmt: skip

    def refused_subscription(self, name: str, channel: str, *, issuer: str) -> str:
        """Subscribe as a newcomer with a token of an issuer; return what the program says about the refusal."""
        folder = self.folder / "latecomer"
        folder.mkdir()
        subject = create_identity(folder / "id.toml").entity_id.hex()
        self.write_token(folder / "own.token", subject, issuer)
        shutil.copy(self.place(name, "mesh.key"), folder / "mesh.key")
        (folder / "node.toml").write_text(
            'identity = "id.toml"\npsk_file = "mesh.key"\nsecure = "require"\ntokens = ["own.token"]\nadmin_socket = ""\n',
            "utf-8",
        )
        done = program(
            "sub", channel, "--config", folder / "node.toml", "--connect", self._addresses[name],
            "--public-key", self.key(name),
        )  # fmt: skip
        assert done.code == Exit.DENIED, done
        return done.err

    def token_issuer(self, name: str) -> str:
        """Return who has issued the token that is stored at a node."""
        return load_tokens(self.place(name, "own.token"))[0].issuer.hex()

    def apply(self, name: str, version: int, issuers: Sequence[str]) -> None:
        """Sign a policy, apply it at one node, and wait until all have it."""
        plain, signed = self.folder / f"policy{version}.toml", self.folder / f"signed{version}.toml"
        keys = ", ".join(f'"{self.key(issuer)}"' for issuer in issuers)
        plain.write_text(
            f'unlisted_channels = "open"\ntrusted_issuers = [{keys}]\n[[channels]]\nname = "{ORDERS}"\nrequire_token = true\n',
            "utf-8",
        )
        issuer = self.folder / "issuer.toml"
        made = self._meshbus("policy", "sign", plain, "--as-version", version, "--identity", issuer, "--out", signed)
        assert made.code == 0, made.err
        self.at(name, "policy", "apply", signed)
        self.wait_policy(version)

    def wait_policy(self, version: int) -> None:
        """Wait until every node has a policy."""

        def versions() -> set[object]:
            return {self.at(name, "policy", "show").row["version"] for name in self.nodes}

        until(versions, lambda found: found == {version})

    def revoke(self, name: str, *arguments: str) -> None:
        """Give an order at one node, and wait until all others know it."""
        before = len(self.at(name, "revoke", "ls").rows)
        given = ("--reason", "stolen", "--identity", self.folder / "issuer.toml")
        assert self.at(name, "revoke", *arguments, *given).row["new"]
        for other in self.nodes.keys() - {"rover", "west"}:
            until(lambda other=other: self.at(other, "revoke", "ls").rows, lambda rows: len(rows) == before + 1)  # type: ignore[misc]

    # ── applications ────────────────────────────────────────────────────────────────────────

    def subscribe(self, name: str, channel: str, *arguments: str) -> Subscriber:
        return self._stack.enter_context(subscribing(self.nodes[name].admin, channel, *arguments))

    def publish(self, name: str, channel: str, subscribers: int, pause_s: float) -> Publisher:
        """Begin to publish when a channel has its subscribers."""
        self.wait_subscribers(name, channel, subscribers)
        return self._stack.enter_context(publishing(self.nodes[name].admin, channel, pause_s))

    def wait_subscribers(self, name: str, channel: str, subscribers: int) -> None:
        until(
            lambda: [row["subscribers"] for row in self.at(name, "channels", channel).rows],
            lambda found: found == [subscribers],
        )

    def say(self, name: str, channel: str, text: str) -> int:
        """Publish one event, and return to how many it was sent."""
        row = self._meshbus("pub", channel, text, "--reliable", "--wait", "0", "--admin", self.nodes[name].admin).row
        return int(row["delivered"])

    # ── on the path ─────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _tapped(self, near: str, far: str) -> Iterator[Reader]:
        """Stand between two nodes, with a loop of its own, and read with the mesh key in hand."""
        loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def stand() -> None:
            with Tap(self._addresses[near], self._addresses[far]) as tap:
                ends = (load_identity(self.place(name, "id.toml")) for name in (near, far))
                psks = [load_psk(self.folder / "mesh.key")]
                self.reader = Reader(tap, psks, *(End(one.node_id, noise_public_key(one.entity_id)) for one in ends))
                self._tap_address = tap.peer_address
                ready.set()
                await stopped.wait()

        stopped = asyncio.Event()
        thread = threading.Thread(target=loop.run_until_complete, args=(stand(),), daemon=True)
        thread.start()
        assert ready.wait(PATIENCE_S)
        try:
            yield self.reader
        finally:
            loop.call_soon_threadsafe(stopped.set)
            thread.join(PATIENCE_S)
            loop.close()
