"""The command line as a whole: quick, helpful, and never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshbus import __version__
from meshbus.cli import TRACEBACK_VARIABLE, VERBS, main
from meshbus.cli.exit import Exit
from tests.cli.conftest import Meshbus

HEAVY = ["asyncio", "cryptography", "markdown_it", "meshbus.node", "msgspec", "numba", "numpy", "pyarrow"]
SCRIPT = Path(sys.executable).with_name("meshbus")


def _shell(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], [], ["key", "--help"], ["token", "issue", "--help"], ["--version"]]
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import json, sys\nfrom meshbus.cli import main\n"
        f"code = main({arguments})\n"
        f"print(json.dumps([code, [m for m in {HEAVY} if m in sys.modules]]), file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(answer.stderr) == [0, []]
    assert answer.stdout


def test_help_names_every_verb(meshbus: Meshbus) -> None:
    result = meshbus("--help")
    assert result.code == Exit.OK
    for name, (_, summary) in VERBS.items():
        assert name in result.out
        assert summary.split()[0] in result.out


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help(meshbus: Meshbus, name: str) -> None:
    result = meshbus(name, "--help")
    assert (result.code, result.err) == (Exit.OK, "")
    assert f"Usage: meshbus {name}" in result.out


def test_the_script_runs() -> None:
    answer = _shell("--version")
    assert (answer.returncode, answer.stdout.strip(), answer.stderr) == (0, __version__, "")


def test_a_real_terminal_gets_a_table_and_a_pipe_gets_json(tmp_path: Path) -> None:
    main_end, other_end = os.openpty()
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "120"}
    for variable in ("NO_COLOR", "FORCE_COLOR"):
        environment.pop(variable, None)
    try:
        subprocess.run([SCRIPT, "config", "show"], stdout=other_end, check=True, env=environment)
        text = os.read(main_end, 65_536).decode()
    finally:
        os.close(main_end)
        os.close(other_end)
    assert "\033[1m" in text
    assert "127.0.0.1:0" in text
    piped = _shell("config", "show", env=environment)
    assert json.loads(piped.stdout.splitlines()[0])["setting"] == "name"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["kye"], "unknown command 'kye' (did you mean 'key'?); see `meshbus --help`"),
        (["zzzzz"], "unknown command 'zzzzz'; see `meshbus --help`"),
        (["key", "shw"], 'unknown command "shw". Did you mean "show"?'),
        (["key", "show", "--jsno"], "unknown option: --jsno. Did you mean --json; see `meshbus key show --help`"),
        (["key", "psk"], 'command "key psk" parameter PATH requires an argument; see `meshbus key psk --help`'),
        (["key", "new", "a", "b"], "unused Tokens: ['b']; see `meshbus key new --help`"),
        (["--what"], "unknown command '--what'; see `meshbus --help`"),
    ],
)
def test_an_unknown_command_is_an_error_of_one_line_and_exits_with_status_2(
    meshbus: Meshbus, arguments: list[str], complaint: str
) -> None:
    result = meshbus(*arguments)
    assert result.code == Exit.USAGE
    assert result.err.startswith(f"meshbus: {complaint}")
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_ctrl_c_is_quiet(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.keyfile.load_identity", _raiser(KeyboardInterrupt()))
    assert meshbus("key", "show") == (Exit.INTERRUPTED, "", "")


def test_an_os_error_is_one_line(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.keyfile.load_identity", _raiser(OSError(28, "No space left on device")))
    result = meshbus("key", "show")
    assert (result.code, result.err) == (Exit.FAILED, "meshbus: [Errno 28] No space left on device\n")


def test_an_internal_error_is_one_line_unless_a_traceback_is_requested(
    meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbus.keyfile.load_identity", _raiser(ZeroDivisionError("oops")))
    result = meshbus("key", "show")
    assert result.code == Exit.FAILED
    assert result.err == (
        "meshbus: unexpected ZeroDivisionError: oops; this is a bug, please report it with the traceback that MESHBUS_TRACEBACK=1 shows\n"
    )
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    with pytest.raises(ZeroDivisionError):
        main(["key", "show"])


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    answer = subprocess.run(
        ["sh", "-c", '"$0" config show | head -n 1', SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )
    assert answer.stdout.count("\n") == 1
    assert answer.stderr == ""


def _raiser(error: BaseException) -> object:
    def raise_it(*_: object) -> None:
        raise error

    return raise_it
