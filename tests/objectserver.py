"""A real S3-compatible server for tests: SeaweedFS as one process, and a TCP proxy in front of it that can be slow.

The fixture `object_server` starts one for the tests of a file, with credentials in the environment as applications have them. It
listens on free ports of the loopback address, keeps its data in a temporary directory, and is killed by its process id.
"""

import json
import select
import socket  # noqa: TID251 - a stand-in for a slow network, and ports for a server that cannot choose its own
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.children import child

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret"}
_START_S = 120.0
_SERVICES = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")


class ObjectServer:
    """SeaweedFS with one bucket; can be stopped and started again with the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = ExitStack()
        self.port, *self._ports = free_ports(2 + len(_SERVICES))
        action = {"name": "test", "actions": ["Admin", "Read", "Write", "List"]}
        secret = {"accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secretKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
        (folder / "data").mkdir()
        (folder / "s3.json").write_text(json.dumps({"identities": [{**action, "credentials": [secret]}]}))

    def uri(self, prefix: str, *, port: int | None = None) -> str:
        """Return the URI of a place in the bucket, through a proxy if its port is given."""
        return f"s3://{BUCKET}/{prefix}?endpoint_override=http://127.0.0.1:{port or self.port}&region=us-east-1"

    def start(self, *, volumes: int = 100) -> None:
        """Start the server and wait until it stores objects, unless it has no volumes left for them.

        Each volume takes about a megabyte and belongs to one bucket.
        """
        grpc, *ports = self._ports
        options = {
            "dir": self._folder / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3.port": self.port,
            "s3.port.grpc": grpc,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": self._folder / "s3.json",
            "s3.iam": "false",
            "s3.autoCreateBucket": "false",
            "master.telemetry": "false",
            "master.electionTimeout": "1s",  # there is only one master, which need not wait for others
            "master.heartbeatInterval": "100ms",
            "master.volumeSizeLimitMB": 1,
            "volume.max": volumes,
            "volume.minFreeSpace": 1,  # percent: a test machine may be nearly full
            **dict(zip(_SERVICES, ports, strict=True)),
        }
        command: list[str | Path] = [Path(sys.executable).with_name("weed"), "server", "-filer", "-s3"]
        command += [f"-{name}={value}" for name, value in options.items()]
        with (self._folder / "log").open("ab") as log:
            process = self._running.enter_context(child(command, cwd=self._folder, stdout=log, stderr=log))
        until = time.monotonic() + _START_S
        while not self._answers():
            if process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"the object server did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill the server; its data stay."""
        self._running.close()

    def _answers(self) -> bool:
        from pyarrow import fs

        system = fs.S3FileSystem(
            endpoint_override=f"http://127.0.0.1:{self.port}", region="us-east-1", allow_bucket_creation=True
        )
        try:
            system.create_dir(BUCKET)
            return bool(system.get_file_info(BUCKET).type == fs.FileType.Directory)
        except OSError:
            return False


class SlowProxy:
    """Forwards TCP connections; while it is slow, a few bytes at a time."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.slow = False
        self.passed = 0
        """Bytes that were forwarded while it was slow."""
        self._closed = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._closed = True
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            if select.select([self._listener], [], [], 0.05)[0]:
                near, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._forward, args=(near,)))
                self._threads[-1].start()

    def _forward(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(self._target) as far:
            other = {near: far, far: near}
            while not self._closed:
                for source in select.select([near, far], [], [], 0.05)[0]:
                    data = source.recv(512 if self.slow else 1 << 16)
                    if not data:
                        return
                    if self.slow:
                        self.passed += len(data)
                        time.sleep(0.01)
                    other[source].sendall(data)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]


@contextmanager
def serving(folder: Path, **options: int) -> Iterator[ObjectServer]:
    """Run a server inside `with`, with its credentials in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # nothing outside this machine is asked
        server = ObjectServer(folder)
        try:
            server.start(**options)
            yield server
        finally:
            server.stop()


def use_profile(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have the credentials in a profile instead of the environment."""
    lines = [f"{name.lower()} = {value}" for name, value in CREDENTIALS.items()]
    (folder / "credentials").write_text("\n".join(["[mesh]", *lines, ""]))
    for name in CREDENTIALS:
        patch.delenv(name)
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    patch.setenv("AWS_PROFILE", "mesh")


@pytest.fixture(scope="module")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """A server for all tests of a file. A test that stops one starts its own, because a test leaves no process behind."""
    with serving(tmp_path_factory.mktemp("objects")) as server:
        yield server
