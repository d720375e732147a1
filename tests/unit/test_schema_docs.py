"""The page of the API names every field, and none that does not exist."""

import re
from pathlib import Path

from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.completion import CompletionBody
from headrace.serve.schema.support import CHAT_NEUTRAL, COMPLETION_NEUTRAL

PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text()


def section(title: str) -> set[str]:
    (text,) = re.findall(rf"\*\*{title}[^\n]*", PAGE)
    return set(re.findall(r"`([a-z_]+)`", text))


def test_every_field_is_on_the_page() -> None:
    named = set(re.findall(r"`([a-z_]+)`", PAGE))
    assert set(ChatBody.model_fields) | set(CompletionBody.model_fields) <= named


def test_every_refused_field_is_on_the_page() -> None:
    assert section("Refused") == set(CHAT_NEUTRAL) | set(COMPLETION_NEUTRAL)
