"""The grammar of a conversation's answers: structured ones, strict or required calls, limited reasoning."""

from headrace.base.errors import RequestError
from headrace.base.grammar import Grammar, lark_string
from headrace.engine.text import Text
from headrace.host.text.parts.splitter import SplitPlan
from headrace.host.text.tools.definitions import ToolUse
from headrace.host.text.tools.grammar import (
    Spell,
    Thinking,
    answer_grammar,
    budget_grammar,
    calls_grammar,
    text_or_calls_grammar,
)

BUDGET = "thinking_token_budget"
MAX_BUDGET = 2**31 - 1


def chat_grammar(
    text: Text,
    use: ToolUse,
    plan: SplitPlan,
    budget: int | None,
    answer: Grammar | None = None,
    *,
    has_thought: bool = False,
) -> Grammar | None:
    """What the answers must look like; None: anything goes.

    Args:
        text: the model's.
        use: the tools.
        plan: how the answers are split.
        budget: most tokens of reasoning.
        answer: what the text of an answer, behind its reasoning, must look like where it is no call.
        has_thought: the prompt holds the whole reasoning, so a structured answer begins at once.

    Raises:
        RequestError: a schema cannot be held to, the tools are too large together, calls cannot be told from
            a structured answer, or reasoning cannot be limited in this model.
    """
    thinking = _thinking(text, plan, budget)
    spell = _speller(text)
    if answer is not None and use.is_active and use.mode == "required":
        raise RequestError(
            "tool_choice asks for a call and response_format for a text: they exclude each other, leave out "
            "one of them",
            param="tools",
        )
    try:
        if answer is not None:
            rules = text.dialect.rules(use.callable(), spell) if use.is_active else None
            lead = None if has_thought else thinking
            return answer_grammar(answer, rules, spell, single=not use.parallel, thinking=lead)
        if use.needs_grammar:
            make = calls_grammar if use.mode == "required" else text_or_calls_grammar
            rules = text.dialect.rules(use.callable(), spell)
            return make(rules, spell, single=not use.parallel, thinking=thinking)
        if budget is not None and thinking is not None:
            return budget_grammar(plan.calls.begins if plan.calls else (), spell, thinking)
    except RequestError as fault:
        if not use.is_active:
            raise
        raise RequestError(f"tools: {fault}", param="tools") from fault
    return None


def _thinking(text: Text, plan: SplitPlan, budget: int | None) -> Thinking | None:
    marks = plan.reasoning
    if budget is not None:
        _check_budget(text, marks.end if marks else None, budget)
    return Thinking(marks=marks, is_open=plan.in_reasoning, budget=budget) if marks else None


def _check_budget(text: Text, end: str | None, budget: int) -> None:
    if not 0 <= budget <= MAX_BUDGET:
        raise RequestError(f"{BUDGET} must be in [0, {MAX_BUDGET}], got {budget}", param=BUDGET)
    if end is None:
        raise RequestError(f"this model does not reason: leave {BUDGET} out", param=BUDGET)
    if text.tokenizer is None or text.tokenizer.token_id(end) is None:
        raise RequestError(f"{BUDGET} needs a model whose mark {end} is one token", param=BUDGET)


def _speller(text: Text) -> Spell:
    """Marks that are one token are told by their id: no other spelling of them counts."""

    def spell(mark: str) -> str:
        found = text.tokenizer.token_id(mark) if text.tokenizer is not None else None
        return lark_string(mark) if found is None else f"<[{found}]>"

    return spell
