"""Keeps the policy of an open node, and changes it while the node runs: all of it at one moment, or nothing.

    read ──► valid? ──► row of the audit log on disk ──► policy file on disk ──► the engine, in one call
               └── no ──► refused with the line and the reason; row of the audit log; the old policy stays

Sessions stay up. The engine decides every packet before the call by the old policy and every later one by the new one
(engine/facade.py, `set_policy`); the flight recorder numbers them, so the moment is visible in its rows. A change asked for
while another is under way waits for it.

Only a node with a `policy_file` has something to change: the file is what the next start reads. With `policy_issuers` it must be
signed, and its version must grow; what one node applies is then offered to its neighbors (engine/directory/fleetpolicy.py), and
what a neighbor offers is applied here in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from meshbus.config.loader import read_content
from meshbus.config.node import NodeConfig
from meshbus.config.policy import PolicyConfig
from meshbus.config.policydiff import differences
from meshbus.config.policyfile import PolicyFile, body_of, read_policy, read_signed, signed_content
from meshbus.engine.base.notices import PolicyArrived
from meshbus.engine.settings import PolicySettings
from meshbus.errors import ConfigError, MeshError
from meshbus.log.files import Files
from meshbus.node.audit import APPLIED, REFUSED, AuditKind, AuditLog, AuditRow, now_text
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.peers.noticelog import PolicyChanged, PolicyRefused
from meshbus.policy.reason import Reason

NO_FILE = (
    "is not set, so the policy is read with the other settings at the start only; move the policy to a file of its own, and"
    " set policy_file to it"
)

_logger = logging.getLogger("meshbus.node")


class Via(StrEnum):
    """How a change of the policy was asked for."""

    START = "start"
    """The file had changed before the node started."""
    APPLY = "apply"
    SIGHUP = "sighup"
    FLEET = "fleet"
    """A neighbor had a newer signed policy."""


def settings_of(policy: PolicyConfig, node_id: int, name: str | None) -> PolicySettings:
    """Return what a policy means for one node."""
    return PolicySettings(
        channels=policy.channel_registry(),
        assignment=policy.subnet_policy(),
        gateway=policy.gateway_of(node_id, name),
        trusted_issuers=policy.trusted_issuers,
    )


class PolicyKeeper:
    """The policy of one node."""

    def __init__(
        self,
        live: Live,
        config: NodeConfig,
        current: PolicyFile | None,
        notice: Callable[[PolicyChanged | PolicyRefused], None],
    ) -> None:
        """Begin with the policy that the node starts with, which is that of its settings if it has no policy file."""
        self._live = live
        self._config = config
        self._notice = notice
        self._node_id = live.engine.node_id
        self._files = Files()
        self._changing = asyncio.Lock()
        self._current = current
        self._tasks = TaskOwner("a change of the policy", _logger)

    @property
    def policy(self) -> PolicyConfig:
        """The policy in force."""
        return self._config.own_policy(self._node_id) if self._current is None else self._current.policy

    @property
    def hash(self) -> str | None:
        """SHA-256 of the policy file in force; None if the node has none."""
        return None if self._current is None else _hash(self._current.content)

    @property
    def version(self) -> int | None:
        """The version of the signed policy in force; None if it is not signed."""
        return None if self._current is None else self._current.version or None

    async def start(self) -> None:
        """Offer a signed policy to neighbors, and add a row to the audit log if the file changed while no node was running."""
        self._offer()
        if self._current is not None:
            try:
                await asyncio.to_thread(self._record_start, self._current)
            except (ConfigError, OSError) as error:
                # The policy is in force already; another user, who runs a command, may not write the audit log.
                _logger.warning("the policy file is not in the audit log: %s", error)

    def _record_start(self, current: PolicyFile) -> None:
        last = self._audit.last_applied(AuditKind.POLICY)
        if last is None or last.policy != _hash(current.content):
            row = self._row(current.content, _owner(self._file), Via.START)
            self._audit.append(msgspec.structs.replace(row, version=current.version or None))

    async def apply(self, path: Path | None, *, by: str, via: Via) -> tuple[str, ...]:
        """Apply the policy of a file, or read the node's own file again; return what changed, in words.

        The policy of another file is copied to the node's own. Raises ConfigError, and changes nothing, if it is not
        valid or cannot be stored.
        """
        # In a task of its own: a caller that goes away must not leave a change half done.
        outcome = await asyncio.shield(self._tasks.start(self._attempt(path, by, via)))
        if isinstance(outcome, MeshError):
            raise outcome
        return outcome

    async def _attempt(self, path: Path | None, by: str, via: Via) -> tuple[str, ...] | MeshError:
        """Apply a policy, and return what changed or the error."""
        async with self._changing:
            try:
                own = self._file  # without one, nothing can be applied, and nothing is recorded
                source = own if path is None else path
                content = await asyncio.to_thread(read_content, source)
                return await self._change(content, str(source), by, via)
            except MeshError as error:
                self._notice(PolicyRefused(by, str(via), str(error)))
                return error

    async def _change(self, content: bytes, source: str, by: str, via: Via) -> tuple[str, ...]:
        try:
            # In a thread: reading a large policy takes a good part of a second.
            new, settings, changes = await asyncio.to_thread(self._prepare, content, source)
        except ConfigError as error:
            row = self._row(content, by, via, problem=str(error))
            await asyncio.to_thread(self._audit.append, row)
            raise
        row = msgspec.structs.replace(self._row(content, by, via, changes), version=new.version or None)
        await asyncio.to_thread(self._store, content, row)
        self._live.act(lambda engine, now, out: engine.set_policy(settings, now, out))
        self._current = new
        self._offer()
        self._notice(PolicyChanged(by, str(via), changes))
        return changes

    def _prepare(self, content: bytes, source: str) -> tuple[PolicyFile, PolicySettings, tuple[str, ...]]:
        """Read a policy, and return it with what it means for this node and what it changes. Raises ConfigError."""
        new = read_signed(content, source)
        self._check_signer(new, source)
        settings = settings_of(new.policy, self._node_id, self._config.name)
        return new, settings, tuple(differences(self.policy, new.policy))

    def _check_signer(self, new: PolicyFile, source: str) -> None:
        """Refuse what the issuer of the fleet did not sign, or signed before what is in force; without one, all is fine."""
        issuers = self._config.policy_issuers
        if not issuers:
            return
        if new.statement is None:
            raise _wrong_signer(issuers, "no signature", source)
        _check_issuer(new, issuers, source)
        current = self._current
        if current is not None and new.version <= current.version and new.content != current.content:
            raise ConfigError(
                "version",
                f"must be above {current.version}, the version in force, got {new.version}; sign it again with a higher one",
                source=source,
            )

    def _offer(self) -> None:
        """Offer a signed policy to the neighbors."""
        current, service = self._current, self._live.engine.fleet_policy
        if service is not None and current is not None and (statement := current.statement) is not None:
            body = body_of(current.content)
            self._live.act(lambda _engine, now, out: service.hold(statement, body, now, out))

    def take(self, arrived: PolicyArrived) -> None:
        """Store and apply a policy that arrived from a neighbor, as soon as no other change is under way."""
        self._tasks.start(self._take(arrived))

    async def _take(self, arrived: PolicyArrived) -> None:
        content, by = signed_content(arrived.statement, arrived.policy), f"issuer {arrived.statement.issuer.hex()}"
        service = self._live.engine.fleet_policy
        assert service is not None, "nothing arrives without it"
        async with self._changing:
            try:
                await self._change(content, "the policy of the fleet", by, Via.FLEET)
            except MeshError as error:
                self._live.engine.counters.count(Reason.REFUSE_POLICY)
                self._notice(PolicyRefused(by, str(Via.FLEET), str(error)))
                if isinstance(error, ConfigError) and error.key in {"policy_file", "audit_log"}:
                    service.forget_arrived()  # the disk refused it, and may not the next time
                else:
                    # Others may be able to use it: pass it on.
                    hold = partial(service.hold, arrived.statement, arrived.policy)
                    self._live.act(lambda _engine, now, out: hold(now, out))

    async def close(self) -> None:
        """End what is under way; a policy that is stored but not applied yet is that of the next start."""
        await self._tasks.close()

    def _store(self, content: bytes, row: AuditRow) -> None:
        """Write the row and the file; the file stays as it is if either is not possible."""
        self._audit.append(row)
        own = self._file
        try:
            # It may be gone, and is then made again for its owner only.
            if own.exists() and own.read_bytes() == content:
                return
            mode = own.stat().st_mode & 0o777 if own.exists() else 0o600
            self._files.write_aside(own, own.with_name(f".{own.name}.new"), [content])
            own.chmod(mode)
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}; the old policy stays"
            self._audit.append(msgspec.structs.replace(row, result=REFUSED, problem=problem))
            raise ConfigError("policy_file", problem, source=str(own)) from None

    def _row(
        self, content: bytes, by: str, via: Via, changes: tuple[str, ...] = (), problem: str | None = None
    ) -> AuditRow:
        return AuditRow(
            kind=AuditKind.POLICY,
            at=now_text(),
            by=by,
            via=str(via),
            node_id=f"{self._node_id:016x}",
            result=APPLIED if problem is None else REFUSED,
            policy=_hash(content),
            changes=changes,
            problem=problem,
        )

    @property
    def _audit(self) -> AuditLog:
        return AuditLog(self._config.audit_path())

    @property
    def _file(self) -> Path:
        if self._config.policy_file is None:
            raise ConfigError("policy_file", NO_FILE)
        return self._config.policy_file


def first_policy(config: NodeConfig) -> PolicyFile | None:
    """Read the policy file that a node starts with; None if it has none. Raises ConfigError."""
    if config.policy_file is None:
        return None
    found = read_policy(config.policy_file)
    if config.policy_issuers:
        _check_issuer(found, config.policy_issuers, str(config.policy_file))
    return found


def _check_issuer(found: PolicyFile, issuers: tuple[bytes, ...], source: str) -> None:
    """Raise ConfigError for a policy that somebody else signed; one without a signature is fine here."""
    if found.statement is not None and found.statement.issuer not in issuers:
        raise _wrong_signer(issuers, found.statement.issuer.hex(), source)


def _wrong_signer(issuers: tuple[bytes, ...], signer: str, source: str) -> ConfigError:
    return ConfigError(
        "signature",
        f"must be of one of the policy_issuers {', '.join(key.hex() for key in issuers)}, got {signer}; sign it with"
        " `meshbus policy sign`",
        source=source,
    )


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()


def _owner(path: Path) -> str:
    """Return the user that a file belongs to: who changed it while no node was running is not known better."""
    try:
        return path.owner()
    except (OSError, KeyError, NotImplementedError):
        return "unknown"
