"""The copy of a Delta table: commits by delta-rs, straight to object storage.

A commit creates the next entry of the log only if it does not exist (a conditional request of S3), so a second writer
fails. It carries the batches as application transactions, as the table does. Files that left the table are deleted by
vacuum a day after. Requires meshbus[delta].
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from meshbus.log.objectstore import CONNECT_S, STALL_S
from meshbus.spark.lake.formats.deltacommit import (
    add_action,
    add_columns,
    commit_actions,
    create_log,
    delta_library,
    paths_of,
    remove_action,
)
from meshbus.spark.lake.formats.parttable import KEEP_HOURS
from meshbus.spark.lake.mirror.target import check_owner
from meshbus.spark.lake.tableschema import TableSpec

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log

_OWNER = "Copy of the tables "
"""Beginning of the description of a copy; the id of the tables follows."""


class DeltaTarget:
    """The copy of a table in the format `delta`."""

    def __init__(self, uri: str, spec: TableSpec, owner: str) -> None:
        """Raise PipelineError if delta-rs is not installed."""
        self._uri, self._spec, self._owner = uri, spec, owner
        self._place, self._options = split_uri(uri)
        self._log: Log | None = None
        delta_library()

    def names(self) -> frozenset[str]:
        """Return the files of the newest version."""
        if self._log is None:
            self._log = self._open()
        return frozenset() if self._log is None else frozenset(paths_of(self._log))

    def _open(self) -> Log | None:
        library = delta_library()
        try:
            # Not after is_deltatable: that stops all threads of this process while it waits for storage.
            log: Log = library.DeltaTable(self._place, storage_options=self._options)
        except library.exceptions.TableNotFoundError:
            return None
        check_owner(self._uri, (log.metadata().description or "").removeprefix(_OWNER), self._owner)
        return log

    def commit(self, added: Mapping[str, Path], removed: Collection[str], batches: Mapping[str, int]) -> bool:
        """Commit to the version that was read last; fails if there is a newer one."""
        if self._log is None:
            self._log = create_log(self._place, self._spec, description=f"{_OWNER}{self._owner}", options=self._options)
        log = self._log
        add_columns(log, self._spec)
        new = {query: last for query, last in batches.items() if log.transaction_version(query) != last}
        actions = [remove_action(name) for name in removed]
        actions += [add_action(name, path, self._spec) for name, path in added.items()]
        if actions or new:
            commit_actions(log, actions, new)
            log.update_incremental()
        return bool(actions or new)

    def clean(self, unused: Mapping[str, datetime], now: datetime) -> dict[str, datetime]:  # noqa: ARG002 - the log knows
        """Delete what left the table a day ago; the log says when."""
        if self._log is not None:
            self._log.vacuum(KEEP_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        return {}

    def forget(self) -> None:
        """Read the log anew the next time."""
        self._log = None


def split_uri(uri: str) -> tuple[str, dict[str, str]]:
    """Return the URI of a table without its options, and these as delta-rs names them."""
    parts = urlsplit(uri)
    given = dict(parse_qsl(parts.query))
    # In the order of pyarrow, so that both clients use the same server.
    endpoint = (
        given.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    # Without it, profiles are used for AWS only, and not for another server.
    options = {"aws_force_credential_load": "true"}
    options |= {"connect_timeout": f"{CONNECT_S:g}s", "timeout": f"{STALL_S:g}s", "max_retries": "1"}
    if endpoint:
        options |= {"endpoint_url": endpoint, "allow_http": str(endpoint.startswith("http:")).lower()}
    if "region" in given:
        options["region"] = given["region"]
    return urlunsplit(parts._replace(query="")), options if parts.scheme == "s3" else {}
