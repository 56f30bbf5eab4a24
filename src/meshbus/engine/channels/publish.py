"""Publish plans and reports: which subscribers get a publish, with which headers, and how its outcome is reported.

There is no multicast: a publish is one unicast, a *leg*, per subscriber (policy.md §5.2). This file sends nothing:

    Planner             checks that this node may publish and that the channel is within its rate, and makes a
                        `PublishPlan`: the subscribers, and the fields of the packet headers
    Publications        in engine/channels/publication.py: packs the events and starts the legs; each leg is sent through
                        engine/streams/traffic.py of its peer
    Fanout              counts the legs of one publish, and limits how many run at once
    settle              turns the outcomes of the legs into a `PublishReport` or an error

Delivered means handed to the socket. If a reliable stream fails later, a `StreamFailed` notice reports it. A subscriber
that policy excludes is *filtered*: it is not attempted and is not an error, but the report names it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.engine.channels.admission import Admission
from meshbus.engine.channels.authorize import MUTED
from meshbus.errors import (
    AuthError,
    AuthFault,
    ChannelError,
    ChannelFault,
    ConfigError,
    LocalProtocolError,
    MeshError,
    PartialDelivery,
)
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.channels import ChannelConfig, LargeEvents, Visibility
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason
from meshbus.wire.constants import DEFAULT_LARGE_EVENT, MAX_EVENT, MAX_LARGE_EVENT, MAX_PAYLOAD, Flags
from meshbus.wire.header import Header

LONGEST_DELAY_MS = 10_000.0
"""The longest delay of `send`. Our choice: beyond it, something else is meant than to send events together."""
MAX_INFLIGHT = 32
"""Default limit of legs that run at once (policy.md §10)."""
WAIT_S = 5.0
"""Default time that a leg waits for credit. Our choice: as long as a subscriber waits for an Ack (policy.md §4.3)."""
SEND_BYTES = 4 << 20
"""Default limit of the bytes that wait after `send`. Our choice: several windows of a stream, and about 60 000 small
events."""
MAX_PLANS = 4096
"""Plans kept; at this number all are dropped and made again as needed. Our choice."""
MAX_RATES = 65_536
"""Channels whose rate limit has state. Our choice; a prefix configuration may cover any number of channels."""

_RELIABLE = int(Flags.RELIABLE)
_PRIORITY = int(Flags.PRIORITY)


BOUNDS = (
    Bound(
        name="plans",
        what="prepared publishes",
        by=By.USER,
        per_node=MAX_PLANS,
        full="all are made again",
        counter=forgotten("plans"),
    ),
    Bound(
        name="publish_rates",
        what="channels with a publish rate",
        by=By.USER,
        per_node=MAX_RATES,
        full="the oldest goes",
        counter=forgotten("publish_rates"),
    ),
)


class Reliability(StrEnum):
    """What happens to lost packets."""

    FIRE_AND_FORGET = "fire-and-forget"
    RELIABLE = "reliable"
    """Lost packets are sent again until they are acknowledged, if the peer negotiated 0x4D01."""


class OnFailure(StrEnum):
    """What a failed leg means for a publish (policy.md §5.2)."""

    BEST_EFFORT = "best-effort"
    """Raise an error only if every attempted peer failed."""
    FAIL_FAST = "fail-fast"
    """Try one peer after the other, stop at the first failure, and return a report."""
    COLLECT = "collect"
    """Try all peers and return a report."""


class WhenSendFull(StrEnum):
    """What `send` does with an event for which there is no room."""

    FAIL = "fail"
    """Raise Backpressure."""
    DROP_OLDEST = "drop_oldest"
    """Drop the events that have waited longest, and take the new one."""
    DROP_NEWEST = "drop_newest"
    """Drop the new event."""


class PublishConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a publisher."""

    reliable: bool | None = None
    """Whether to send lost packets again; None means the default of the channel."""
    reliability: Reliability | None = None
    """The same as `reliable`, by name."""
    on_failure: OnFailure = OnFailure.BEST_EFFORT
    max_inflight: int = MAX_INFLIGHT
    """Legs that may run at once; values below 1 count as 1."""
    wait_s: float = WAIT_S
    """Seconds that a leg waits for credit before it fails with Backpressure; 0 means that it does not wait.

    Counted from the last packet sent, so that a large batch may take longer as long as it makes progress.
    """
    max_delay_ms: float = 0.0
    """How long events of `send` wait for more, in milliseconds; 0 means until the loop iterates."""
    max_bytes: int = SEND_BYTES
    """Bytes of events that may wait after `send`, with four for each event."""
    when_full: WhenSendFull = WhenSendFull.FAIL
    """What `send` does beyond `max_bytes`."""

    def __post_init__(self) -> None:
        on_failure = _member(OnFailure, "on_failure", self.on_failure)
        reliable = self.reliable
        if self.reliability is not None:
            named = _member(Reliability, "reliability", self.reliability) is Reliability.RELIABLE
            if reliable not in {None, named}:
                raise ConfigError(
                    "reliability", f"{self.reliability!r} contradicts reliable={reliable}; give only one of them"
                )
            reliable = named
        if not self.wait_s >= 0:
            raise ConfigError("wait_s", f"must be 0 or more seconds, got {self.wait_s}")
        if not 0 <= self.max_delay_ms <= LONGEST_DELAY_MS:
            raise ConfigError(
                "max_delay_ms", f"must be from 0 to {LONGEST_DELAY_MS} milliseconds, got {self.max_delay_ms}"
            )
        if self.max_bytes <= MAX_PAYLOAD:
            problem = f"must be more than {MAX_PAYLOAD}, the longest event with its prefix, got {self.max_bytes}"
            raise ConfigError("max_bytes", problem)
        # Normalize both spellings, so that the rest of the code reads `reliable` only.
        settle_field = msgspec.structs.force_setattr
        settle_field(self, "on_failure", on_failure)
        settle_field(self, "when_full", _member(WhenSendFull, "when_full", self.when_full))
        settle_field(self, "reliable", reliable)
        settle_field(self, "reliability", _RELIABILITY[reliable])
        settle_field(self, "max_inflight", max(self.max_inflight, 1))


