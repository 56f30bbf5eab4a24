"""Join, new secrets and revocation in a fleet of five real processes, under more load and many keys.

The short form is in tests/trust.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.conftest import Meshbus, home, meshbus
from tests.trust.fleet import Fleet
from tests.trust.story import Story

__all__ = ["home", "meshbus"]

KEYS = 20
"""Mesh keys, one after the other."""


@pytest.mark.soak
def test_secrets_change_again_and_again_under_load(tmp_path: Path, meshbus: Meshbus) -> None:
    with ExitStack() as stack:
        story = Story(Fleet(tmp_path, meshbus, stack), pause_s=0.001, events=300)
        story.join()
        for _ in range(KEYS):
            story.rotate_mesh_key()
        story.rotate_issuer()
        story.rotate_identity()
        assert story.check() > 300 * KEYS
        story.revoke()
