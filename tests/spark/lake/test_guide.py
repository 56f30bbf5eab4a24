"""The guide says what the catalog says."""

import pytest

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.guide import FIRST_HEADING, render_table, update
from tests.house.tree import ROOT

PAGE = ROOT / "docs" / "guide" / "tables.md"


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text("utf-8")
    assert text.count(FIRST_HEADING) == 1
    assert text == update(text, CATALOG), "run: python -m meshbus.spark.lake.guide docs/guide/tables.md"


def test_the_text_above_the_reference_is_kept() -> None:
    page = update(f"# Mine\n\n{FIRST_HEADING}old", CATALOG)
    assert page.startswith(f"# Mine\n\n{FIRST_HEADING}\n### bronze.events\n")
    assert "old" not in page.splitlines()


@pytest.mark.parametrize("name", CATALOG)
def test_every_column_is_listed(name: str) -> None:
    text = render_table(CATALOG, name)
    assert all(f"| `{column.name}` | " in text for column in CATALOG[name])
    assert ("Computed from `" in text) is (name in CATALOG.gold)
