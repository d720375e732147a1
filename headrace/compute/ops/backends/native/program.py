"""Hand a lowered recording over to C++ and run it."""

from collections.abc import Hashable
from typing import Any

from headrace import _native
from headrace.base.errors import ShapeError
from headrace.compute.ops.api import F32, AttentionParams, ForwardContext, StepLimits
from headrace.compute.ops.backends.native.plan import Plan, lives, plan
from headrace.compute.ops.backends.native.pool import NativeKVPool
from headrace.compute.ops.backends.native.record import LOGITS, Node, Quantized, Recording, Value

Ref = tuple[int, int, int]
NO_QUANT = -1


class NativeProgram:
    """A step program; see `Program`. Bound to one KV pool."""

    def __init__(self, runtime: Any, recording: Recording, limits: StepLimits, kv: NativeKVPool) -> None:
        self.kv = kv
        self.limits = limits
        self._keep = [node.params for node in recording.nodes]
        builder = _Builder(runtime, recording, limits, kv)
        self.native = builder.build()
        self._given: list[F32] = [builder.value(value) for value in recording.given]
        self._kept: list[tuple[F32, bool]] = [
            (builder.value(value), value.rows == LOGITS) for value in recording.kept
        ]
        self._maxima: F32 | None = self.native.maxima()
        self._sizes = (0, 0)
        self._maxima_found: F32 | None = None

    def run(self, ctx: ForwardContext) -> F32:
        """See `Program.run`.

        Raises:
            ShapeError: an input is outside the limits, or indices do not agree; nothing has run then.
        """
        if ctx.kv is not self.kv:
            raise ShapeError("the program was made for another KV pool; compile it again for this one")
        if self._given:
            self._take_given(ctx)
        self._sizes = len(ctx.token_ids), len(ctx.logit_rows)
        try:
            return self.native.run(
                ctx.token_ids,
                ctx.positions,
                ctx.row_of,
                ctx.query_start,
                ctx.key_len,
                ctx.tables,
                ctx.rope_rows,
                ctx.logit_rows,
            )
        except (ValueError, TypeError) as error:
            raise ShapeError(f"the inputs of a step are wrong: {error}") from error

    @property
    def kept(self) -> list[F32]:
        """See `Program.kept`."""
        tokens, logits = self._sizes
        return [values[: logits if of_logits else tokens] for values, of_logits in self._kept]

    @property
    def maxima(self) -> F32 | None:
        """See `Program.maxima`."""
        found, count = self._maxima_found, self._sizes[1]
        if self._maxima is not None and (found is None or len(found) != count):
            found = self._maxima_found = self._maxima[
                :count
            ]  # most steps have as many rows as the one before
        return found

    def _take_given(self, ctx: ForwardContext) -> None:
        rows = len(ctx.token_ids)
        wanted = [(rows, place.shape[1]) for place in self._given]
        if rows > self.limits.max_tokens or [values.shape for values in ctx.given] != wanted:
            raise ShapeError(
                f"the program takes activations of shapes {wanted} of at most {self.limits.max_tokens} rows, "
                f"got {[values.shape for values in ctx.given]}"
            )
        for place, values in zip(self._given, ctx.given, strict=True):
            place[:rows] = values

    def timings(self) -> dict[str, float]:
        """Seconds per kind of operation since `native.set_timing(True)`, waiting included."""
        return {name: seconds for name, seconds in self.native.timings if seconds}