_RELIABILITY = {None: None, True: Reliability.RELIABLE, False: Reliability.FIRE_AND_FORGET}


class LegError(NamedTuple):
    """Why a publish failed for one peer."""

    node_id: int
    """The peer; 0 if this node itself refused events of `send`."""
    code: str
    """Error code, as listed in docs/errors.md."""
    message: str


class PublishReport(msgspec.Struct, frozen=True):
    """The outcome of one publish, or of all that `flush` waited for."""

    attempted: int
    """Subscribers that the events were for."""
    delivered: int
    """Subscribers to which everything was sent: handed to the socket. Whether it arrived is in `acknowledged`."""
    errors: tuple[LegError, ...] = ()
    filtered: tuple[tuple[int, str], ...] = ()
    """Subscribers that policy excluded, each with its reason: `not_visible`, `not_authorized` or `token`."""
    acknowledged: int | None = None
    """Subscribers that confirmed receipt. None if unknown: `publish` does not wait for it, and on best-effort streams
    nothing is confirmed."""
    log_seq: int | None = None
    """Sequence of the first event in this node's log, where subscribers can read it later; None if it is not logged."""
    unsent: int = 0
    """After `flush`: events of `send` that since the last flush were dropped, or failed for a subscriber."""
    replicated: str | None = None
    """On a replicated channel, whose leader sends to the subscribers: on how many disks the events are, `majority` or
    `local`, or `unconfirmed` if the leader that stored them has lost the majority. None on other channels."""

    @property
    def sent(self) -> int:
        """The same as `delivered`."""
        return self.delivered

    @property
    def all_delivered(self) -> bool:
        """Whether every attempted peer got it; also true if there was none (policy.md §5.2)."""
        return self.delivered == self.attempted and not self.errors

    @property
    def is_empty(self) -> bool:
        """Whether there was no peer to send to."""
        return self.attempted == 0


class PublishPlan(msgspec.Struct, frozen=True):
    """Which subscribers get a publish, and with which header fields."""

    channel: ChannelName
    canonical: int
    """The 64-bit hash of the channel name."""
    legs: tuple[int, ...]
    """Node ids of the subscribers, one unicast each."""
    filtered: tuple[tuple[int, str], ...] = ()
    reliable: bool = False
    priority: int = 0
    max_rate_pps: int | None = None
    """The rate limit of the channel; `Planner.plan` has already applied it."""

    @property
    def stream_id(self) -> int:
        """The stream that carries the packets (policy.md §1.2)."""
        return self.canonical | PUBLISH_STREAM_BIT

    def header(self, *, origin_hash: int, subnet_id: int = 0, hop_ttl: int = 0) -> Header:
        """Return the header that all packets of the publish share."""
        flags = (_RELIABLE if self.reliable else 0) | (_PRIORITY if self.priority else 0)
        return Header(
            flags=flags,
            priority=self.priority,
            hop_ttl=hop_ttl,
            # policy.md §1.2: only the wire hash is in the header; the stream id carries the rest.
            channel_hash=self.canonical & 0xFFFF,
            stream_id=self.stream_id,
            origin_hash=origin_hash,
            subnet_id=subnet_id,
        )


