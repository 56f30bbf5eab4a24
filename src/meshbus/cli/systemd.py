"""`meshbus systemd`: a unit that runs a node as a service, with no more rights than it needs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from meshbus.cli.output import note

UNIT = """\
# Written by `meshbus systemd`. Install it with:
#   sudo cp meshbus.service /etc/systemd/system/ && sudo systemctl daemon-reload && sudo systemctl enable --now meshbus
[Unit]
Description=meshbus node ({config})
Documentation=man:systemd.exec(5)
Wants=network-online.target
After=network-online.target
# A node that cannot start yet, because its disk or its address is late, is started again for as long as it takes.
StartLimitIntervalSec=0

[Service]
ExecStart={program} up {config} --admin /run/meshbus/admin.sock
# Reads the policy file again.
ExecReload=/bin/kill -HUP $MAINPID
User={user}
Group={user}
Restart=always
RestartSec=1
# Logs, identities and checkpoints are below these; the rest of the file system is read-only or hidden.
ConfigurationDirectory=meshbus
ConfigurationDirectoryMode=0750
StateDirectory=meshbus
StateDirectoryMode=0700
RuntimeDirectory=meshbus
RuntimeDirectoryMode=0700
ReadWritePaths={writable}
# One file for each log and connection.
LimitNOFILE=65536
UMask=0077

# A node needs UDP, TCP and Unix sockets, its files, and nothing else.
AmbientCapabilities=
CapabilityBoundingSet=
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProcSubset=pid
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome={home}
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
# Libraries try calls that they can do without; a call that is refused must not end the node.
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources

[Install]
WantedBy=multi-user.target
"""
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_HOMES = ("/home", "/root", "/run/user")


def systemd(
    config: Annotated[Path, Parameter(help="Configuration file of the node.")] = Path("/etc/meshbus/node.toml"),
    /,
    *,
    user: Annotated[str, Parameter(help="System user that runs the node.")] = "meshbus",
    program: Annotated[Path | None, Parameter(help="The meshbus program; default: the one that runs now.")] = None,
    out: Annotated[Path | None, Parameter(help="File to write; default: standard output.")] = None,
) -> None:
    """Print a systemd unit that runs a node, restarts it when it fails, and takes away every right that it does not need."""
    from meshbus.errors import ConfigError

    if not _USER.fullmatch(user):
        raise ConfigError("--user", f"{user!r} cannot be a system user; use a-z, 0-9, '-' and '_', such as meshbus")
    place = program or Path(sys.argv[0]).absolute()
    for what, path in (("config", config), ("--program", place)):
        if not path.is_absolute() or any(char.isspace() or char in "%\"'\\" for char in str(path)):
            raise ConfigError(what, f"must be an absolute path without spaces, quotes and %, got {str(path)!r}")
    text = UNIT.format(
        config=config,
        user=user,
        program=place,
        writable=" ".join(sorted({str(folder) for folder in _written(config)})),
        home="no" if any(str(path).startswith(_HOMES) for path in (config, place, *_written(config))) else "yes",
    )
    if out is None:
        print(text, end="")
        return
    if out.exists():
        raise ConfigError("--out", "the file exists; delete it first, or choose another name", source=str(out))
    out.write_text(text, "utf-8")
    note(f"{out} written; its first lines say how to install it")


def _written(config: Path) -> list[Path]:
    """Return the folders that a node with this configuration writes to; one that does not exist yet may be made there."""
    from meshbus.cli.options import load_config
    from meshbus.config.node import default_identity

    always = Path("/var/lib/meshbus")
    if not config.is_file():
        return [always]
    settings = load_config(config)
    folders = [folder for folder in (settings.log_dir, settings.daemons_dir) if folder is not None]
    if settings.policy_file is not None:
        folders.append(settings.policy_file.parent)
    if not settings.ephemeral:
        folders.append((settings.identity or default_identity()).parent)
    return [always, *(folder.absolute() for folder in folders)]
