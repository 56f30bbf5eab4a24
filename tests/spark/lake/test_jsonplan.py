"""The fields of a schema are arrays in which every name, type and limit is found again."""

from meshbus.log.payload import parse_fields
from meshbus.spark.lake import jsonplan
from meshbus.spark.lake.jsonplan import plan_of


def test_without_fields_everything_is_accepted() -> None:
    plan = plan_of(())
    assert plan.nodes[:, jsonplan.KIND].tolist() == [jsonplan.ANY, jsonplan.ANY]
    assert plan.fields.shape == (1, 4)


def test_nested_types_refer_to_their_parts() -> None:
    plan = plan_of(
        parse_fields("a SMALLINT NOT NULL, `é` STRUCT<x ARRAY<STRING>, y DECIMAL(5,2) NOT NULL>, m MAP<STRING,DATE>")
    )
    root = plan.nodes[jsonplan.ROOT]
    assert root[[jsonplan.KIND, jsonplan.COUNT, jsonplan.REQUIRED]].tolist() == [jsonplan.STRUCT, 3, 1]

    def field(node: int, number: int) -> tuple[str, int, bool]:
        at, size, child, needed = plan.fields[plan.nodes[node, jsonplan.FIRST] + number].tolist()
        return plan.names[at : at + size].tobytes().decode(), child, bool(needed)

    names = [field(jsonplan.ROOT, number) for number in range(3)]
    assert [(name, needed) for name, _, needed in names] == [("a", True), ("é", False), ("m", False)]
    small, inner, mapping = (child for _, child, _ in names)
    assert plan.nodes[small, : jsonplan.HIGH + 1].tolist() == [jsonplan.INTEGER, -32768, 32767]
    (x, items, _), (y, amount, needed) = field(inner, 0), field(inner, 1)
    assert (x, y, needed) == ("x", "y", True)
    assert plan.nodes[plan.nodes[items, jsonplan.FIRST], jsonplan.KIND] == jsonplan.STRING
    assert plan.nodes[amount].tolist() == [jsonplan.DECIMAL, -999, 999, 3, 2, 0]
    assert plan.nodes[plan.nodes[mapping, jsonplan.FIRST], jsonplan.KIND] == jsonplan.DATE
