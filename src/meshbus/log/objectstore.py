"""Objects on S3-compatible storage, or in a local directory that stands in for it, through `pyarrow.fs`.

    s3://bucket/prefix                                             the server and the region as AWS tools find them
    s3://bucket/prefix?endpoint_override=http://10.0.0.7:9000      another server; `region=` likewise
    file:///srv/archive                                            a directory

Whoever has the URI of an object can find it, so a URI never contains credentials. These come from the environment
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), a profile (AWS_PROFILE, ~/.aws), or the role of the machine.

A copy is verified by reading it back and comparing a checksum. An ETag would not do: pyarrow uploads in parts, and the
ETag of such an object is not a hash of its content. Memory is bounded: a file passes in pieces, and the part that is
being uploaded is the largest (10 MiB at first; S3 allows 10 000 parts).

Raises LogError `unreachable` if storage does not answer or refuses, in one sentence, and FileNotFoundError for an object
that does not exist. log/embedded/tier.py decides what is copied. pyarrow is imported at the first use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import msgspec
import xxhash

from meshbus.errors import ConfigError, LogError, LogFault

_PIECE = 4 << 20
"""Bytes that are read from a file, or from an object, at a time."""
CONNECT_S, STALL_S = 3.0, 15.0
"""How long a connection may take, and how long no byte may move: a busy server takes seconds to complete an upload."""
_ATTEMPTS = 2
"""Attempts of one request by the client library, against single lost connections."""
_OPTIONS = ("endpoint_override", "region")
_SHAPES = "write s3://bucket/prefix or file:///directory"
_AWS = re.compile(r"AWS Error (?P<code>\w+).*? during \w+ operation(?: \(.*?\))?: (?P<text>.*)", re.DOTALL)
_CURL = re.compile(r"curlCode: \d+, (?P<text>[^;]*)")
_CREDENTIALS = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN", "INVALID_TOKEN")


class StoredObject(msgspec.Struct, frozen=True):
    """One object, and what its content is."""

    uri: str
    bytes: int
    checksum: str
    """Of the content, 32 hex digits of xxh3-128."""


class Cancelled(Exception):
    """The caller wants the transfer to end."""


def check_uri(uri: str) -> str:
    """Return a URI if it names a place for objects; raises ConfigError, which says what is wrong."""
    parts = urlsplit(uri)
    if parts.username or parts.password or "@" in parts.netloc:
        # The message omits the value: it would show the secret.
        raise ConfigError(
            "uri", "must not contain credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
        )
    good = (
        parts.netloc if parts.scheme == "s3" else parts.scheme == "file" and not parts.netloc and parts.path[:1] == "/"
    )
    if not good or parts.fragment:
        raise ConfigError("uri", f"invalid URI {uri!r}; {_SHAPES}")
    known = _OPTIONS if parts.scheme == "s3" else ()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known or not value:
            allowed = f"choose from {', '.join(known)}, and give it a value" if known else "a directory has none"
            raise ConfigError("uri", f"invalid option {name!r} in {uri!r}; {allowed}")
    return uri


def join_uri(uri: str, *names: str) -> str:
    """Return the URI of something below a place."""
    parts = urlsplit(uri)
    path = "/".join([parts.path.rstrip("/"), *map(quote, names)])
    return urlunsplit(parts._replace(path=path))


def last_names(uri: str) -> tuple[str, str]:
    """Return the last two names in the path of a URI, as `join_uri` wrote them; empty ones if there are none."""
    try:
        path = urlsplit(uri).path
    except ValueError:  # not a URI
        return "", ""
    above, _, last = path.rpartition("/")
    return unquote(above.rpartition("/")[2]), unquote(last)


def show_uri(uri: str) -> str:
    """Return a URI for people: without its options, except for the server."""
    parts = urlsplit(uri)
    server = dict(parse_qsl(parts.query)).get("endpoint_override")
    return urlunsplit(parts._replace(query="")) + (f" at {server}" if server else "")


def locate(uri: str) -> tuple[Any, str]:
    """Return the `pyarrow.fs.FileSystem` of a URI, and the path in it; raises ConfigError for an invalid one."""
    parts = urlsplit(check_uri(uri))
    path = unquote(parts.path)
    return _filesystem(parts.scheme, parts.query), path if parts.scheme == "file" else f"{parts.netloc}{path}"


def put_object(path: Path, uri: str, cancelled: Callable[[], bool] = lambda: False) -> StoredObject:
    """Copy a file to an object and return what was sent; call `verify_object` before you rely on it.

    Raises Cancelled, between two pieces, once `cancelled` returns True; then the object may be incomplete.
    """
    system, place = locate(uri)
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file, _reaching(uri, "write"):
        if _is_local(uri):
            system.create_dir(str(Path(place).parent), recursive=True)
        with system.open_output_stream(place) as sink:
            while piece := file.read(_PIECE):
                _check(cancelled)
                sink.write(piece)
                digest.update(piece)
                size += len(piece)
        if _is_local(uri):
            _sync(Path(place))
    return StoredObject(uri, size, digest.hexdigest())


def verify_object(stored: StoredObject, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Read an object back and compare it; raises LogError `corrupt` if it is not what was sent."""
    digest, size = xxhash.xxh3_128(), 0
    with open_object(stored.uri) as source, _reaching(stored.uri, "read"):
        while piece := source.read(_PIECE):
            _check(cancelled)
            digest.update(piece)
            size += len(piece)
    if (size, digest.hexdigest()) != (stored.bytes, stored.checksum):
        raise LogError(
            LogFault.CORRUPT,
            f"{show_uri(stored.uri)} has {size} bytes that are not the {stored.bytes} bytes that were written;"
            " check the storage",
        )