class _Builder:
    """One walk over the nodes: buffers first, then operations."""

    def __init__(self, runtime: Any, recording: Recording, limits: StepLimits, kv: NativeKVPool) -> None:
        self.recording = recording
        self.limits = limits
        self.shared, self.private = self._plan()
        widths = (limits.max_tokens, limits.max_rows, limits.max_logits, limits.table_width)
        self.program = _native.Program(runtime, kv.memory, widths, self.shared.size, self.private.size)
        self.ids: dict[Hashable, int] = {}
        self.groups: dict[int, int] = {}

    def build(self) -> Any:
        """The finished native program."""
        for thing in self.shared.offsets:
            self.ids[thing] = self._add_buffer(thing)
        for node in self.recording.nodes:
            getattr(self, f"_{node.kind}")(node)
        self.program.finish(self._ref(self.recording.output))
        return self.program

    def value(self, value: Value) -> F32:
        """A value of the built program as a view of its memory [most rows, columns]."""
        return self.program.value(self._ref(value))

    def _plan(self) -> tuple[Plan, Plan]:
        recording = self.recording
        # What is given lies there before the first operation, what is kept after the last.
        touches: list[list[Hashable]] = [list(recording.given)]
        touches += [self._things(node) for node in recording.nodes]
        touches.append([recording.output.root, *recording.kept])
        shared = lives(touches, lambda thing: self._bytes(thing, self._max_rows(thing)))
        marked: set[Hashable] = {n.output for n in self.recording.nodes if n.params.get("private")}
        own = {
            t
            for things in touches
            for t in things
            if (t.private if isinstance(t, Quantized) else t in marked)
        }
        private = lives(
            [[t for t in things if t in own] for things in touches],
            lambda thing: self._bytes(thing, _native.PRIVATE_ROWS),
        )
        return plan(shared), plan(private)

    @staticmethod
    def _things(node: Node) -> list[Hashable]:
        floats: list[Hashable] = [value.root for value in node.touched]
        return floats + [q for q in (node.quant_in, node.quant_out) if q is not None]

    def _max_rows(self, thing: Any) -> int:
        return self.limits.max_logits if thing.rows == LOGITS else self.limits.max_tokens

    def _bytes(self, thing: Any, rows: int) -> int:
        if isinstance(thing, Quantized):
            return _native.quant_bytes(rows, thing.width, thing.codes, thing.rounded)
        return 4 * rows * self._ld(thing)

    def _ld(self, value: Value) -> int:
        """Columns between rows; logits lie without gaps, and no other rows lie a multiple of 4 KB apart.

        The rows of such a tile would all compete for one set of the first cache.
        """
        if value is self.recording.output.root:
            return value.width
        columns = -(-value.width // 16) * 16
        return columns + 16 if columns % 1024 == 0 else columns

    def _add_buffer(self, thing: Any) -> int:
        offset, own = self.shared.offsets[thing], self.private.offsets.get(thing)
        logits = thing.rows == LOGITS
        if isinstance(thing, Quantized):
            holds = thing.codes, thing.rounded
            return self.program.add_quant_buffer(offset, thing.width, logits, own, *holds)
        return self.program.add_buffer(offset, self._ld(thing), logits, own)

    def _ref(self, value: Value) -> Ref:
        return self.ids[value.root], value.start, value.width

    def _quant(self, quant: Quantized | None) -> int:
        return NO_QUANT if quant is None else self.ids[quant]

    def _group(self, node: Node) -> int:
        group = node.params["group"]
        if id(group) not in self.groups:
            self.groups[id(group)] = self.program.add_group(list(group.parts))
        return self.groups[id(group)]

    def _given(self, node: Node) -> None:
        """Nothing to do: it is written before the run."""

    def _embed(self, node: Node) -> None:
        self.program.embed(self._group(node), node.params["scale"], self._ref(node.output))

    def _rms_norm(self, node: Node) -> None:
        x, out, quant = self._ref(node.inputs[0]), self._ref(node.output), self._quant(node.quant_out)
        self.program.rms_norm(x, node.params["weight"], node.params["eps"], out, quant)

    def _quantize(self, node: Node) -> None:
        self.program.quantize(self._ref(node.inputs[0]), self._quant(node.quant_out))

    def _linear(self, node: Node) -> None:
        self.program.matmul(
            self._ref(node.inputs[0]),
            self._quant(node.quant_in),
            self._group(node),
            self._ref(node.output),
            node.params["bias"],
            node.params.get("accumulate", False),
        )

    def _gated_linear(self, node: Node) -> None:
        p = node.params
        self.program.gated_matmul(
            self._ref(node.inputs[0]),
            (self._quant(node.quant_in), self._quant(node.quant_out)),
            self._group(node),
            (self._ref(p["halves"]), p["gate_column"], p["up_column"]),
            self._ref(node.output),
            p["bias"],
            p["activation"],
        )

    def _head_norm(self, node: Node) -> None:
        p = node.params
        self.program.head_norm(self._ref(node.output), p["weight"], p["eps"], p["head_size"])

    def _rope(self, node: Node) -> None:
        self.program.rope(self._ref(node.output), node.params["table"], node.params["head_size"])

    def _attention(self, node: Node) -> None:
        params: AttentionParams = node.params["attention"]
        q, k, v = (self._ref(value) for value in node.inputs)
        self.program.attention(
            (q, k, v),
            self._ref(node.output),
            node.params["layer"],
            (params.heads, params.kv_heads, params.head_size),
            (params.scale, params.softcap or 0.0, params.window or 0),
        )

    def _glu(self, node: Node) -> None:
        gate, up = (self._ref(value) for value in node.inputs)
        self.program.glu(gate, up, self._ref(node.output), node.params["activation"])

    def _add(self, node: Node) -> None:
        x, y = (self._ref(value) for value in node.inputs)
        self.program.add(x, y, self._ref(node.output))

    def _select(self, node: Node) -> None:
        self.program.select(self._ref(node.inputs[0]), self._ref(node.output))

    def _copy(self, node: Node) -> None:
        self.program.copy(self._ref(node.inputs[0]), self._ref(node.output))

    def _softcap(self, node: Node) -> None:
        self.program.softcap(self._ref(node.output), node.params["cap"])
