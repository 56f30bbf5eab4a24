"""The command line of the operator."""

from tests.cli.conftest import home, meshbus

__all__ = ["home", "meshbus"]
