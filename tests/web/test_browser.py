"""The live page in a real browser, with a real fleet behind it: `make test-web` installs what it needs and runs this."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from meshbus.log.consumers import publish_consumer
from meshbus.policy.reason import Reason
from tests.cli.running import SCRIPT, Running, running, until
from tests.web.browser import Visit, clean, expect, visit
from tests.web.test_prometheus import web

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.web

HEARTBEAT_S, SESSION_TIMEOUT_S = 0.5, 3.0
LIVENESS = f"heartbeat_s = {HEARTBEAT_S}\nsession_timeout_s = {SESSION_TIMEOUT_S}\n"
UPDATE_S = 1.0
"""The page is updated once a second."""
BUSY_S = 30.0
"""What a busy machine may add to a time."""
TOKEN = "a-token-of-the-test-0123"
RULES = "".join(
    f'[[subnet_rules]]\nmatch_tags = ["zone:{zone}"]\ntarget_subnet = "{subnet}"\n'
    for zone, subnet in (("gate", "3"), ("west", "3.7"), ("east", "3.8"))
)
EVENTS = 25


class Fleet(NamedTuple):
    """A gateway with a log, whose page is looked at, and two nodes in subnets of their own."""

    folder: Path
    gate: Running
    west: Running
    east: Running

    @property
    def peer(self) -> str:
        """The gate, as an entry in the file of another node."""
        return f'[[peers]]\naddress = "{self.gate.address}"\npublic_key = "{self.gate.public_key}"\n'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    create_psk(folder / "mesh.key")
    (folder / "web.token").write_text(TOKEN, "utf-8")
    (folder / "web.token").chmod(0o600)
    served = 'web = { bind = "127.0.0.1:0" }\n'
    channels = (
        '[[channels]]\nprefix = "sensors/"\nlog = "published"\n[[channels]]\nname = "secret"\nrequire_token = true\n'
        '[[channels]]\nname = "alarms"\nreplicas = ["gate"]\n'
    )
    gateway = 'gateway = true\nsubnet = "3"\npeer_subnets = ["3.7", "3.8"]\ntags = ["zone:gate"]\nlog_dir = "logs"\n'
    with ExitStack() as stack:
        gate = stack.enter_context(
            running(
                folder / "gate", f'name = "gate"\n{LIVENESS}{served}{gateway}daemons_dir = "daemons"\n{RULES}{channels}'
            )
        )
        partial = Fleet(folder, gate, gate, gate)
        locked = 'web = { bind = "127.0.0.1:0", token_file = "../web.token" }\n'
        topic = '[[subscriptions]]\nprefix = "sensors/"\nlog = false\n'
        west, east = (
            stack.enter_context(
                running(
                    folder / name,
                    f'name = "{name}"\nsubnet = "{subnet}"\ntags = ["zone:{name}"]\n{LIVENESS}{locked}{RULES}{partial.peer}{topic}',
                )
            )
            for name, subnet in (("west", "3.7"), ("east", "3.8"))
        )
        logged = meshbus("pub", "sensors/a", *map(str, range(EVENTS)), "--admin", gate.admin)
        assert logged.returncode in {Exit.OK, Exit.LOGGED}, logged.stderr  # the others may not have subscribed yet
        publish_consumer(folder / "gate" / "logs", "spark-query", {"published:sensors/a": 5}, time.time_ns())
        yield Fleet(folder, gate, west, east)


def meshbus(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MESHBUS_")}
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)


def counters(node: Running) -> dict[str, int]:
    rows = [json.loads(line) for line in meshbus("counters", "--json", "--admin", node.admin).stdout.splitlines()]
    return {row["counter"]: row["count"] for row in rows}


def cell(seen: Visit, table: str, key: str, column: str) -> str:
    """Return what a table says in the row with a key."""
    heads = seen.page.locator(f"#{table} th").all_inner_texts()
    place = [head.rstrip(" ↑↓") for head in heads].index(column)
    return str(seen.page.locator(f'#{table} tr[data-key="{key}"] td').nth(place).inner_text())


def until_cell(seen: Visit, table: str, key: str, column: str, wanted: str) -> None:
    expect(seen.page.locator(f'#{table} tr[data-key="{key}"]')).to_be_visible()
    until(lambda: cell(seen, table, key, column), lambda found: found == wanted)


def test_the_page_shows_the_fleet_and_its_numbers_are_those_of_the_counters(browser: Browser, fleet: Fleet) -> None:
    with visit(browser, web(fleet.gate)) as seen:
        seen.open()
        page = seen.page
        expect(page.locator("h1")).to_have_text("gate")
        expect(page.locator("#connection")).to_have_text("Live.")
        for name, subnet in (("west", "3.7"), ("east", "3.8")):
            box = page.locator(".subnet", has=page.locator(":scope > h3", has_text=f"subnet {subnet}")).last
            expect(box.locator("li", has_text=name)).to_contain_text("alive")
        expect(page.locator("li[data-node]", has_text="gate")).to_contain_text("gateway")
        until_cell(seen, "channels", "sensors/a", "published", str(EVENTS))
        until_cell(seen, "channels", "sensors/a", "subscribers here", "2")
        until_cell(seen, "logs", "published:sensors/a", "next sequence", str(EVENTS))
        until_cell(seen, "consumers", "spark-query|published|sensors/a", "events behind", str(EVENTS - 5))
        until_cell(seen, "replicas", "alarms", "state", "available")
        until_cell(seen, "peers", str(fleet.west.status["node_id"]), "state", "alive")
        expect(page.locator("#daemons .more")).to_have_text("No daemon is known here.")
        assert meshbus("pub", "sensors/a", "last", "--admin", fleet.gate.admin).returncode == Exit.OK
        until_cell(seen, "channels", "sensors/a", "published", str(EVENTS + 1))
        counted = counters(fleet.gate)
        assert counted["sent.events"] >= 2
        expect(page.locator("#total-sent")).to_have_text(str(counted["sent.events"]))
        seen.screenshot("fleet")
        clean(seen)


def test_a_node_that_is_killed_turns_red_within_the_bound_of_the_failure_detector(
    browser: Browser, fleet: Fleet
) -> None:
    with (
        running(fleet.folder / "doomed", f'name = "doomed"\n{LIVENESS}{fleet.peer}') as doomed,
        visit(browser, web(fleet.gate)) as seen,
    ):
        seen.open()
        item = seen.page.locator(f'li[data-node="{doomed.status["node_id"]}"] .state')
        expect(item).to_have_text("alive")
        doomed.process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        expect(item).to_have_text("failed")
        took_s = time.monotonic() - killed
        red, green, blue = rgb(item.evaluate("element => getComputedStyle(element).color"))
        assert red > 2 * max(green, blue)
        expect(seen.page.locator("#health")).to_contain_text("1 failed")
        seen.screenshot("killed")
        clean(seen)
    # Silence counts from the last heartbeat and is judged at the next one; then comes the next update of the page.
    assert took_s <= SESSION_TIMEOUT_S + 2 * HEARTBEAT_S + 2 * UPDATE_S + BUSY_S


def test_a_denial_appears_with_its_reason(browser: Browser, fleet: Fleet) -> None:
    with visit(browser, web(fleet.gate)) as seen:
        seen.open()
        assert meshbus("pub", "secret", "x", "--admin", fleet.gate.admin).returncode in {Exit.OK, Exit.DENIED}
        denied = meshbus("sub", "secret", "--count", "1", "--admin", fleet.west.admin)
        assert denied.returncode == Exit.DENIED, denied.stderr
        row = seen.page.locator('#losses tr[data-key="refuse.token"]')
        expect(row).to_be_visible()
        assert cell(seen, "losses", "refuse.token", "meaning") == Reason.REFUSE_TOKEN.sentence
        until_cell(seen, "losses", "refuse.token", "count", str(counters(fleet.gate)["refuse.token"]))
        seen.screenshot("denied")
        clean(seen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 800), (1280, 900), (3840, 2160)])
def test_the_page_is_for_everybody_at_every_size(
    browser: Browser, fleet: Fleet, scheme: Any, width: int, height: int
) -> None:
    size = {"width": width, "height": height}
    with visit(browser, web(fleet.gate), viewport=size, color_scheme=scheme, reduced_motion="reduce") as seen:
        seen.open()
        expect(seen.page.locator('#channels tr[data-key="sensors/a"]')).to_be_visible()
        until(lambda: cell(seen, "channels", "sensors/a", "published/s"), lambda found: found != "unknown")
        assert seen.defects() == []
        assert not seen.too_wide()
        seen.screenshot(f"{scheme}-{width}")
        clean(seen)


def test_the_page_works_by_keyboard_alone(browser: Browser, fleet: Fleet) -> None:
    with visit(browser, web(fleet.gate)) as seen:
        seen.open()
        page = seen.page
        expect(page.locator('#channels tr[data-key="sensors/a"]')).to_be_visible()
        page.keyboard.press("Tab")
        assert focused(seen) == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.locator("#peers th button").first.focus()
        page.keyboard.press("Enter")
        names = page.locator("#peers tbody tr td:first-child")
        assert page.locator("#peers th").first.get_attribute("aria-sort") == "ascending"
        assert names.all_inner_texts() == sorted(names.all_inner_texts())
        page.keyboard.press("Space")
        assert page.locator("#peers th").first.get_attribute("aria-sort") == "descending"
        assert focused(seen) == "name"
        page.locator("#filter").focus()
        page.keyboard.type("west")
        expect(page.locator("#peers tbody tr")).to_have_count(1)
        expect(page.locator("#logs .more")).to_contain_text("do not match the filter")
        clean(seen)


def test_a_token_is_entered_once(browser: Browser, fleet: Fleet) -> None:
    with visit(browser, web(fleet.west)) as seen:
        seen.open()
        page = seen.page
        expect(page).to_have_url(f"http://{seen.address}/login")
        assert seen.defects() == []
        page.get_by_label("Token").fill("not-the-token-at-all")
        page.keyboard.press("Enter")
        expect(page.locator("#answer")).to_contain_text("This is not the token of this node")
        assert all("401" in line for line in seen.complaints)  # the browser's own line about the answer
        seen.complaints.clear()
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("west")
        expect(page.locator("#connection")).to_have_text("Live.")
        seen.screenshot("token")
        clean(seen)
        assert not [url for url in seen.asked if TOKEN in url]


def test_a_link_carries_the_token_behind_the_hash_and_leaves_no_trace(browser: Browser, fleet: Fleet) -> None:
    with visit(browser, web(fleet.west)) as seen:
        seen.open(f"/login#{TOKEN}")
        expect(seen.page.locator("h1")).to_have_text("west")
        assert TOKEN not in seen.page.url
        assert seen.page.evaluate("document.cookie") == ""  # scripts cannot read it
        clean(seen)


def test_a_page_whose_node_is_gone_says_so(browser: Browser, fleet: Fleet) -> None:
    with (
        running(fleet.folder / "short", f'name = "short"\nweb = {{ bind = "127.0.0.1:0" }}\n{fleet.peer}') as short,
        visit(browser, web(short)) as seen,
    ):
        seen.open()
        expect(seen.page.locator("#connection")).to_have_text("Live.")
        short.stop()
        expect(seen.page.locator("#connection")).to_have_text("The node does not answer. What you see is old.")
        expect(seen.page.locator("h1")).to_have_text("short")
        assert seen.strangers() == []


def focused(seen: Visit) -> str:
    return str(seen.page.evaluate("document.activeElement.textContent"))


def rgb(color: str) -> tuple[int, int, int]:
    red, green, blue = (int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))
    return red, green, blue
