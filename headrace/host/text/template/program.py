"""A chat template made ready to run. It imports Jinja, which takes long: imported when a template is used."""

from collections.abc import Mapping
from typing import Any, cast

from jinja2 import nodes
from jinja2.exceptions import TemplateError

from headrace.base import clock
from headrace.base.errors import RequestError
from headrace.host.text.template.budget import Budget
from headrace.host.text.template.sandbox import BUDGET, MARKS, Sandbox

MAX_UNITS = 400_000
MAX_CHARS = 4 << 20
MAX_SECONDS = 0.8
"""Work, output and time of a rendering; callers with much text get more, in proportion."""

_SANDBOX = Sandbox()


class TemplateProgram:
    """A compiled template. Immutable, safe to share between threads.

    `reads_parts` tells whether it goes over the parts of a message's content.

    Raises:
        ValueError: the template is broken.
    """

    def __init__(self, source: str) -> None:
        try:
            tree, self._make = _SANDBOX.compile_bounded(source)
        except Exception as fault:  # the parser is not the only one to fail on a broken template
            raise ValueError(f"the model's chat template is broken: {_reason(fault)}") from fault
        self.reads_parts = any(_reads_content(loop.iter) for loop in tree.find_all(nodes.For))

    def render(self, variables: Mapping[str, Any], num_chars: int, marks: tuple[str, ...]) -> str:
        """The text.

        Args:
            variables: what the template may use.
            num_chars: characters of the callers' text; work and output may grow with it.
            marks: characters that `tojson` leaves as they are.

        Raises:
            RequestError: the template refuses the variables, fails, or exceeds the budget.
        """
        budget = Budget(
            units=MAX_UNITS + num_chars,
            chars=MAX_CHARS + 8 * num_chars,
            deadline_s=clock.now_s() + MAX_SECONDS + num_chars * 1e-7,
        )
        try:
            return cast("str", self._make().render({**variables, BUDGET: budget, MARKS: marks}))
        except TemplateError as fault:
            raise RequestError(
                f"the model's chat template refuses: {_reason(fault)}", param="messages"
            ) from fault
        except Exception as fault:
            raise RequestError(
                f"the model's chat template fails on these messages: {_reason(fault)}", param="messages"
            ) from fault


def _reads_content(expression: nodes.Node) -> bool:
    """Whether a loop goes over a message's content, that is, over its parts."""
    found = [expression, *expression.find_all((nodes.Getattr, nodes.Getitem, nodes.Name))]
    return any(
        (isinstance(n, nodes.Getattr) and n.attr == "content")
        or (isinstance(n, nodes.Getitem) and isinstance(n.arg, nodes.Const) and n.arg.value == "content")
        or (isinstance(n, nodes.Name) and n.name == "content")
        for n in found
    )


def _reason(fault: BaseException) -> str:
    text = str(fault) or type(fault).__name__
    return f"{text:.1000}" if isinstance(fault, TemplateError) else f"{type(fault).__name__}: {text:.300}"