def size_of(uri: str) -> int | None:
    """Return the size of an object, or None if it does not exist."""
    system, place = locate(uri)
    with _reaching(uri, "look up"):
        info = system.get_file_info(place)
    return int(info.size) if info.is_file else None


def open_object(uri: str) -> Any:
    """Open an object for random access, as a `pyarrow.NativeFile`."""
    system, place = locate(uri)
    with _reaching(uri, "read"):
        return system.open_input_file(place)


def read_object(uri: str) -> bytes | None:
    """Return the content of a small object, or None if it does not exist."""
    try:
        with open_object(uri) as source, _reaching(uri, "read"):
            return bytes(source.read())
    except FileNotFoundError:
        return None


def write_object(uri: str, content: bytes) -> None:
    """Write a small object, in one step: readers find the content before or after it."""
    system, place = locate(uri)
    with _reaching(uri, "write"):
        if _is_local(uri):
            system.create_dir(str(Path(place).parent), recursive=True)
            aside = Path(f"{place}.new")
            aside.write_bytes(content)
            _sync(aside)
            aside.replace(place)
        else:
            with system.open_output_stream(place) as sink:
                sink.write(content)


def list_objects(uri: str) -> list[tuple[str, int]]:
    """Return the URI and the size of each object below a place; empty if there is none."""
    return [(join_uri(uri, *name.split("/")), size) for name, size in list_names(uri)]


def list_names(uri: str) -> list[tuple[str, int]]:
    """Return the name, with slashes, and the size of each object below a place; empty if there is none."""
    from pyarrow.fs import FileSelector

    system, place = locate(uri)
    with _reaching(uri, "list"):
        found = system.get_file_info(FileSelector(place, recursive=True, allow_not_found=True))
    return sorted((info.path[len(place.rstrip("/")) + 1 :], int(info.size)) for info in found if info.is_file)


def delete_object(uri: str) -> None:
    """Delete an object if it exists."""
    system, place = locate(uri)
    try:
        with _reaching(uri, "delete"):
            system.delete_file(place)
    except FileNotFoundError:
        pass


def explain(uri: str, doing: str, error: Exception) -> LogError | None:
    """Return the LogError for a failure of storage, or None if storage did its part and the content is wrong."""
    found = _AWS.search(str(error))
    return None if found is None else _unreachable(uri, doing, _reason(found["code"], found["text"]))


@lru_cache(maxsize=16)
def _filesystem(scheme: str, query: str) -> Any:
    from pyarrow import fs

    if scheme == "file":
        return fs.LocalFileSystem()
    return fs.S3FileSystem(
        **dict(parse_qsl(query)),
        connect_timeout=CONNECT_S,
        request_timeout=STALL_S,
        # In the background, parts would pile up in memory while the network is slower than the disk.
        background_writes=False,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


@contextmanager
def _reaching(uri: str, doing: str) -> Iterator[None]:
    """Turn errors of pyarrow into a LogError in one sentence, and name an object that does not exist."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{show_uri(uri)} is gone from object storage") from None
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise explain(uri, doing, error) or _unreachable(uri, doing, why) from None


def _unreachable(uri: str, doing: str, why: str) -> LogError:
    return LogError(LogFault.UNREACHABLE, f"cannot {doing} {show_uri(uri)}: {why}")


def _reason(code: str, text: str) -> str:
    """Return why storage did not do what was asked, and what to do next."""
    if (network := _CURL.search(text)) is not None:
        return f"it does not answer ({network['text'].strip().lower()}); check the server and the network"
    if code in _CREDENTIALS:
        return (
            f"it refuses the credentials ({code}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, of"
            " someone who may read, write and delete there"
        )
    if code == "NO_SUCH_BUCKET":
        return "the bucket does not exist; create it"
    said = re.sub(r"\s*\(Request ID.*", "", " ".join(text.split())).rstrip(".")
    return f"it answers {said!r} ({code}); check the server and its free space"


def _is_local(uri: str) -> bool:
    return uri.startswith("file:")


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise Cancelled


def _sync(path: Path) -> None:
    """Wait until a file and its name are on the disk, as object storage has done when it answers."""
    for place in (path, path.parent):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
