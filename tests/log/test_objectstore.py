"""Objects on a real S3-compatible server and in a directory: written, verified, read, listed and deleted; clear errors."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.objectstore import (
    Cancelled,
    StoredObject,
    check_uri,
    delete_object,
    explain,
    join_uri,
    last_names,
    list_names,
    list_objects,
    locate,
    open_object,
    put_object,
    read_object,
    show_uri,
    size_of,
    verify_object,
    write_object,
)
from tests.objectserver import ObjectServer, free_ports, object_server, use_profile

__all__ = ["object_server"]

CONTENT = os.urandom(9 << 20)
"""More than one piece."""


@pytest.fixture(scope="module", params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> ObjectServer | None:
    """A server, or None for a directory."""
    found: ObjectServer | None = request.getfixturevalue("object_server") if request.param == "s3" else None
    return found


@pytest.fixture
def place(server: ObjectServer | None, tmp_path: Path) -> str:
    """An empty place for objects."""
    return f"file://{tmp_path}/objects" if server is None else server.uri(f"objects/{tmp_path.name}")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    yield path
    path.unlink()


def test_an_object_is_written_verified_read_listed_and_deleted(place: str, path: Path) -> None:
    uri = join_uri(place, "a", "b c")
    assert list_objects(place) == []
    assert size_of(uri) is None
    stored = put_object(path, uri)
    assert (stored.uri, stored.bytes) == (uri, len(CONTENT))
    verify_object(stored)
    with open_object(uri) as file:
        file.seek(5_000_000)
        assert file.read(10) == CONTENT[5_000_000:5_000_010]
    assert list_objects(place) == [(uri, len(CONTENT))]
    assert size_of(uri) == len(CONTENT)
    delete_object(uri)
    delete_object(uri)
    assert size_of(uri) is None


def test_small_objects_are_written_replaced_and_read(place: str) -> None:
    uri = join_uri(place, "a=b", "hint")
    assert read_object(uri) is None
    for content in (b"12", b"13", b""):
        write_object(uri, content)
        assert read_object(uri) == content
    assert list_names(place) == [("a=b/hint", 0)]
    delete_object(uri)


def test_an_object_that_differs_from_what_was_written_is_noticed(place: str, path: Path) -> None:
    stored = put_object(path, join_uri(place, "x"))
    changed = bytearray(CONTENT)
    changed[1_000_000] ^= 1
    path.write_bytes(changed)
    put_object(path, stored.uri)
    with pytest.raises(LogError, match="are not the 9437184 bytes that were written") as caught:
        verify_object(stored)
    assert caught.value.fault is LogFault.CORRUPT


def test_a_missing_object_is_named(place: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"objects.*/nothing.* is gone from object storage"):
        open_object(join_uri(place, "nothing"))


def test_a_transfer_ends_when_it_is_cancelled(place: str, path: Path) -> None:
    answers = iter([False, True, True, True])
    with pytest.raises(Cancelled):
        put_object(path, join_uri(place, "y"), lambda: next(answers))
    stored = put_object(path, join_uri(place, "y"))
    with pytest.raises(Cancelled):
        verify_object(stored, lambda: True)


@pytest.mark.slow
def test_wrong_credentials_are_explained(
    object_server: ObjectServer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    # Another region makes another client: those of other tests have the right credentials.
    uri = object_server.uri("z").replace("us-east-1", "eu-west-1")
    with pytest.raises(LogError, match=r"refuses the credentials \(\w+\); set AWS_ACCESS_KEY_ID") as caught:
        put_object(path, uri)
    assert caught.value.fault is LogFault.UNREACHABLE
    assert "wrong" not in str(caught.value)


@pytest.mark.slow
def test_credentials_of_a_profile_are_used(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_profile(monkeypatch, tmp_path)
    assert list_objects(object_server.uri("profile").replace("us-east-1", "eu-west-2")) == []


@pytest.mark.slow
def test_a_missing_bucket_is_explained(object_server: ObjectServer, path: Path) -> None:
    with pytest.raises(LogError, match="the bucket does not exist; create it"):
        put_object(path, object_server.uri("z").replace("s3://bucket", "s3://no-such-bucket"))


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_explained(object_server: ObjectServer) -> None:
    (port,) = free_ports(1)
    uri = object_server.uri("z", port=port)
    with pytest.raises(LogError) as caught:
        size_of(uri)
    assert str(caught.value) == (
        f"cannot look up s3://bucket/z at http://127.0.0.1:{port}: it does not answer (could not connect to server);"
        " check the server and the network"
    )


def test_other_answers_of_a_server_are_passed_on() -> None:
    error = OSError(
        "When uploading part for key 'a' in bucket 'b': AWS Error INTERNAL_FAILURE during UploadPart operation:"
        " We encountered an internal error, please try again. (Request ID: 18E8)"
    )
    found = explain("s3://b/a", "write", error)
    assert str(found) == (
        "cannot write s3://b/a: it answers 'We encountered an internal error, please try again' (INTERNAL_FAILURE);"
        " check the server and its free space"
    )
    assert explain("s3://b/a", "read", OSError("CRC mismatch")) is None


def test_a_directory_that_refuses_is_explained(tmp_path: Path, path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="cannot write file://") as caught:
        put_object(path, f"file://{tmp_path}/file/x")
    assert caught.value.fault is LogFault.UNREACHABLE


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("/srv/archive", "write s3://bucket/prefix or file:///directory"),
        ("http://host/x", "write s3://"),
        ("s3:///prefix", "write s3://"),
        ("file://host/x", "write s3://"),
        ("file:relative", "write s3://"),
        ("s3://b/x#y", "write s3://"),
        ("s3://b/x?secret_key=1", "invalid option 'secret_key'.*choose from endpoint_override, region"),
        ("s3://b/x?region=", "give it a value"),
        ("file:///x?region=a", "a directory has none"),
    ],
)
def test_an_invalid_uri_is_refused_with_what_is_allowed(uri: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_uri(uri)


def test_a_secret_in_a_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="must not contain credentials") as caught:
        locate("s3://key:geheim@bucket/x")
    assert "geheim" not in str(caught.value)


def test_uris_are_joined_before_their_options() -> None:
    uri = join_uri("s3://b/p/?region=r", "logs", "a b.parquet")
    assert uri == "s3://b/p/logs/a%20b.parquet?region=r"
    assert join_uri("s3://b", "x") == "s3://b/x"
    assert last_names(uri) == ("logs", "a b.parquet")
    assert [last_names(other) for other in ("s3://b/x", "s3://b", "s3://[")] == [("", "x"), ("", ""), ("", "")]
    assert show_uri(uri) == "s3://b/p/logs/a%20b.parquet"
    assert StoredObject(uri, 1, "00").uri == uri
