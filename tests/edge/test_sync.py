import inspect
import threading
from collections.abc import Mapping
from contextlib import suppress

import pytest

from meshbus import edge
from meshbus.edge.endpoint import Endpoint
from meshbus.edge.sync import Pub, Sub, XPub, XSub
from meshbus.errors import ConfigError, Timeout
from tests.patience import PATIENCE_S
from tests.twins import differences


def test_publish_and_receive_without_await() -> None:
    with Pub() as pub, Sub() as sub:
        address = pub.bind("tcp://127.0.0.1:*")
        sub.subscribe("a")
        sub.connect(address, timeout_s=PATIENCE_S)
        pub.wait_subscribed("a", timeout_s=PATIENCE_S)
        assert pub.publish("a", b"1") == 1
        assert pub.publish_batch([("a", b"2"), ("b", b"no"), ("a", b"3")]) == 2
        pub.flush(timeout_s=PATIENCE_S)
        assert [sub.receive(PATIENCE_S)[1] for _ in range(3)] == [b"1", b"2", b"3"]
        sub.unsubscribe("a")
        with pytest.raises(Timeout):
            sub.receive(timeout_s=0.01)
        assert [info.peer_type for info in pub.connections] == ["SUB"]
        assert sub.counters["message"] == {"received": 3}
        assert pub.stats.published == 4
        sub.disconnect(address)
        assert sub.connections == []


def test_messages_come_in_batches_or_one_by_one() -> None:
    with Pub() as pub, Sub() as sub:
        sub.subscribe()
        sub.connect(pub.bind("tcp://127.0.0.1:*"), timeout_s=PATIENCE_S)
        pub.wait_subscribed("x", timeout_s=PATIENCE_S)
        pub.publish_batch([(b"%d" % number,) for number in range(100)])
        first = sub.receive(PATIENCE_S)
        rest = list[tuple[bytes, ...]]()
        while len(rest) < 50:
            rest += sub.receive_batch(PATIENCE_S)
        for message in sub if len(rest) < 99 else ():
            rest.append(message)
            if len(rest) == 99:
                break
        assert [first, *rest] == [(b"%d" % number,) for number in range(100)]


def test_no_message_is_lost_when_the_reader_times_out() -> None:
    sent, got = 1500, list[bytes]()
    with Pub(high_water=0) as pub, Sub() as sub:
        sub.subscribe()
        sub.connect(pub.bind("tcp://127.0.0.1:*"), timeout_s=PATIENCE_S)
        pub.wait_subscribed("x", timeout_s=PATIENCE_S)
        publishing = threading.Thread(target=lambda: [pub.publish(b"%d" % number) for number in range(sent)])
        publishing.start()
        while publishing.is_alive() or sub.pending:
            with suppress(Timeout):
                got += sub.receive(timeout_s=0.0002)
        publishing.join()
        with suppress(Timeout):
            while True:
                got += sub.receive(timeout_s=0.5)
    assert got == [b"%d" % number for number in range(sent)]


def test_subscriptions_and_upstream_messages_arrive_without_await() -> None:
    with XPub() as pub, XSub() as sub:
        sub.subscribe("a")
        sub.connect(pub.bind("tcp://127.0.0.1:*"), timeout_s=PATIENCE_S)
        assert pub.next_event(PATIENCE_S) == edge.Interest(b"a", subscribe=True)
        assert sub.send(b"hello") == 1
        assert pub.next_event(PATIENCE_S) == edge.Upstream((b"hello",))
        assert pub.publish("a", b"1") == 1
        assert sub.receive(PATIENCE_S) == (b"a", b"1")
        with pytest.raises(Timeout):
            pub.next_event(timeout_s=0.01)
        sub.unsubscribe("a")
        assert next(pub.events()) == edge.Interest(b"a", subscribe=False)
        pub.close()
        assert list(pub.events()) == []
        with pytest.raises(RuntimeError, match="closed"):
            pub.next_event()


def test_closing_ends_the_thread() -> None:
    pub = Pub()
    assert "meshbus" in names_of_threads()
    pub.close()
    pub.close()
    with pytest.raises(RuntimeError, match="closed"):
        pub.publish("x")
    with pytest.raises(TypeError):
        Sub(no_such_option=True)  # type: ignore[call-arg]
    with Pub() as open_pub, pytest.raises(ConfigError):
        open_pub.bind("nowhere")
    assert "meshbus" not in names_of_threads()


def test_a_reader_ends_when_the_endpoint_is_closed() -> None:
    with Sub() as sub:
        sub.subscribe()
        read: list[object] = []
        reader = threading.Thread(target=lambda: read.extend([*sub, sub.receive_batch()]))
        reader.start()
        sub.close()
        reader.join(PATIENCE_S)
        assert read == [[]]
        with pytest.raises(RuntimeError, match="closed"):
            sub.receive()


def test_the_twins_have_the_signatures_and_docstrings_of_the_originals() -> None:
    endpoint = {name for name in dir(Endpoint) if name.startswith("on_")} | {"socket_type"}
    endpoint |= {"default_message_bytes", "max_control_bytes"}
    missing = {f"{name} is missing" for name in endpoint}
    received = {"receive": ("timeout_s",), "receive_batch": ("timeout_s",)}
    heard = {"next_event": ("timeout_s",)}
    twins: tuple[tuple[type, type, Mapping[str, tuple[str, ...]]], ...] = (
        (edge.Pub, Pub, {}),
        (edge.XPub, XPub, heard),
        (edge.Sub, Sub, received),
        (edge.XSub, XSub, received),
    )
    for original, twin, also in twins:
        found = set(differences(original, twin, {**also, "close": ()}))
        assert {line for line in found if not line.startswith("close says")} == missing
        assert inspect.getdoc(original) == inspect.getdoc(twin)
        assert inspect.signature(original) == inspect.signature(twin)


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]