class Planner:
    """Makes publish plans, and enforces the rate limits of channels.

    On a channel that is open, globally visible and without queue groups, every publish goes to the same peers until
    the roster or the configuration changes. Such a plan is kept.
    """

    def __init__(self, admission: Admission, counters: Counters) -> None:
        self._admission = admission
        self._counters = counters
        self._rates: BoundedMap[ChannelName, TokenBucket] = BoundedMap(MAX_RATES, counters.forgetting("publish_rates"))
        self._known: dict[tuple[ChannelName, bool | None], PublishPlan] = {}
        self._stamp: tuple[object, ...] = ()
        """The versions of all state that the kept plans depend on."""

    def plan(  # hot: bench_publish
        self, channel: ChannelName, config: PublishConfig, now: float, *, packets: int = 1
    ) -> PublishPlan:
        """Return the plan of a publish that takes `packets` packets for each subscriber.

        Raises AuthError if this node may not publish on the channel, and ChannelError if the packets exceed the rate
        limit of the channel. In both cases nothing may be sent.
        """
        admission = self._admission
        authorizer = admission.authorizer
        registry = authorizer.registry
        version = 0 if registry is None else registry.version
        default, revoked = authorizer.default_visibility, authorizer.revocations.version
        stamp = admission.roster.version, admission.guard.version, registry, version, default, revoked
        if stamp != self._stamp:
            self._known.clear()
            self._stamp = stamp
        plan = self._known.get((channel, config.reliable))
        if plan is None:
            plan = self._make(channel, config, now)
        if plan.max_rate_pps is not None:
            # policy.md §5.3: the rate counts packets sent, one per recipient.
            self._take_rate(channel, plan.max_rate_pps, len(plan.legs) * packets, now)
        return plan

    def carry_large(self, channel: ChannelName, config: PublishConfig, longest: int) -> PublishConfig:
        """Return how to publish events of which the longest does not fit a packet: always reliably.

        Raises LocalProtocolError if the channel does not carry events of this size.
        """
        policy = self._admission.authorizer.config_of(channel)
        most = DEFAULT_LARGE_EVENT if policy is None else policy.max_event_bytes
        if longest > most:
            remedy = (
                f"raise it for the channel, up to {MAX_LARGE_EVENT}, at its subscribers too"
                if longest <= MAX_LARGE_EVENT
                else "split the event"
            )
            problem = (
                f"an event of {longest} bytes is too large for {str(channel)!r}: max_event_bytes is {most}; {remedy}"
            )
            raise LocalProtocolError(problem)
        default = False if policy is None else policy.reliable
        reliable = default if config.reliable is None else config.reliable
        if not reliable and policy is not None and policy.large is LargeEvents.REFUSE:
            problem = (
                f"an event of {longest} bytes does not fit one packet of {MAX_EVENT}, and {str(channel)!r} is not reliable;"
                ' publish with reliable=True, or set large = "reliable" for the channel'
            )
            raise LocalProtocolError(problem)
        return config if reliable else msgspec.structs.replace(config, reliable=True, reliability=None)

    def narrow(self, plan: PublishPlan, now: float) -> PublishPlan:
        """Return a plan that was made earlier, without the subscribers that lost their permission since."""
        policy = self._admission.authorizer.config_of(plan.channel)
        verdicts = [
            (node_id, self._admission.filter(node_id, plan.channel, plan.canonical, policy, now))
            for node_id in plan.legs
        ]
        late = tuple((node_id, reason.why) for node_id, reason in verdicts if reason is not None)
        if not late:
            return plan
        for _, reason in verdicts:
            if reason is not None:
                self._counters.count(reason)
        legs = tuple(node_id for node_id, reason in verdicts if reason is None)
        return msgspec.structs.replace(plan, legs=legs, filtered=(*plan.filtered, *late))

    def _make(self, channel: ChannelName, config: PublishConfig, now: float) -> PublishPlan:
        admission, authorizer = self._admission, self._admission.authorizer
        policy = authorizer.config_of(channel)
        if authorizer.muted:
            self._counters.count(Reason.REFUSE_PUBLISH_DENIED)
            raise AuthError(AuthFault.DENIED, f"this node may not publish on {str(channel)!r}: {MUTED}")
        # policy.md §5.2: a publisher must satisfy the policy of its own channel, or nothing is sent.
        if policy is not None and not policy.is_open and not authorizer.can_publish_locally(channel, now):
            self._counters.count(Reason.REFUSE_PUBLISH_DENIED)
            raise AuthError(AuthFault.DENIED, _denial(channel, policy))
        canonical = channel.hash
        filtered: list[tuple[int, str]] = []

        def allows(node_id: int) -> bool:
            reason = admission.filter(node_id, channel, canonical, policy, now)
            if reason is None:
                return True
            self._counters.count(reason)
            filtered.append((node_id, reason.why))
            return False

        # policy.md §5.2: peers that are left out are neither attempted nor errors.
        legs = tuple(admission.roster.dispatch(channel, allows))
        default = False if policy is None else policy.reliable
        plan = PublishPlan(
            channel=channel,
            canonical=canonical,
            legs=legs,
            filtered=tuple(filtered),
            reliable=default if config.reliable is None else config.reliable,
            priority=0 if policy is None else policy.priority,
            max_rate_pps=None if policy is None else policy.max_rate_pps,
        )
        if self._stays(channel, policy) and not filtered:
            if len(self._known) >= MAX_PLANS:
                self._counters.add("forget", "plans", len(self._known))
                self._known.clear()
            self._known[channel, config.reliable] = plan
        return plan

    def _stays(self, channel: ChannelName, policy: ChannelConfig | None) -> bool:
        """Return whether a plan depends only on versioned state: not on time, the claims of peers, or group turns."""
        visibility = self._admission.authorizer.default_visibility if policy is None else policy.visibility
        return (
            visibility is Visibility.GLOBAL
            and (policy is None or policy.is_open)
            and not self._admission.roster.has_groups(channel)
        )

    def _take_rate(self, channel: ChannelName, rate: int, packets: int, now: float) -> None:
        # policy.md §5.3: a 0.23 node stores the limit and never applies it; here it refuses before anything is sent.
        bucket = self._rates.get(channel)
        if bucket is None or bucket.rate != rate:
            bucket = TokenBucket(rate)
            self._rates.put(channel, bucket)
        if bucket.take(packets, now):
            return
        self._counters.count(Reason.REFUSE_PUBLISH_RATE)
        remedy = "publish fewer events at once or raise max_rate_pps" if packets > rate else "publish more slowly"
        problem = f"{packets} packets exceed max_rate_pps = {rate} at this moment; {remedy}"
        raise ChannelError(ChannelFault.RATE_LIMITED, channel, problem)


