"""The keyword arguments of a node are the settings of its configuration, no more and no less."""

from meshbus.config.node import NodeConfig
from meshbus.node.options import NodeOptions


def test_every_setting_is_an_option_in_the_same_order() -> None:
    assert list(NodeOptions.__annotations__) == list(NodeConfig.__struct_fields__)
