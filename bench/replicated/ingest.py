"""Fast ingest of JetStream (its ADR-50): many messages, and one acknowledgement for each group of them.

Every message names its batch, its number in it and an operation in its reply subject. The server acknowledges groups and
says how large they may be; the client waits while two of them are not acknowledged, which its documentation calls
optimal. nats-py has no such client, so this is the least that one needs.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

FLOW = 1000
"""Messages per acknowledgement that are asked for; the server may choose fewer."""
OUTSTANDING = 2
TIMEOUT_S = 30.0
_START, _APPEND, _COMMIT = 0, 1, 2


class FastIngest:
    """Publishes batches to one subject."""

    def __init__(self, client: Any, subject: str) -> None:
        self._client = client
        self._subject = subject

    async def publish(self, payloads: list[bytes]) -> int:
        """Publish a batch, wait until all of it is stored, and return the number of its messages."""
        inbox = self._client.new_inbox()
        acks = await self._client.subscribe(f"{inbox}.>")
        stored, flow = 0, 0
        try:
            for number, payload in enumerate(payloads, 1):
                operation = _COMMIT if number == len(payloads) else _APPEND if number > 1 else _START
                reply = f"{inbox}.{FLOW}.fail.{number}.{operation}.$FI"
                await self._client.publish(self._subject, payload, reply=reply)
                while operation != _COMMIT and number >= stored + flow * OUTSTANDING:
                    answer = await self._answer(acks)
                    stored, flow = answer["seq"], answer["msgs"]
            while (answer := await self._answer(acks)).get("type") == "ack":
                pass
            if answer.get("count") != len(payloads):
                raise RuntimeError(f"JetStream stored {answer.get('count')} of {len(payloads)} messages")
        finally:
            await acks.unsubscribe()
        return len(payloads)

    @staticmethod
    async def _answer(acks: Any) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_S):
            message = await acks.next_msg(timeout=TIMEOUT_S)
        answer: dict[str, Any] = json.loads(message.data)
        if "error" in answer or answer.get("type") == "gap":
            raise RuntimeError(f"JetStream refused a fast batch: {answer}")
        return answer
