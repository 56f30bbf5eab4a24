"""A mesh of prepared answers, for verbs that show what a node says."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from meshbus.cli.options import MeshOptions

WHO = {"node_id": "00000000000000ff", "name": "hub"}
CHANNEL = {
    "channel": "sensors/lidar",
    "published": True,
    "subscribers": 2,
    "subscribed": True,
    "publishers": [WHO],
    "published_events": 10,
    "published_bytes": 100,
    "received_events": None,
    "received_bytes": None,
}
STATUS = {
    "node_id": "0000000000000001",
    "name": "leaf",
    "address": "127.0.0.1:9000",
    "subnet": "3.7",
    "uptime_s": 12.5,
    "peers": 2,
}
PEER = {**WHO, "address": "127.0.0.1:9001", "health": "healthy", "path": "direct", "subnet": "global"}
AWAY = {
    **WHO,
    "name": None,
    "address": "127.0.0.1:9",
    "health": "waiting",
    "next_try_s": 3.0,
    "last_error": "no answer",
}
COUNTERS = {
    "drop": {"bad_tag": 3},
    "received": {"events": 5, "bytes": 50},
    "sent": {"events": 7, "bytes": 70},
    "relay": {"inside": 1},
}


class PreparedMesh:
    """Answers each question with the next of its prepared answers, the last one for ever; an exception is raised."""

    def __init__(self, **answers: list[Any]) -> None:
        usual: dict[str, list[Any]] = {
            "status": [STATUS],
            "peers": [[PEER]],
            "channels": [[CHANNEL]],
            "counters": [COUNTERS],
        }
        self._answers: dict[str, list[Any]] = {**usual, **answers}
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def answer(*arguments: Any, **options: Any) -> Any:
            self.asked.append((name, arguments, options))
            answers = self._answers[name]
            found = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(found, Exception):
                raise found
            return found

        return answer

    def use(self, monkeypatch: pytest.MonkeyPatch) -> "PreparedMesh":
        """Let verbs reach this mesh."""

        @asynccontextmanager
        async def open_mesh(options: MeshOptions | None, **_: object) -> AsyncIterator[Any]:
            yield cast("Any", self)

        monkeypatch.setattr("meshbus.cli.reach.open_mesh", open_mesh)
        return self
