"""Every module that writes files names their format with its version, and docs/formats.md says what the source says."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.tree import PACKAGE, modules
from tools import formats

WRITES = {"create_file", "pwrite", "replace_file", "reopen", "write_aside", "write_bytes", "write_text", "write_table"}
"""Calls that change files."""
MODES = {"a", "ab", "r+", "r+b", "w", "wb", "x", "xb"}

NO_FORMAT = {
    "cli/contexts.py": "formats.py",
    "cli/demo.py": "a mark for people, in the directory of a demo",
    "cli/events.py": "payloads of events, as they arrived",
    "cli/new.py": "formats.py: a settings file",
    "cli/pipeline.py": "a report, as HTML",
    "cli/policy.py": "formats.py: a policy",
    "cli/systemd.py": "a unit of systemd",
    "cli/token.py": "a token: bytes of net-mesh 0.23",
    "demo/alarms.py": "formats.py: a settings file",
    "demo/lake.py": "a report, as HTML",
    "demo/process.py": "what happens now",
    "demo/roles.py": "what happens now",
    "log/embedded/asides.py": "log/embedded/block.py",
    "log/embedded/recovery.py": "log/embedded/block.py",
    "log/embedded/replicarecovery.py": "a copy of a hot file",
    "log/embedded/tier.py": "a sentence for people",
    "log/embedded/writer.py": "log/embedded/block.py",
    "log/files.py": "whatever its callers write",
    "log/objectstore.py": "copies of segments",
    "log/packets/store.py": "log/packets/block.py",
    "log/segment.py": "log/schema.py",
    "node/daemons/branchfiles.py": "node/daemons/daemonfiles.py",
    "node/policies/meshkey.py": "keyfile.py",
    "node/invites/invitefile.py": "keyfile.py",
    "node/invites/settling.py": "formats.py: a settings file and a policy",
    "node/peers/pinfile.py": "keyfile.py",
    "node/policies/revocationfile.py": "keyfile.py",
    "node/policies/keeper.py": "formats.py: a policy",
    "spark/lake/countfiles.py": "spark/lake/tablestore.py",
    "spark/lake/formats/icebergfolder.py": "of Iceberg",
    "spark/lake/formats/parquetfile.py": "spark/lake/tablestore.py",
    "spark/lake/guide.py": "a page of the guide",
    "spark/lake/mirror/ledger.py": "spark/lake/tablestore.py",
    "spark/lake/readers.py": "a lock",
    "spark/run/control.py": "what happens now",
    "spark/run/plans.py": "spark/io/offsets.py",
    "spark/run/rebuild.py": "spark/lake/tablestore.py",
    "spark/run/rowsfile.py": "spark/lake/tablestore.py",
    "spark/run/runner.py": "what happened, for people",
    "spark/run/sparksession.py": "settings of another program",
}
"""Modules that write files whose format is another module's, or nobody's: which, or why."""


def writers() -> set[str]:
    """Return the modules that change files."""
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if any(_writes(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    }


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    mode = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    return name in WRITES or (name == "open" and mode in MODES)


def owners() -> set[str]:
    """Return the modules that have a row."""
    return {row.module.removeprefix("meshbus.").replace(".", "/") + ".py" for row in formats.rows()}


def test_every_module_that_writes_files_names_their_format() -> None:
    missing = writers() - owners() - NO_FORMAT.keys()
    assert not missing, f"{sorted(missing)}: add a tuple ON_DISK, or a line of NO_FORMAT that says whose format it is"


def test_the_list_of_other_modules_is_current() -> None:
    assert not NO_FORMAT.keys() - writers()
    assert not NO_FORMAT.keys() & owners()
    named = {why.partition(":")[0] for why in NO_FORMAT.values() if why.partition(":")[0].endswith(".py")}
    assert named <= owners()


def test_names_are_unique_and_versions_make_sense() -> None:
    found = [row.format for row in formats.rows()]
    assert len({form.name for form in found}) == len(found)
    assert all(1 <= form.oldest <= form.version for form in found)


def test_the_page_is_current() -> None:
    assert Path(formats.PAGE).read_text("utf-8") == formats.page(), "run `make formats`"
