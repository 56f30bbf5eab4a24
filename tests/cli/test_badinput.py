"""Bad input wherever a user types: each is one line on standard error that says what is wrong and what to do next."""

import re
import shlex
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_identity, create_psk
from tests.cli.conftest import Meshbus

KEY = "11" * 32
TRY = re.compile(
    r"see `meshbus|`meshbus |\b(must|expected|choose|give|use|try|required|write|name|copy|correct|create|set|run|remove|"
    r"start|delete|check|leave|put|drop|not allowed|did you mean|at most)\b"
)
"""Words by which a sentence says what is allowed, or what to do next."""

CASES = """
nothing
pbu a
up --bind
up --bind nowhere
up --bind 1.2.3.4
up --bind 1.2.3.4:99999
up --bind 1.2.3.4:abc
up none.toml
up broken.toml
up --set heartbeat_s
up --set =3
up --set heartbeat_s=soon
up --set heartbeat_s=-1
up --set hearbeat_s=1
up --set psk=1234
up --set subnet=300
up --set subnet=1.2.3.4.5
up --set psk_file=none.key
up --set psk_file=short.key
up --set name='a b'
up --set tags=1
up --set unlisted_channels=maybe
up --set max_packet=1
up --set peers=x
up --accept robot
up --admin here/admin.sock --set psk_file=none.key
pub
pub Sensors x
pub sensors//a x
pub /a x
pub 'a b' x
pub a x --wait soon
pub a x --connect 10.0.0.7:9000
pub a x --public-key {key}
pub a x --admin a.sock --connect 10.0.0.7:9000
pub a x --connect 10.0.0.7 --public-key {key}
pub a x --connect 10.0.0.7:9000 --public-key 11
pub a x --connect 10.0.0.7:9000 --public-key zz
pub a x --admin none.sock
pub a x --node-id 12 --admin none.sock
sub
sub Sensors
sub a --count x
sub a --publisher robot
sub a --when-full sometimes
sub a --timeout soon
req
req plan x --timeout 0
req plan x --timeout nan
req Plan x
req plan x --admin none.sock
reply plan text --run cat
reply plan --count 0
reply P
ping --count 0
ping --count x
ping --interval 0
ping --timeout -1
ping --admin none.sock
channels a b
top --interval 0
top --count 0
bench sned
bench send --events 0
bench send --events 99999999
bench send --size 8
bench send --size 9000
bench send --wait 0
bench send B
bench receive --timeout 0
bench local --size 1
ctx add
ctx add a
ctx add 'a b' --admin x
ctx add a --context b
ctx use nowhere
ctx show nowhere
ctx rm nowhere
status --context nowhere
status --context nowhere --admin a.sock
new broken.toml
new x.toml --name 'a b'
new x.toml --bind nowhere
new x.toml --peer 10.0.0.7:9000
new x.toml --peer 10.0.0.7:9000=11
new x.toml --log Sensors
new x.toml --subnet x
new x.toml --psk-file short.key
systemd node.toml
systemd '/etc/a b.toml'
systemd --user 'Root User'
completion
completion tcsh
config show none.toml
config show broken.toml
key show none.toml
key show broken.toml
key psk short.key
token show none.token
policy valdate x
policy diff none.toml
policy diff broken.toml
policy diff empty.toml --replay none
policy diff empty.toml --replay none --recorder robot
policy apply broken.toml
policy apply --admin none.sock
policy history --limit -1
policy history
policy sign empty.toml --as-version 0 --out x.toml --identity id.toml
policy sign empty.toml --as-version 1 --out x.toml --identity none.toml
policy sign empty.toml --out x.toml
log ls none
replica add
replica status --admin none.sock
daemon move
counters --admin none.sock
peers --admin none.sock
peers --config none.toml
""".strip().splitlines()


@pytest.fixture
def _files(home: Path) -> None:
    (home / "broken.toml").write_text("bind = \n", "utf-8")
    (home / "short.key").write_text("1234", "utf-8")
    (home / "short.key").chmod(0o600)
    (home / "here").write_text("a file", "utf-8")
    (home / "empty.toml").write_text("# nothing\n", "utf-8")
    create_identity(home / "id.toml")
    create_psk(home / "mesh.key")


def test_there_are_many() -> None:
    assert len(set(CASES)) == len(CASES) >= 60


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("line", CASES)
def test_bad_input_is_one_sentence_with_the_next_thing_to_try(line: str, meshbus: Meshbus) -> None:
    result = meshbus(*shlex.split(line.format(key=KEY)))
    assert result.code in {Exit.USAGE, Exit.UNREACHABLE, Exit.FAILED}, result
    assert result.out == ""
    assert result.err.startswith("meshbus: ")
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    assert "unexpected" not in result.err, result.err
    assert TRY.search(result.err), result.err
