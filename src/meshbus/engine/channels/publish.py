"""Publishing: to whom one publish goes, in which form, and what its outcome means.

There is no multicast: a publish is one unicast per subscriber. `Planner` makes the plan (may this node publish, is the
channel within its rate, which subscribers get it), the core seals and sends, `Fanout` keeps count of the legs and how
many may be under way, and `settle` turns their outcomes into a report or an error. Delivered means handed to the
socket; when a reliable stream cannot get them acknowledged later on, a `StreamFailed` says so. A subscriber that policy
keeps from getting the events is *filtered*: not attempted, not an error, but named in the report.
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
from meshbus.errors import AuthError, AuthFault, ChannelError, ChannelFault, ConfigError, MeshError, PartialDelivery
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.channels import ChannelConfig, Visibility
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Flags
from meshbus.wire.header import Header

MAX_INFLIGHT = 32
WAIT_S = 5.0
MAX_PLANS = 4096
"""Plans remembered; a node that publishes on ever new names makes them anew."""
MAX_RATES = 65_536
"""Channels whose rate is remembered, behind a prefix configuration too."""

_RELIABLE = int(Flags.RELIABLE)
_PRIORITY = int(Flags.PRIORITY)


class Reliability(StrEnum):
    """What happens to lost packets."""

    FIRE_AND_FORGET = "fire-and-forget"
    RELIABLE = "reliable"
    """Sent again until acknowledged, towards peers with whom that was negotiated."""


class OnFailure(StrEnum):
    """What a failed leg means for a publish."""

    BEST_EFFORT = "best-effort"
    """An error only when every attempted peer failed."""
    FAIL_FAST = "fail-fast"
    """One peer after the other; stop at the first failure and report."""
    COLLECT = "collect"
    """Try everyone and report."""


class PublishConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a publisher publishes."""

    reliable: bool | None = None
    """None takes the channel's own default."""
    reliability: Reliability | None = None
    """The same, by name."""
    on_failure: OnFailure = OnFailure.BEST_EFFORT
    max_inflight: int = MAX_INFLIGHT
    """Legs under way at once; at least 1."""
    wait_s: float = WAIT_S
    """How long a leg waits for the receiver to grant credit before it counts as backpressured; 0 does not wait.

    Counted from the last packet that went out, so that a large batch may take longer as long as it moves.
    """

    def __post_init__(self) -> None:
        on_failure = _member(OnFailure, "on_failure", self.on_failure)
        reliable = self.reliable
        if self.reliability is not None:
            named = _member(Reliability, "reliability", self.reliability) is Reliability.RELIABLE
            if reliable not in {None, named}:
                raise ConfigError("reliability", f"{self.reliability!r} and reliable={reliable} contradict each other")
            reliable = named
        if not self.wait_s >= 0:
            raise ConfigError("wait_s", f"{self.wait_s} is not a time from 0 seconds on")
        settle_field = msgspec.structs.force_setattr
        settle_field(self, "on_failure", on_failure)
        settle_field(self, "reliable", reliable)
        settle_field(self, "reliability", _RELIABILITY[reliable])
        settle_field(self, "max_inflight", max(self.max_inflight, 1))


_RELIABILITY = {None: None, True: Reliability.RELIABLE, False: Reliability.FIRE_AND_FORGET}


class LegError(NamedTuple):
    """Why one peer did not get a publish."""

    node_id: int
    code: str
    """The code of the error, as in docs/errors.md."""
    message: str


class PublishReport(msgspec.Struct, frozen=True):
    """What became of one publish."""

    attempted: int
    delivered: int
    errors: tuple[LegError, ...] = ()
    filtered: tuple[tuple[int, str], ...] = ()
    """Subscribers that policy left out, each with the reason: `not_visible`, `not_authorized` or `token`."""

    @property
    def all_delivered(self) -> bool:
        """Whether everyone attempted got it; true also when there was nobody."""
        return self.delivered == self.attempted and not self.errors

    @property
    def is_empty(self) -> bool:
        """Whether there was nobody to send it to."""
        return self.attempted == 0


class PublishPlan(msgspec.Struct, frozen=True):
    """To whom a publish goes, and in which form."""

    channel: ChannelName
    canonical: int
    """The hash of the channel."""
    legs: tuple[int, ...]
    """Node ids, one unicast each."""
    filtered: tuple[tuple[int, str], ...] = ()
    reliable: bool = False
    priority: int = 0
    max_rate_pps: int | None = None
    """The channel's limit, already applied."""

    @property
    def stream_id(self) -> int:
        """The stream that the packets travel on."""
        return self.canonical | PUBLISH_STREAM_BIT

    def header(self, *, origin_hash: int, subnet_id: int = 0, hop_ttl: int = 0) -> Header:
        """Return the pattern of the packets' headers."""
        flags = (_RELIABLE if self.reliable else 0) | (_PRIORITY if self.priority else 0)
        return Header(
            flags=flags,
            priority=self.priority,
            hop_ttl=hop_ttl,
            channel_hash=self.canonical & 0xFFFF,
            stream_id=self.stream_id,
            origin_hash=origin_hash,
            subnet_id=subnet_id,
        )


