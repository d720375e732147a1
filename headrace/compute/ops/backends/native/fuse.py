"""Rewrites of a recorded forward pass that save work and barriers. None changes a bit of the result.

Each is a function over a `Recording`; `PASSES` is their order. They run before `lower`, on nodes that only
make values.
"""

from headrace.compute.ops.backends.native.record import LOGITS, Node, Recording, Value

ROW_WISE = {"rms_norm", "linear", "head_norm", "glu", "add", "softcap"}


def select_early(recording: Recording) -> None:
    """Choose the wanted rows before, not after, operations that treat rows alone (final norm, last MLP)."""
    position = next((i for i, n in enumerate(recording.nodes) if _can_rise(recording, n)), None)
    while position is not None:
        _raise_select(recording, recording.nodes[position])
        position = next((i for i, n in enumerate(recording.nodes) if _can_rise(recording, n)), None)


def _can_rise(recording: Recording, node: Node) -> bool:
    if node.kind != "select" or node.inputs[0].base is not None:
        return False
    source = recording.producer(node.inputs[0])
    if source is None or recording.nodes[source].kind not in ROW_WISE:
        return False
    return recording.users(node.inputs[0]) == [recording.nodes.index(node)]


def _raise_select(recording: Recording, select: Node) -> None:
    """Let the producer of `select`'s input work on chosen rows and take over the output of `select`."""
    source = recording.producer(select.inputs[0])
    assert source is not None
    node = recording.nodes[source]
    recording.nodes.remove(select)
    node.inputs = [_chosen(recording, x) for x in node.inputs]
    node.output = select.output


def _chosen(recording: Recording, value: Value) -> Value:
    """The chosen rows of `value`: one `select` per root, right after the root is made."""
    root = value.root
    chosen = next((n.output for n in recording.nodes if n.kind == "select" and n.inputs[0] is root), None)
    if chosen is None:
        chosen = Value(LOGITS, root.width)
        at = recording.producer(root)
        recording.nodes.insert(0 if at is None else at + 1, Node("select", [root], chosen))
    return chosen if value is root else Value(LOGITS, value.width, chosen, value.start)


def gate_products(recording: Recording) -> None:
    """Join a product with the gated activation of its halves: a thread makes both halves of its columns."""
    for node in [n for n in recording.nodes if n.kind == "glu"]:
        gate, up = node.inputs
        source = recording.producer(gate)
        if source is None or gate.root is not up.root or gate.base is None:
            continue
        product = recording.nodes[source]
        if product.kind != "linear" or recording.users(gate.root) != [recording.nodes.index(node)]:
            continue
        if not all(product.params["group"].holds_panels(x.start, x.width) for x in (gate, up)):
            continue
        halves = product.output
        product.kind = "gated_linear"
        product.params |= {
            "activation": node.params["activation"],
            "halves": halves,
            "gate_column": gate.start,
            "up_column": up.start,
        }
        product.output = node.output
        recording.nodes.remove(node)


def add_in_product(recording: Recording) -> None:
    """Let a product add its result to the residual stream in place."""
    for node in [n for n in recording.nodes if n.kind == "add"]:
        for stream, term in (node.inputs, node.inputs[::-1]):
            if _can_accumulate(recording, node, stream, term):
                source = recording.producer(term)
                assert source is not None
                product = recording.nodes[source]
                recording.nodes.remove(node)
                node.output.become(stream)
                product.output = node.output
                product.params["accumulate"] = True
                break


def _can_accumulate(recording: Recording, add: Node, stream: Value, term: Value) -> bool:
    """Whether nobody can see that `stream` changes at the product of `term` instead of at `add`."""
    source, at = recording.producer(term), recording.nodes.index(add)
    made = recording.producer(stream)
    if source is None or made is None or term is not term.root or stream.root is term.root:
        return False
    product = recording.nodes[source]
    if product.kind != "linear" or recording.users(term) != [at] or made >= source:
        return False
    if stream.overlaps(recording.output) or any(
        n.output.overlaps(stream) for n in recording.nodes[source:at]
    ):
        return False
    return recording.users(stream, source) == [at]


PASSES = (select_early, gate_products, add_in_product)
