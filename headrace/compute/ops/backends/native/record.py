"""Record a forward pass: every call of `Ops` becomes a node over values without data.

A value is a rectangle [T or S, width]. A view (`split`) has a `base`; only bases have memory. Until `lower`
runs, every node makes a new value and changes nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.errors import ShapeError
from headrace.compute.ops.api import AttentionParams, Forward, ForwardContext, Handle

TOKENS = "tokens"
LOGITS = "logits"
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


@dataclass(slots=True, eq=False)
class Value:
    """Columns [column, column + width) of `base`, or a value of its own."""

    rows: str
    width: int
    base: "Value | None" = None
    column: int = 0

    @property
    def root(self) -> "Value":
        """The value whose memory this is."""
        value = self
        while value.base is not None:
            value = value.base
        return value

    @property
    def start(self) -> int:
        """First column within the root."""
        value, column = self, self.column
        while value.base is not None:
            value = value.base
            column += value.column
        return column

    def view(self, column: int, width: int) -> "Value":
        """A range of columns."""
        return Value(self.rows, width, self, column)

    def become(self, other: "Value") -> None:
        """Share the memory of `other` from now on; chains of layers stay short."""
        self.base, self.column = other.root, other.start

    def overlaps(self, other: "Value") -> bool:
        """Whether the two share memory."""
        if self.root is not other.root:
            return False
        return self.start < other.start + other.width and other.start < self.start + self.width


@dataclass(slots=True, eq=False)
class Quantized:
    """Rows of `width` columns as products read them that do not read floats.

    `private`: every thread may make its own when rows are few; `codes`: quantized to int8; `rounded`: rounded
    to bfloat16.
    """

    rows: str
    width: int
    private: bool = False
    codes: bool = False
    rounded: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """One operation. `quant_in` is read by products, `quant_out` written by whoever quantizes."""

    kind: str
    inputs: list[Value]
    output: Value
    params: dict[str, Any] = field(default_factory=dict)
    quant_in: Quantized | None = None
    quant_out: Quantized | None = None

    @property
    def touched(self) -> list[Value]:
        """Everything read or written in float form."""
        extra = [self.params["halves"]] if "halves" in self.params else []
        return [*self.inputs, self.output, *extra]


@dataclass(slots=True, eq=False)
class Recording:
    """A recorded forward pass."""

    nodes: list[Node]
    output: Value
    given: list[Value] = field(default_factory=list[Value])
    kept: list[Value] = field(default_factory=list[Value])

    def producer(self, value: Value) -> int | None:
        """Index of the node that makes the root of `value`."""
        root = value.root
        for i, node in enumerate(self.nodes):
            if node.output is root:
                return i
        return None

    def users(self, value: Value, start: int = 0) -> list[int]:
        """Indices from `start` of the nodes that read memory of `value`."""
        root, first, end = value.root, value.start, value.start + value.width
        found: list[int] = []
        for i in range(start, len(self.nodes)):
            for x in self.nodes[i].inputs:
                base = x if x.base is None else x.root
                if base is root and x.start < end and first < x.start + x.width:
                    found.append(i)
                    break
        return found


class Recorder:
    """An `Ops` that records."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.given_values: dict[int, Value] = {}
        self.kept: list[Value] = []

    def _make(self, kind: str, inputs: list[Value], width: int, rows: str, **params: Any) -> Value:
        output = Value(rows, width)
        self.nodes.append(Node(kind, inputs, output, params))
        return output

    def embed(self, ctx: ForwardContext, table: Handle, scale: float) -> Value:
        """See `Ops.embed`."""
        return self._make("embed", [], table.k, TOKENS, group=table, scale=scale)

    def rms_norm(self, x: Value, weight: Handle, eps: float) -> Value:
        """See `Ops.rms_norm`."""
        return self._make("rms_norm", [x], x.width, x.rows, weight=weight, eps=eps)

    def linear(self, x: Value, weight: Handle, bias: Handle | None = None) -> Value:
        """See `Ops.linear`."""
        return self._make("linear", [x], weight.n, x.rows, group=weight, bias=bias)

    def split(self, x: Value, sizes: Sequence[int]) -> list[Value]:
        """See `Ops.split`."""
        if sum(sizes) != x.width or any(n < 1 for n in sizes):
            raise ShapeError(f"cannot split {x.width} columns into {list(sizes)}")
        views, column = [], 0
        for size in sizes:
            views.append(x.view(column, size))
            column += size
        return views

    def head_norm(self, x: Value, weight: Handle, eps: float, head_size: int) -> Value:
        """See `Ops.head_norm`."""
        return self._make("head_norm", [x], x.width, x.rows, weight=weight, eps=eps, head_size=head_size)

    def rope(self, ctx: ForwardContext, x: Value, table: Handle, head_size: int) -> Value:
        """See `Ops.rope`."""
        return self._make("rope", [x], x.width, x.rows, table=table, head_size=head_size)

    def attention(
        self, ctx: ForwardContext, q: Value, k: Value, v: Value, layer: int, params: AttentionParams
    ) -> Value:
        """See `Ops.attention`."""
        return self._make("attention", [q, k, v], q.width, TOKENS, layer=layer, attention=params)

    def glu(self, gate: Value, up: Value, kind: str) -> Value:
        """See `Ops.glu`."""
        if kind not in ACTIVATIONS:
            raise ShapeError(f"unknown activation {kind!r}; known: {', '.join(ACTIVATIONS)}")
        return self._make("glu", [gate, up], gate.width, gate.rows, activation=ACTIVATIONS[kind])

    def add(self, x: Value, y: Value) -> Value:
        """See `Ops.add`."""
        return self._make("add", [x, y], x.width, x.rows)

    def select(self, ctx: ForwardContext, x: Value) -> Value:
        """See `Ops.select`."""
        return self._make("select", [x], x.width, LOGITS)

    def softcap(self, x: Value, cap: float) -> Value:
        """See `Ops.softcap`."""
        return self._make("softcap", [x], x.width, x.rows, cap=cap)

    def given(self, ctx: ForwardContext, index: int, width: int) -> Value:
        """See `Ops.given`."""
        if index in self.given_values:
            return self.given_values[index]
        value = self.given_values[index] = self._make("given", [], width, TOKENS)
        return value

    def keep(self, x: Value) -> None:
        """See `Ops.keep`. A copy: what follows may work in place on x."""
        self.kept.append(self._make("copy", [x], x.width, x.rows))


def record(forward: Forward, ctx: ForwardContext) -> Recording:
    """Run `forward` once against a recorder; `ctx` is passed through and not looked at."""
    recorder = Recorder()
    output = forward(recorder, ctx)
    if not isinstance(output, Value) or output.rows != LOGITS:
        raise ShapeError("a forward pass must end in rows chosen by `select`")
    given = [recorder.given_values[index] for index in range(len(recorder.given_values))]
    return Recording(recorder.nodes, output, given, recorder.kept)
