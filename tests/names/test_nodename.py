import pytest

from meshbus.errors import ConfigError
from meshbus.names.nodename import MAX_NODE_NAME, check_node_name, is_node_name


@pytest.mark.parametrize("name", ["west-rover", "a", "7", "Base.north_2", "x" * MAX_NODE_NAME])
def test_names(name: str) -> None:
    assert is_node_name(name)
    check_node_name(name)


@pytest.mark.parametrize(
    "text", ["", "-a", ".a", "a b", "a\n", "\x1b[2J", "rover/1", "röver", "x" * (MAX_NODE_NAME + 1)]
)
def test_what_is_no_name(text: str) -> None:
    assert not is_node_name(text)
    with pytest.raises(ConfigError, match="name: must have 1 to 63 letters"):
        check_node_name(text)