class Fanout:
    """The legs of one publish: those that wait, those that run, and the errors of those that ended."""

    __slots__ = ("_errors", "_flying", "_limit", "_plan", "_policy", "_started", "_waiting")

    def __init__(self, plan: PublishPlan, config: PublishConfig) -> None:
        self._plan = plan
        self._policy = config.on_failure
        # policy.md §5.2: FAIL_FAST sends to one peer after the other, so that none is attempted after the first error.
        self._limit = 1 if config.on_failure is OnFailure.FAIL_FAST else config.max_inflight
        self._waiting = deque(plan.legs)
        self._flying: set[int] = set()
        self._started = 0
        self._errors: list[LegError] = []

    def start(self) -> list[int]:
        """Return the peers whose legs may start now, each once. Call it again after every outcome."""
        started = []
        while self._waiting and len(self._flying) < self._limit:
            node_id = self._waiting.popleft()
            self._flying.add(node_id)
            started.append(node_id)
        self._started += len(started)
        return started

    def delivered(self, node_id: int) -> None:
        """Record that a leg was sent completely."""
        self._flying.remove(node_id)

    def failed(self, node_id: int, error: MeshError) -> None:
        """Record that a leg failed; with FAIL_FAST no other leg starts afterwards."""
        self._flying.remove(node_id)
        self._errors.append(LegError(node_id, error.code, str(error)))
        if self._policy is OnFailure.FAIL_FAST:
            self._waiting.clear()

    @property
    def done(self) -> bool:
        """Whether every leg has ended."""
        return not self._waiting and not self._flying

    def report(self) -> PublishReport:
        """Return the report of the publish, which must be done.

        Raises PartialDelivery if `on_failure` is BEST_EFFORT and every attempted leg failed.
        """
        assert self.done
        return settle(self._policy, self._started, self._errors, self._plan.filtered)


def settle(
    policy: OnFailure,
    attempted: int,
    errors: Sequence[LegError] = (),
    filtered: tuple[tuple[int, str], ...] = (),
) -> PublishReport:
    """Return the report of all attempted legs.

    Raises PartialDelivery, which holds the report, if the policy is BEST_EFFORT and every attempted leg failed.
    """
    report = PublishReport(attempted, attempted - len(errors), tuple(errors), filtered)
    # policy.md §5.2: one peer that got the events is enough.
    if policy is OnFailure.BEST_EFFORT and errors and not report.delivered:
        first = errors[0]
        problem = f"every peer failed; the first was {first.node_id:016x}: {first.message}"
        raise PartialDelivery(attempted, 0, problem, report=report)
    return report


def _denial(channel: ChannelName, policy: ChannelConfig) -> str:
    needs = []
    if policy.publish_caps is not None:
        needs.append("announced capabilities that match publish_caps")
    if policy.require_token:
        needs.append("a valid PUBLISH token for this node in its token cache")
    return f"this node may not publish on {str(channel)!r}: the channel requires {' and '.join(needs)}"


def _member(kind: type[StrEnum], key: str, text: str) -> StrEnum:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(key, f"unknown value {text!r}; choose from {', '.join(kind)}") from None
