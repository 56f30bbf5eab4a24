"""The parts of the benchmark `hostile` (bench/bench_hostile.py): what attackers can cost a node.

    victim.py      a real node on a clock that the benchmark moves, and members of its mesh
    outsiders.py   datagrams of those who have no key: junk, forgeries, replays, handshakes
    members.py     messages of a peer: the most expensive ones of each subprotocol, alone and packed
    share.py       an honest stream beside attackers, in processes of their own

The long test of a node under attack (tests/soak/test_hostile.py) uses the same datagrams.
"""
