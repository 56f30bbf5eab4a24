"""What tests of upgrades share."""

from tests.upgrade.older import older

__all__ = ["older"]
