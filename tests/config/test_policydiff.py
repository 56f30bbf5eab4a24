"""The difference of two policies says in words what changes, and nothing if nothing changes."""

import pytest

from meshbus.config.policydiff import differences
from meshbus.config.policyfile import parse_policy

KEY = "ab" * 32
CHANNEL = '[[channels]]\nname = "robots/pose"\n'
OPEN = 'unlisted_channels = "open"\n'
GATEWAY = '[[gateways]]\nnode = "west"\n'


def changes(old: str, new: str) -> list[str]:
    return differences(parse_policy(old.encode(), "old"), parse_policy(new.encode(), "new"))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            OPEN + CHANNEL + 'visibility = "subnet-local"\n',
            OPEN + CHANNEL + 'subscribe_caps = { require_tags = ["lidar"] }\n',
            [
                (
                    "channel robots/pose: visibility subnet-local → global; nodes in every subnet may get its events;"
                    " subscribers without the capability lidar lose access"
                )
            ],
        ),
        (
            OPEN + CHANNEL,
            OPEN + CHANNEL + "require_token = true\npriority = 3\nreliable = true\nmax_rate_pps = 5\n",
            [
                (
                    "channel robots/pose: publishers and subscribers without a token lose access; priority 0 → 3;"
                    " reliable by default no → yes; packets per second of one node no limit → 5"
                )
            ],
        ),
        (
            OPEN + CHANNEL + "require_token = true\npublish_caps = { min_memory_gb = 8, gpu_vendor = 'nvidia' }\n",
            OPEN + CHANNEL,
            [
                (
                    "channel robots/pose: publishers and subscribers no longer need a token;"
                    " publishers no longer need 8 GB of memory and a GPU of nvidia"
                )
            ],
        ),
        (
            OPEN + CHANNEL + 'publish_caps = { require_tags = ["a", "b"] }\n',
            OPEN + CHANNEL + 'publish_caps = { require_models = ["m"], require_modalities = ["image"] }\n',
            [
                (
                    "channel robots/pose: publishers need one of the models m and models for image, instead of the"
                    " capabilities a, b"
                )
            ],
        ),
        (
            "",
            CHANNEL + "require_token = true\n",
            [
                "channel robots/pose: publishers and subscribers without a token lose access",
                "channels without an entry: open → refused; subscriptions to them end",
            ],
        ),
        (
            'unlisted_channels = "refuse"\n' + CHANNEL,
            'unlisted_channels = "refuse"\n',
            ["channel robots/pose: subscriptions are refused as unknown, and those that exist end"],
        ),
        (
            'unlisted_channels = "refuse"\n',
            'unlisted_channels = "refuse"\n[[channels]]\nprefix = "p/"\npriority = 1\n',
            ["prefix 'p/': subscriptions were refused as unknown, and are allowed; priority 0 → 1"],
        ),
        (
            '[[channels]]\nprefix = "p/"\npriority = 1\n',
            '[[channels]]\nprefix = "p/"\npriority = 1\n[[channels]]\nname = "p/x"\npriority = 1\n',
            [],
        ),
        (
            '[[channels]]\nprefix = "p/"\npriority = 1\n',
            '[[channels]]\nprefix = "p/"\npriority = 1\n[[channels]]\nname = "p/x"\n',
            ["channel p/x: priority 1 → 0"],
        ),
        (
            'unlisted_channels = "refuse"\n',
            "",
            ["channels without an entry: refused → open; every node may subscribe to them"],
        ),
        ("", f'trusted_issuers = ["{KEY}"]\n', [f"issuer {KEY}: its tokens are accepted"]),
        (
            f'trusted_issuers = ["{KEY}"]\n',
            "",
            [f"issuer {KEY}: its tokens are no longer accepted, and what they allowed ends"],
        ),
        (
            '[[subnet_rules]]\nmatch_tags = ["w"]\ntarget_subnet = "3"\n',
            'default_subnet = "9"\n[[subnet_rules]]\nmatch_tags = []\ntarget_subnet = "4"\n',
            [
                "subnet rule removed: nodes with w are in subnet 3",
                "subnet rule added: all other nodes are in subnet 4",
                "nodes that no subnet rule matches: subnet global → 9",
            ],
        ),
        (
            '[[subnet_rules]]\nmatch_tags = ["w"]\ntarget_subnet = "3"\n[[subnet_rules]]\nmatch_tags = ["e"]\ntarget_subnet = "4"\n',
            '[[subnet_rules]]\nmatch_tags = ["e"]\ntarget_subnet = "4"\n[[subnet_rules]]\nmatch_tags = ["w"]\ntarget_subnet = "3"\n',
            ["subnet rules: the order changes, and with it the rule that applies to a node with the tags of several"],
        ),
        (
            "",
            '[[level_rules]]\ntag_prefix = "region:"\nlevel = 0\nvalues = { eu = 2 }\n',
            ["level rule added: tags region:… set level 0: eu 2"],
        ),
        (
            "",
            GATEWAY + 'peer_subnets = ["3"]\nunknown_channels = "forward"\n',
            [
                "gateway west: judges the packets that it forwards between subnets",
                "gateway west: packets from and to subnet 3 may pass",
                "gateway west: events on channels without an entry: drop → forward",
            ],
        ),
        (
            GATEWAY + 'peer_subnets = ["3"]\n',
            GATEWAY + "enforce_publishers = false\n",
            [
                "gateway west: packets from and to subnet 3 are dropped",
                "gateway west: events of publishers that the channel does not allow pass",
            ],
        ),
        (GATEWAY, "", ["gateway west: is a plain relay, and forwards packets without judging them"]),
        (
            CHANNEL
            + 'visibility = "exported"\n'
            + GATEWAY
            + '[[exports]]\nchannel = "robots/pose"\nsubnets = ["3", "4"]\n',
            CHANNEL
            + 'visibility = "exported"\n'
            + GATEWAY
            + '[[exports]]\nchannel = "robots/pose"\nsubnets = ["4", "5"]\n',
            ["channel robots/pose: exported to subnet 5", "channel robots/pose: no longer exported to subnet 3"],
        ),
    ],
)
def test_changes_in_words(old: str, new: str, told: list[str]) -> None:
    assert changes(old, new) == told
    assert changes(old, old) == changes(new, new) == []
