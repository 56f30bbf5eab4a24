import pytest

from meshbus.names.nodename import MAX_NODE_NAME, is_node_name


@pytest.mark.parametrize("name", ["west-rover", "a", "7", "Base.north_2", "x" * MAX_NODE_NAME])
def test_names(name: str) -> None:
    assert is_node_name(name)


@pytest.mark.parametrize(
    "text", ["", "-a", ".a", "a b", "a\n", "\x1b[2J", "rover/1", "röver", "x" * (MAX_NODE_NAME + 1)]
)
def test_what_is_no_name(text: str) -> None:
    assert not is_node_name(text)
