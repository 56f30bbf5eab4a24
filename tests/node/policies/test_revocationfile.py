"""The file of revocations: what is written is read again, and damage is never taken for an empty list."""

from pathlib import Path

import pytest

from meshbus.errors import ConfigError
from meshbus.names.identity import Identity
from meshbus.node.policies import revocationfile as subject
from meshbus.node.policies.revocationfile import load_revocations, save_revocations
from meshbus.wire.messages.revocation import Revocation, Revoked, encode_record

ISSUER = Identity.from_seed(bytes(range(32)))
RECORDS = tuple(
    Revocation.sign(ISSUER, Revoked.NODE, bytes([number]) * 32, at=1_700_000_000, reason="stolen")
    for number in range(1, 4)
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "id.revocations.toml"
    save_revocations(file, RECORDS)
    return file


def test_records_come_back_in_their_order_and_no_file_is_no_record(path: Path) -> None:
    assert load_revocations(path) == RECORDS
    assert path.stat().st_mode & 0o777 == 0o600
    save_revocations(path, ())
    assert load_revocations(path) == ()
    path.unlink()
    assert load_revocations(path) == ()


def test_a_file_that_cannot_be_written_is_an_error(path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        save_revocations(path / "below" / "a file", RECORDS)


def test_any_damage_is_a_clear_error(path: Path) -> None:
    content = path.read_text("utf-8")
    lines = content.splitlines(keepends=True)
    first = encode_record(RECORDS[0]).hex()
    wrong = {
        "a line is missing": "".join(line for line in lines if first not in line),
        "a line is there twice": content.replace(f'    "{first}",\n', f'    "{first}",\n' * 2),
        "a digit was changed": content.replace(first, first[:40] + ("0" if first[40] != "0" else "1") + first[41:]),
        "no hex": content.replace(first, "x" * len(first)),
        "no text": content.replace(f'"{first}"', "5"),
        "no list": content.replace("records = [", "records = 5\nothers = ["),
        "no records": content[: content.index("records")],
        "no checksum": content.replace("sha256", "md5"),
        "cut off": content[: len(content) // 2],
        "empty": "",
        "another kind": content.replace('"revocations"', '"pins"'),
        "a newer version": content.replace("version = 1", "version = 2"),
    }
    for what, text in wrong.items():
        path.write_text(text, "utf-8")
        with pytest.raises(ConfigError) as caught:
            load_revocations(path)
        assert str(path) in str(caught.value), what
        assert caught.value.key == "revocations", what


def test_a_checksum_does_not_make_a_record_genuine(path: Path) -> None:
    unread = [encode_record(RECORDS[0])[:-1]]
    forged = [encode_record(RECORDS[0])[:-64] + bytes(64)]
    for content, problem in ((unread, "record 1 cannot be read"), (forged, "record 1 is not signed by its issuer")):
        lines = "".join(f'"{record.hex()}",' for record in content)
        checksum = subject._checksum(content)
        path.write_text(f'version = 1\nkind = "revocations"\nsha256 = "{checksum}"\nrecords = [{lines}]\n', "utf-8")
        with pytest.raises(ConfigError, match=problem) as caught:
            load_revocations(path)
        assert "file of another node of the fleet" in str(caught.value)


def test_a_file_with_too_many_records_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_REVOCATIONS", 2)
    with pytest.raises(ConfigError, match="at most 2"):
        load_revocations(path)


def test_a_file_that_others_can_change_is_refused(path: Path) -> None:
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="others can read or change it"):
        load_revocations(path)
