"""Names of nodes: what people call a node, such as `west-rover`.

A node announces its name as metadata under the key `name`. A name is a label and nothing else: two nodes may have the
same one, and nothing is decided by it. Ids of nodes are in names/identity.py.
"""

from __future__ import annotations

import re

from meshbus.errors import ConfigError

NAME_KEY = "name"
"""The key of the announced metadata that holds the name."""
MAX_NODE_NAME = 63
"""Characters of a name. As long as a label of a host name may be, so that host names can be used."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NODE_NAME - 1}}}")


def is_node_name(text: str) -> bool:
    """Return whether a text is a name: letters, digits, `.`, `_` and `-`, beginning with a letter or a digit."""
    return _NAME.fullmatch(text) is not None


def check_node_name(text: str) -> None:
    """Raise ConfigError for a text that is not a name."""
    if not is_node_name(text):
        raise ConfigError(
            "name",
            f"must have 1 to {MAX_NODE_NAME} letters, digits, '.', '_' or '-', and begin with a letter or a digit, got {text!r}",
        )
