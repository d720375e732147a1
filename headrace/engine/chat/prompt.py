"""From a conversation to a prompt, and how the answers to it are split.

The model's template decides everything here: which dialect its tool calls have, whether it reasons, which
options it reads. An option that it does not read is refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.base.errors import RequestError
from headrace.base.grammar import Grammar
from headrace.base.request import SamplingParams
from headrace.engine.chat.grammar import chat_grammar
from headrace.engine.text import Text
from headrace.host.text.parts.splitter import ReasoningMarks, SplitPlan
from headrace.host.text.tools.definitions import NO_TOOLS, ToolUse

Messages = Sequence[Mapping[str, Any]]

EFFORT = "reasoning_effort"
THINKING = "enable_thinking"
_OURS = frozenset({"add_generation_prompt", "continue_final_message"})
_TAIL = 16
"""Tokens at the end of a prompt in which a mark of reasoning may stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a conversation asks for besides its messages."""

    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More variables for the template, and `add_generation_prompt`, `continue_final_message`."""
    tools: ToolUse = NO_TOOLS
    effort: str | None = None
    """`reasoning_effort`, for templates that read it; "none" also for those that read `enable_thinking`."""
    shows_reasoning: bool = True
    thinking_budget: int | None = None
    """`thinking_token_budget`: most tokens of reasoning; its end is then forced."""
    answer: Grammar | None = None
    """What the text of the answers must look like, behind their reasoning, where they are no calls."""
    must_fit: bool = False
    """It is to be answered as it is, neither counted only nor cut before: too long a text may be given up."""

    def of(self, params: SamplingParams) -> "ChatOptions":
        """The options of a conversation that is answered with those parameters."""
        return replace(self, answer=params.structured, must_fit=params.truncate_prompt_tokens is None)


DEFAULTS = ChatOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation, ready: token ids, how the answers are split (None: they are not), what they must be."""

    ids: tuple[int, ...]
    plan: SplitPlan | None
    grammar: Grammar | None = None

    def constrained(self, params: SamplingParams) -> SamplingParams:
        """Parameters that hold an answer to its grammar, which has theirs within (`ChatOptions.answer`)."""
        return params if self.grammar is None else replace(params, structured=self.grammar)


def chat_prompt(
    text: Text, messages: Messages, options: ChatOptions = DEFAULTS, most: int | None = None
) -> ChatPrompt:
    """Render and tokenize a conversation.

    Raises:
        RequestError: no tokenizer, no template, the template refuses, or does not read an option.
        TooManyTokensError: it has more than `most`.
    """
    use = options.tools
    variables = _variables(text, options)
    told: Messages = messages
    if use.is_active or any(_speaks_of_tools(m) for m in messages):
        definitions = [t.definition() for t in use.tools] if use.is_active else []
        told, definitions = text.dialect.conversation([dict(m) for m in messages], definitions)
        if definitions:
            variables["tools"] = definitions
    ids = text.encode_chat(told, variables, most)
    marks = text.reasoning
    if marks is None and not use.is_active and options.thinking_budget is None:
        return ChatPrompt(ids=ids, plan=None, grammar=options.answer)
    plan = SplitPlan(
        reasoning=marks,
        in_reasoning=marks is not None and _ends_in_reasoning(text, marks, ids, messages, variables),
        shows_reasoning=options.shows_reasoning,
        calls=text.dialect if use.is_active else None,
        names=use.names if use.is_active else frozenset(),
        single=not use.parallel,
        certain=use.needs_grammar or (use.is_active and options.answer is not None),
        whole=options.answer is not None,
    )
    has_thought = marks is not None and not plan.in_reasoning and _has_thought(text, marks, ids, variables)
    grammar = chat_grammar(text, use, plan, options.thinking_budget, options.answer, has_thought=has_thought)
    return ChatPrompt(ids=ids, plan=plan, grammar=grammar)


def _variables(text: Text, options: ChatOptions) -> dict[str, Any]:
    variables = dict(options.template_kwargs)
    for name, value in variables.items():
        if name in _OURS or text.chat_template.mentions(name):
            continue
        if name == THINKING and value is False and text.reasoning is None:
            continue  # a model that does not reason does as it is told
        raise RequestError(
            f"this model's chat template does not read {name[:64]!r}; leave it out",
            param="chat_template_kwargs",
        )
    effort = options.effort
    if effort is None:
        return variables
    if text.chat_template.mentions(EFFORT):
        return {EFFORT: effort, **variables}
    if effort == "none" and text.reasoning is None:
        return variables
    if effort == "none" and text.chat_template.mentions(THINKING):
        return {THINKING: False, **variables}
    raise RequestError(
        f"this model's chat template does not read reasoning_effort: {effort[:20]!r} would have no effect, "
        "leave it out",
        param=EFFORT,
    )


def _speaks_of_tools(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls")) or message.get("role") == "tool"


def _ends_in_reasoning(
    text: Text, marks: ReasoningMarks, ids: tuple[int, ...], messages: Messages, variables: Mapping[str, Any]
) -> bool:
    """Whether the prompt opens reasoning that the answer goes on with."""
    if variables.get("continue_final_message"):
        said = str(messages[-1].get("content") or "")
        return said.rfind(marks.begin) > said.rfind(marks.end)
    return text.tail(ids, _TAIL).rstrip().endswith(marks.begin)


def _has_thought(
    text: Text, marks: ReasoningMarks, ids: tuple[int, ...], variables: Mapping[str, Any]
) -> bool:
    """Whether the prompt ends behind reasoning, or within a text that the answer goes on with."""
    if variables.get("continue_final_message"):
        return True
    return text.tail(ids, _TAIL).rstrip().endswith(marks.end)
