"""Invites: one node, one key, in time, and what everybody else is told."""

import msgspec
import pytest

from meshbus.errors import ConfigError
from meshbus.policy import invites as subject
from meshbus.policy.invites import (
    MAX_INVITES,
    Invite,
    InviteBook,
    InviteSpec,
    InviteState,
    approve,
    confirm,
    present,
    withdraw,
)
from meshbus.policy.reason import Reason

ISSUER, ROBOT, EVE = b"i" * 32, b"r" * 32, b"e" * 32
END = 1000


def invite(number: int = 1, *, approval: bool = False) -> Invite:
    spec = InviteSpec(name=f"rover-{number}", approval=approval)
    return Invite(invite_id=number.to_bytes(8, "big"), psk=b"p" * 32, issuer=ISSUER, expires=END, spec=spec)


def presented(one: Invite, key: bytes = ROBOT, now: float = 1) -> Invite:
    outcome = present(one, key, ISSUER, now)
    assert isinstance(outcome, Invite), outcome
    return outcome


def test_the_first_key_gets_it_and_may_ask_again_until_it_confirms() -> None:
    granted = presented(invite())
    assert (granted.state, granted.subject) == (InviteState.GRANTED, ROBOT)
    assert presented(granted) == granted
    assert confirm(granted, EVE) == granted
    used = confirm(granted, ROBOT)
    assert used.state is InviteState.USED
    assert confirm(used, ROBOT) == used
    assert present(used, ROBOT, ISSUER, 1) is Reason.REFUSE_JOIN_USED


def test_no_other_key_gets_it_from_then_on() -> None:
    granted = presented(invite())
    for one in (granted, confirm(granted, ROBOT), presented(invite(approval=True))):
        assert present(one, EVE, ISSUER, 1) is Reason.REFUSE_JOIN_OTHER_KEY


def test_it_expires_also_for_the_key_that_it_is_bound_to() -> None:
    assert isinstance(present(invite(), ROBOT, ISSUER, END - 0.1), Invite)
    assert present(invite(), ROBOT, ISSUER, END) is Reason.REFUSE_JOIN_EXPIRED
    assert present(presented(invite()), ROBOT, ISSUER, END) is Reason.REFUSE_JOIN_EXPIRED


def test_an_invite_of_another_issuer_is_refused() -> None:
    assert present(invite(), ROBOT, EVE, 1) is Reason.REFUSE_JOIN_ISSUER


def test_with_approval_a_newcomer_waits_for_an_operator() -> None:
    waiting = presented(invite(approval=True))
    assert (waiting.state, waiting.subject) == (InviteState.WAITING, ROBOT)
    assert presented(waiting) == waiting
    approved = approve(waiting, 1)
    assert present(approved, EVE, ISSUER, 1) is Reason.REFUSE_JOIN_OTHER_KEY
    assert presented(approved).state is InviteState.GRANTED


def test_only_one_that_waits_can_be_approved() -> None:
    waiting = presented(invite(approval=True))
    for one, now, state in [
        (invite(approval=True), 1, "open"),
        (presented(invite()), 1, "granted"),
        (waiting, END, "expired"),
    ]:
        with pytest.raises(ConfigError, match=f"is {state}; only a newcomer that waits is approved"):
            approve(one, now)


def test_a_withdrawn_invite_admits_nobody() -> None:
    for one in (invite(), presented(invite()), presented(invite(approval=True))):
        gone = withdraw(one, 1)
        for key in (ROBOT, EVE):
            assert present(gone, key, ISSUER, 1) is Reason.REFUSE_JOIN_WITHDRAWN
        assert confirm(gone, ROBOT) == gone


def test_what_is_over_cannot_be_withdrawn() -> None:
    used = confirm(presented(invite()), ROBOT)
    for one, now, state in [(used, 1, "used"), (withdraw(invite(), 1), 1, "withdrawn"), (invite(), END, "expired")]:
        with pytest.raises(ConfigError, match=f"is {state} already"):
            withdraw(one, now)


def test_states_as_people_see_them() -> None:
    used = confirm(presented(invite()), ROBOT)
    assert [one.shown_state(END) for one in (invite(), used, withdraw(invite(), 1))] == ["expired", "used", "withdrawn"]
    assert invite().shown_state(1) == "open"


def test_the_book_keeps_so_many_and_forgets_what_is_over_first() -> None:
    book = InviteBook()
    for number in range(MAX_INVITES):
        book.add(invite(number), 1)
    with pytest.raises(ConfigError, match="256 invites are open already"):
        book.add(invite(MAX_INVITES), 1)
    assert len(book) == MAX_INVITES
    third = next(one for one in book if one.spec.name == "rover-3")
    book.put(withdraw(third, 1))
    book.add(invite(MAX_INVITES), 1)
    assert len(book) == MAX_INVITES
    assert book.get(third.invite_id) is None
    assert [one.spec.name for one in book][-1] == f"rover-{MAX_INVITES}"


def test_when_the_last_open_one_ends() -> None:
    later = msgspec.structs.replace(invite(2), expires=END + 5)
    book = InviteBook([invite(1), later])
    assert (book.last_end(1), book.last_end(END), book.last_end(END + 5)) == (END + 5, END + 5, None)
    book.put(withdraw(later, 1))
    assert book.last_end(1) == END
    assert InviteBook().last_end(1) is None


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"name": "two words"}, "name"), ({"ttl_s": 0}, "ttl_s"), ({"valid_s": subject.MAX_VALID_S + 1}, "valid_s")],
)
def test_wrong_specifications_are_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: must"):
        InviteSpec(**{"name": "x", **changes})  # type: ignore[arg-type]


def test_no_repr_shows_the_secret() -> None:
    assert b"p" * 32 not in repr(invite()).encode()
    assert "rover-1" in repr(invite())
    assert invite().__rich_repr__()[1:] == [("name", "rover-1"), ("state", "open")]
