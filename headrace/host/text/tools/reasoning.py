"""Whether a model reasons before it answers, and what it puts around that text."""

from headrace.host.text.chat import ChatTemplate
from headrace.host.text.parts.splitter import ReasoningMarks
from headrace.host.text.tokenizer import Tokenizer

KNOWN = (
    ReasoningMarks(begin="<think>", end="</think>"),
    ReasoningMarks(begin="[THINK]", end="[/THINK]"),
    ReasoningMarks(begin="<seed:think>", end="</seed:think>"),
)


def find_reasoning(template: ChatTemplate, tokenizer: Tokenizer | None) -> ReasoningMarks | None:
    """The marks that the template or the vocabulary has; None: neither has any."""
    for marks in KNOWN:
        if template.mentions(marks.end):
            return marks
        if tokenizer is not None and tokenizer.token_id(marks.begin) is not None:
            return marks
    return None
