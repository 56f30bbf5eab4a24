"""Join, new secrets and revocation in a fleet of five real processes under load; tests/soak/test_trust.py is longer."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.conftest import Meshbus
from tests.trust.fleet import Fleet
from tests.trust.story import Story

pytestmark = pytest.mark.slow


def test_secrets_change_under_load_and_what_is_revoked_is_cut(tmp_path: Path, meshbus: Meshbus) -> None:
    with ExitStack() as stack:
        story = Story(Fleet(tmp_path, meshbus, stack), pause_s=0.01, events=10)
        story.join()
        story.rotate_mesh_key()
        story.rotate_issuer()
        story.rotate_identity()
        assert story.check() > 100
        story.revoke()
