"""Several errors of one reading."""

import pytest

from meshbus.config.findings import MOST_ERRORS, Findings
from meshbus.errors import ConfigError


def caught(findings: Findings) -> list[str]:
    with pytest.raises(ConfigError) as error:
        findings.raise_first()
    return [one.key for one in (error.value, *error.value.more)]


def test_the_first_is_raised_with_the_others_and_one_for_each_key() -> None:
    findings = Findings()
    findings.raise_first()
    for key in ("a", "b", "a"):
        with findings.collect():
            raise ConfigError(key, "is wrong")
    assert caught(findings) == ["a", "b"]
    outer = Findings()
    outer.add(ConfigError("c", "is wrong"))
    with outer.collect():
        findings.raise_first()
    assert caught(outer) == ["c", "a", "b"]
    with pytest.raises(ValueError, match="something else"), outer.collect():
        raise ValueError("something else")


def test_there_are_so_many_at_most() -> None:
    findings = Findings()
    for number in range(MOST_ERRORS + 5):
        findings.add(ConfigError(str(number), "is wrong"))
    assert caught(findings) == [str(number) for number in range(MOST_ERRORS)]
