"""Who may read a node over HTTP: the token, the cookie of a browser, and the names of this machine."""

import pytest

from meshbus.web.access import SESSION_S, UNKNOWN_READER, WRONG_HOST, Access

TOKEN = "0123456789abcdef"
NOW = 1_800_000_000


def test_without_a_token_only_names_of_this_machine_are_answered() -> None:
    access = Access(1, None)
    for host in ("127.0.0.1:9464", "localhost", "[::1]:9464", "127.9.9.9"):
        assert access.refusal({"host": host}, {}, NOW) is None, host
    for host in ("evil.example:9464", "10.0.0.7", "", "[fe80::1]", "127.0.0.1.evil.example"):
        assert access.refusal({"host": host}, {}, NOW) == (421, WRONG_HOST), host


@pytest.mark.parametrize(
    ("header", "right"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (f"Basic {TOKEN}", False),
        ("Bearer wrong", False),
        ("Bearer", False),
        ("", False),
        ("Bearer tøken", False),
    ],
)
def test_the_header_carries_the_token(header: str, right: bool) -> None:
    access = Access(1, TOKEN)
    refusal = access.refusal({"authorization": header, "host": "anywhere"}, {}, NOW)
    assert refusal == (None if right else (401, UNKNOWN_READER))


def test_a_cookie_is_valid_for_its_time_and_for_its_token() -> None:
    access = Access(7, TOKEN)
    cookie = {access.cookie_name: access.session(NOW)}
    assert access.refusal({}, cookie, NOW) is None
    assert access.refusal({}, cookie, NOW + SESSION_S - 1) is None
    assert access.refusal({}, cookie, NOW + SESSION_S) == (401, UNKNOWN_READER)
    assert Access(7, "another-token-123").refusal({}, cookie, NOW) == (401, UNKNOWN_READER)
    assert TOKEN not in cookie[access.cookie_name]


def test_a_cookie_cannot_be_changed() -> None:
    access = Access(7, TOKEN)
    until, _, signature = access.session(NOW).partition(".")
    forged = [f"{int(until) + 1}.{signature}", f"{until}.{signature[:-1]}0", f"{until}.", ".", "", "9" * 40, "٣.x"]
    for cookie in (*forged, f"{until}.{'ä' * 64}"):
        if cookie != f"{until}.{signature}":
            assert access.refusal({}, {access.cookie_name: cookie}, NOW) is not None, cookie


def test_nodes_on_one_host_have_cookies_of_their_own() -> None:
    assert Access(1, TOKEN).cookie_name != Access(2, TOKEN).cookie_name


def test_a_node_without_a_token_takes_none() -> None:
    assert not Access(1, None).has_token({"authorization": "Bearer "})
