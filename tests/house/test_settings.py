"""The settings reference says what the configuration types say."""

import msgspec
import pytest

from tools import settings


@pytest.mark.parametrize(
    "section", [*settings.NODE, *settings.POLICY, *settings.PIPELINE], ids=lambda section: section.kind.__name__
)
def test_every_setting_says_what_it_means(section: settings.Section) -> None:
    texts = settings.meanings(section.kind)
    missing = [field.name for field in msgspec.structs.fields(section.kind) if field.name not in texts]
    assert not missing, f"write a text below {', '.join(missing)} of {section.kind.__name__}"


def test_the_page_is_up_to_date() -> None:
    assert settings.PAGE.read_text("utf-8") == settings.page(), (
        "run `python -m tools.settings` to write docs/settings.md"
    )
