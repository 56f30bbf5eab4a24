"""The settings of the web server: on this machine by default, and with a token elsewhere."""

import pytest

from meshbus.config import NodeConfig
from meshbus.config.spelling import Endpoint
from meshbus.config.web import WebEntry, is_loopback
from meshbus.errors import ConfigError


def test_the_default_is_this_machine() -> None:
    assert str(WebEntry().bind) == "127.0.0.1:9464"
    config = NodeConfig.load(None, {}, web={"bind": "[::1]:0"})
    assert config.web is not None
    assert config.web.bind == Endpoint("::1", 0)
    assert NodeConfig.load(None, {}).web is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "robot.local"])
def test_another_address_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=r"web\.token_file.*required because bind is .*bind to 127\.0\.0\.1"):
        NodeConfig.load(None, {}, web={"bind": f"{host}:9464"})
    config = NodeConfig.load(None, {}, web={"bind": f"{host}:9464", "token_file": "web.token"})
    assert config.web is not None


def test_which_hosts_are_this_machine() -> None:
    assert [host for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost") if not is_loopback(host)] == []
    assert not is_loopback("::")
