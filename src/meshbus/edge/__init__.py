"""ZeroMQ endpoints (PUB, SUB, XPUB, XSUB) and the bridge between their topics and the channels of a node."""

from meshbus.edge.dialer import Backoff
from meshbus.edge.pub import Pub, Verbosity, XPub
from meshbus.edge.security import (
    CurveClient,
    CurveServer,
    Null,
    PlainClient,
    PlainServer,
    anyone,
    curve_keypair,
    known_keys,
    passwords,
)
from meshbus.edge.sub import Sub, XSub
from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.mechanism import Credentials, Verdict
from meshbus.edge.zmtp.protocol import Heartbeat, Interest, Upstream

__all__ = [
    "Backoff",
    "CloseReason",
    "Credentials",
    "CurveClient",
    "CurveServer",
    "Heartbeat",
    "Interest",
    "Null",
    "PlainClient",
    "PlainServer",
    "Pub",
    "Sub",
    "Upstream",
    "Verbosity",
    "Verdict",
    "XPub",
    "XSub",
    "anyone",
    "curve_keypair",
    "known_keys",
    "passwords",
]