class Planner:
    """Decides for each publish who gets it; holds the rate of each channel.

    A channel that is open, visible everywhere and without queue groups goes to the same peers until something changes,
    so its plan is made once and remembered.
    """

    def __init__(self, admission: Admission, counters: Counters) -> None:
        self._admission = admission
        self._counters = counters
        self._rates: BoundedMap[ChannelName, TokenBucket] = BoundedMap(MAX_RATES)
        self._known: dict[tuple[ChannelName, bool | None], PublishPlan] = {}
        self._stamp: tuple[object, ...] = ()
        """What the remembered plans were made from."""

    def plan(  # hot: bench_publish
        self, channel: ChannelName, config: PublishConfig, now: float, *, packets: int = 1
    ) -> PublishPlan:
        """Plan a publish that takes `packets` packets towards each subscriber.

        Raises AuthError when this node may not publish on the channel, and ChannelError when the channel's rate does
        not admit the packets; nothing is to be sent then.
        """
        stamp = self._state()
        if stamp != self._stamp or len(self._known) >= MAX_PLANS:
            self._known.clear()
            self._stamp = stamp
        plan = self._known.get((channel, config.reliable))
        if plan is None:
            plan = self._make(channel, config, now)
        if plan.max_rate_pps is not None:
            self._take_rate(channel, plan.max_rate_pps, len(plan.legs) * packets, now)
        return plan

    def narrow(self, plan: PublishPlan, now: float) -> PublishPlan:
        """Leave out who may no longer have a publish that was planned a while ago."""
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
            self._known[channel, config.reliable] = plan
        return plan

    def _stays(self, channel: ChannelName, policy: ChannelConfig | None) -> bool:
        """Return whether a plan holds until the state changes: neither time, nor claims, nor turns matter to it."""
        visibility = self._admission.authorizer.default_visibility if policy is None else policy.visibility
        return (
            visibility is Visibility.GLOBAL
            and (policy is None or policy.is_open)
            and not self._admission.roster.has_groups(channel)
        )

    def _state(self) -> tuple[object, ...]:
        admission = self._admission
        registry = admission.authorizer.registry
        version = 0 if registry is None else registry.version
        default = admission.authorizer.default_visibility
        return admission.roster.version, admission.guard.version, registry, version, default

    def _take_rate(self, channel: ChannelName, rate: int, packets: int, now: float) -> None:
        bucket = self._rates.get(channel)
        if bucket is None or bucket.rate != rate:
            bucket = TokenBucket(rate)
            self._rates.put(channel, bucket)
        if bucket.take(packets, now):
            return
        self._counters.count(Reason.REFUSE_PUBLISH_RATE)
        remedy = "send fewer events at once or raise it" if packets > rate else "slow down"
        problem = f"{packets} packets are beyond max_rate_pps = {rate} now: {remedy}"
        raise ChannelError(ChannelFault.RATE_LIMITED, channel, problem)


class Fanout:
    """The legs of one publish: which may start, which are under way, and what became of the others."""

    __slots__ = ("_errors", "_flying", "_limit", "_plan", "_policy", "_started", "_waiting")

    def __init__(self, plan: PublishPlan, config: PublishConfig) -> None:
        self._plan = plan
        self._policy = config.on_failure
        self._limit = 1 if config.on_failure is OnFailure.FAIL_FAST else config.max_inflight
        self._waiting = deque(plan.legs)
        self._flying: set[int] = set()
        self._started = 0
        self._errors: list[LegError] = []

    def start(self) -> list[int]:
        """Return the peers to whom a leg may be started now, each once; to be asked again after every outcome."""
        started = []
        while self._waiting and len(self._flying) < self._limit:
            node_id = self._waiting.popleft()
            self._flying.add(node_id)
            started.append(node_id)
        self._started += len(started)
        return started

    def delivered(self, node_id: int) -> None:
        """Note that a leg arrived."""
        self._flying.remove(node_id)

    def failed(self, node_id: int, error: MeshError) -> None:
        """Note that a leg failed; with FAIL_FAST no other starts."""
        self._flying.remove(node_id)
        self._errors.append(LegError(node_id, error.code, str(error)))
        if self._policy is OnFailure.FAIL_FAST:
            self._waiting.clear()

    @property
    def done(self) -> bool:
        """Whether every leg has its outcome."""
        return not self._waiting and not self._flying

    def report(self) -> PublishReport:
        """Return the outcome of the whole, once it is done.

        Raises PartialDelivery when the policy is BEST_EFFORT and nobody was reached.
        """
        assert self.done
        return settle(self._policy, self._started, self._errors, self._plan.filtered)


def settle(
    policy: OnFailure,
    attempted: int,
    errors: Sequence[LegError] = (),
    filtered: tuple[tuple[int, str], ...] = (),
) -> PublishReport:
    """Turn the outcomes of all attempted legs into a report.

    Raises PartialDelivery, with the report in it, when the policy is BEST_EFFORT and every attempted leg failed.
    """
    report = PublishReport(attempted, attempted - len(errors), tuple(errors), filtered)
    if policy is OnFailure.BEST_EFFORT and errors and not report.delivered:
        first = errors[0]
        problem = f"every leg failed, the first to {first.node_id:016x}: {first.message}"
        raise PartialDelivery(attempted, 0, problem, report=report)
    return report


def _denial(channel: ChannelName, policy: ChannelConfig) -> str:
    needs = []
    if policy.publish_caps is not None:
        needs.append("announced capabilities that match its publish_caps")
    if policy.require_token:
        needs.append("a valid token with PUBLISH for this node in its own cache")
    return f"this node may not publish on {str(channel)!r}: the channel asks for {' and '.join(needs)}"


def _member(kind: type[StrEnum], key: str, text: str) -> StrEnum:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(key, f"{text!r} is none of {', '.join(kind)}") from None
