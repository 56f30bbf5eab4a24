"""Fixtures of the tests against published net-mesh nodes.

Without the package these tests fail; they are never skipped. Every node is watched for the whole of its test: whatever
else a test shows, no real peer may have been sent a byte of the meshbus profile.
"""

import importlib.metadata
from collections.abc import AsyncIterator

import pytest

from meshbus.testing.realpeer import PACKAGE, VERSION
from tests.interop.lab import Lab, profile_packets


@pytest.fixture(scope="session", autouse=True)
def published_package() -> None:
    """Make sure of what is tested against."""
    assert importlib.metadata.version(PACKAGE) == VERSION


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    """Return a factory of peers and nodes, which closes all of them at the end of the test."""
    lab = Lab()
    try:
        yield lab
    finally:
        await lab.close()
    for tap in lab.taps:
        assert profile_packets(tap) == [], "a plain peer was sent a part of the meshbus profile"
