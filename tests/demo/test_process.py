"""A child is heard, fails with a sentence, and ends: when it is asked to, when it must, and when its parent dies."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshbus.demo import process as module
from meshbus.demo.process import Process
from meshbus.errors import MeshError
from tests.children import child
from tests.demo.leftover import gone

ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"
STUBBORN = "import time\nprint('up', flush=True)\ntime.sleep(600)"
FAILING = (
    "from meshbus.demo.process import run_child\n"
    "from meshbus.errors import ConfigError\n"
    "def work(): raise ExceptionGroup('two', [ConfigError('psk', 'is\\nmissing'), ValueError('other')])\n"
    "run_child(work)"
)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def _child(program: str, tmp_path: Path, news: list[str] | None = None) -> Process[str]:
    def take(line: str) -> bool:
        if news is not None and line.startswith("news"):
            news.append(line)
            return True
        return False

    return Process("echo", "-c", program, says=lambda text: text.decode().strip(), errors=tmp_path / "err", news=take)


async def test_lines_go_both_ways_and_news_do_not_wait(tmp_path: Path) -> None:
    news: list[str] = []
    program = "print('news 1', flush=True)\n" + ECHO
    async with _child(program, tmp_path, news) as child:
        child.tell(b"one\n")
        child.tell(b"two\n")
        assert [await child.answer(), await child.answer()] == ["heard one", "heard two"]
        await child.leave()
        await child.leave()
    assert news == ["news 1"]


async def test_a_child_that_fails_says_why_in_one_sentence(tmp_path: Path) -> None:
    async with _child(FAILING, tmp_path) as child:
        for _ in range(2):
            with pytest.raises(MeshError, match=r"the process of echo has exited: .*is missing; see .*err"):
                await child.answer()


async def test_a_child_that_says_nothing_has_failed_too(tmp_path: Path) -> None:
    async with _child("pass", tmp_path) as child:
        with pytest.raises(MeshError, match="no error message"):
            await child.answer()


async def test_a_child_that_does_not_listen_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAVE_S", 0.2)
    async with _child(STUBBORN, tmp_path) as child:
        assert await child.answer() == "up"
    with pytest.raises(MeshError):
        await child.answer()


@on_linux
async def test_an_error_ends_a_child_and_what_it_started_at_once(tmp_path: Path) -> None:
    program = f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]).pid, flush=True)\n"
    started = []

    async def fail() -> None:
        async with _child(program + STUBBORN, tmp_path) as child:
            started.append(int(await child.answer()))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await fail()
    assert await asyncio.to_thread(gone, started[0])


@on_linux
def test_a_killed_parent_takes_its_child_along(tmp_path: Path) -> None:
    program = (
        "import os, time\nfrom meshbus.demo.process import follow_parent\n"
        "told = follow_parent()\ntold.wait()\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    )
    parent = (
        "import asyncio\nfrom pathlib import Path\nfrom meshbus.demo.process import Process\n"
        "async def main():\n"
        f"    async with Process('x', '-c', {program!r}, says=int, errors=Path({str(tmp_path / 'err')!r})) as p:\n"
        "        p.tell(b'go\\n')\n"
        "        print(await p.answer(), flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    with child([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        os.kill(running.pid, signal.SIGKILL)
    assert gone(pid)


async def test_a_child_reads_lines_until_its_input_ends_and_libraries_cannot_disturb_what_it_says(
    tmp_path: Path,
) -> None:
    program = (
        "import asyncio, os\n"
        "from meshbus.demo.process import input_lines, own_output, say\n"
        "async def main():\n"
        "    own_output()\n"
        "    os.write(1, b'printed by a library\\n')\n"
        "    async for line in input_lines(): say(b'heard ' + line)\n"
        "    say(b'end\\n')\n"
        "asyncio.run(main())"
    )
    async with _child(program, tmp_path) as child:
        child.tell(b"one\n")
        assert await child.answer() == "heard one"
        child.end_input()
        assert await child.answer() == "end"
    assert "printed by a library" in (tmp_path / "err").read_text()


async def test_waiting_ends_when_something_holds_or_when_it_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, False, True])
    await module.wait_for(lambda: next(looks))
    assert next(looks, None) is None
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    await module.wait_for(lambda: False)
