"""Real Prometheus programs read a live fleet: `make test-web` installs them and runs these tests."""

import json
import os
import shutil
import socket  # noqa: TID251 - to find a free port
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from tests.children import child
from tests.cli.running import SCRIPT, Running, running, until
from tests.house.tree import ROOT
from tests.web.scrape import get

pytestmark = pytest.mark.web

FOLDER = ROOT / "examples" / "monitoring"
SCRAPED_S = 60


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """Three nodes in processes of their own: a hub with a log, and two peers of it."""
    folder = tmp_path_factory.mktemp("fleet")
    create_psk(folder / "mesh.key")
    web = 'web = { bind = "127.0.0.1:0" }\n'
    with ExitStack() as stack:
        logged = '[[channels]]\nprefix = "sensors/"\nlog = "published"\n'
        hub = stack.enter_context(running(folder / "hub", f'name = "hub"\nlog_dir = "logs"\n{web}{logged}'))
        peer = f'[[peers]]\naddress = "{hub.address}"\npublic_key = "{hub.public_key}"\n'
        topic = '[[subscriptions]]\nprefix = "sensors/"\nlog = false\n'
        others = [
            stack.enter_context(running(folder / name, f'name = "{name}"\n{web}{peer}{topic}'))
            for name in ("west", "east")
        ]
        yield [hub, *others]


def web(node: Running) -> str:
    return str(node.status["web"]).removeprefix("http://")


def free_address() -> str:
    """Return an address that was free a moment ago: Prometheus does not tell which port it got for 0."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def answers(address: str) -> bool:
    with suppress(OSError):
        return get(address, "/-/ready").status == 200
    return False


def promtool(*arguments: str | Path, stdin: str = "") -> str:
    done = subprocess.run(
        ["promtool", *arguments], input=stdin, capture_output=True, text=True, check=False, cwd=FOLDER
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_metrics(fleet: list[Running]) -> None:
    for node in fleet:
        assert promtool("check", "metrics", stdin=get(web(node), "/metrics").text).strip() == ""


def test_promtool_accepts_rules_and_configuration_and_the_rules_fire() -> None:
    promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "prometheus.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_prometheus_scrapes_a_fleet(fleet: list[Running], tmp_path: Path) -> None:
    hub = fleet[0]
    shutil.copy(FOLDER / "alerts.yml", tmp_path)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "5s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "meshbus", "static_configs": [{"targets": [web(node) for node in fleet]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), "utf-8")  # JSON is YAML
    address = free_address()
    command: list[str | Path] = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={address}"]
    with child(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL):
        until(lambda: answers(address), bool)

        def ask(query: str) -> dict[str, float]:
            page = get(address, f"/api/v1/query?query={urllib.parse.quote(query)}")
            rows = json.loads(page.text)["data"]["result"]
            return {row["metric"].get("instance", ""): float(row["value"][1]) for row in rows}

        way = ["pub", "sensors/a", "1", "2", "3", "--admin", hub.admin]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MESHBUS_")}
        assert (
            subprocess.run([SCRIPT, *way], env=environment, stdout=subprocess.DEVNULL, check=False).returncode
            == Exit.OK
        )
        until(
            lambda: ask(f"min_over_time(up[{SCRAPED_S}s]) and count_over_time(up[{SCRAPED_S}s]) >= {SCRAPED_S - 5}"),
            lambda up: list(up.values()) == [1] * 3,
        )
        found = ask('meshbus_channel_received_events_total{channel="sensors/a"}')
        assert found == {web(node): 3.0 for node in fleet[1:]}
        assert ask("meshbus_log_appended_events_total") == {web(hub): 3.0}
        assert max(ask("scrape_samples_scraped").values()) < 1500
