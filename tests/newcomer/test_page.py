"""Pages are read as people read them."""

from tests.newcomer.page import steps_of


def test_a_block_belongs_to_the_machine_that_is_named_before_it() -> None:
    steps = steps_of("two-machines.md")
    assert [(step.kind, step.machines) for step in steps] == [
        ("sh", ["robot", "base"]),
        ("sh", ["robot"]),
        ("sh", ["base"]),
        ("toml", ["robot"]),
        ("sh", ["robot"]),
        ("toml", ["base"]),
        ("sh", ["base"]),
        ("sh", ["robot"]),
        ("sh", ["base"]),
    ]
    assert steps[0].text == "mkdir mesh\ncd mesh\n"
