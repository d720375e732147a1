"""From values to memory: which products need quantized rows, and which operations may work in place."""

from headrace.compute.ops.backends.native.record import Node, Quantized, Recording, Value

IN_PLACE = {"head_norm", "rope", "softcap"}
PRODUCTS = {"linear", "gated_linear"}


def lower(recording: Recording, fused: bool) -> None:
    """Make in-place work and quantization explicit.

    Args:
        recording: changed in place.
        fused: reuse memory where nobody looks, quantize each value once and together with its norm or
        activation; else copy, and quantize before every product.
    """
    _work_in_place(recording, fused)
    if fused:
        _quantize_once(recording)
        _mark_private(recording)
    else:
        _quantize_each(recording)


def _work_in_place(recording: Recording, fused: bool) -> None:
    nodes: list[Node] = []
    for i, node in enumerate(recording.nodes):
        if node.kind == "gated_linear":
            halves, column = node.params["halves"], node.params["gate_column"]
            node.output.become(halves.view(column, node.output.width))
        if node.kind in IN_PLACE:
            source = node.inputs[0]
            if fused and not recording.users(source, i + 1) and not source.overlaps(recording.output):
                node.output.become(source)
            else:
                nodes.append(Node("copy", [source], node.output))
            node.inputs = []
        nodes.append(node)
    recording.nodes = nodes


def _needs_quantized(node: Node) -> bool:
    return node.kind in PRODUCTS and (node.params["group"].reads_codes or node.params["group"].reads_rounded)


def _read(quant: Quantized, node: Node) -> Quantized:
    """`quant`, holding what a product reads."""
    group = node.params["group"]
    quant.codes |= group.reads_codes
    quant.rounded |= group.reads_rounded
    return quant


def _quantize_each(recording: Recording) -> None:
    nodes: list[Node] = []
    for node in recording.nodes:
        if _needs_quantized(node):
            node.quant_in = _read(Quantized(node.inputs[0].rows, node.inputs[0].width), node)
            nodes.append(Node("quantize", node.inputs[:], node.inputs[0], quant_out=node.quant_in))
        nodes.append(node)
    recording.nodes = nodes


def _quantize_once(recording: Recording) -> None:
    nodes: list[Node] = []
    known: dict[Value, list[tuple[Value, Quantized]]] = {}  # by root
    for node in recording.nodes:
        if _needs_quantized(node):
            quant = _quantized(nodes, known.setdefault(node.inputs[0].root, []), node.inputs[0])
            node.quant_in = _read(quant, node)
        root = node.output.root
        if root in known:
            known[root] = [(v, q) for v, q in known[root] if not _writes(node, v)]
        nodes.append(node)
    recording.nodes = nodes


def _writes(node: Node, value: Value) -> bool:
    return node.kind != "quantize" and node.output.overlaps(value)


def _quantized(nodes: list[Node], known: list[tuple[Value, Quantized]], x: Value) -> Quantized:
    for value, quant in known:
        if (value.start, value.width) == (x.start, x.width):
            return quant
    quant = Quantized(x.rows, x.width)
    maker = next((n for n in reversed(nodes) if _writes(n, x)), None)
    joins = maker is not None and maker.kind in {"rms_norm", "gated_linear"}
    if maker is not None and joins and (maker.output.start, maker.output.width) == (x.start, x.width):
        maker.quant_out = quant
    else:
        nodes.append(Node("quantize", [x], x, quant_out=quant))
    known.append((x, quant))
    return quant


def _mark_private(recording: Recording) -> None:
    """Norms and quantizations whose results only products read may be made by every thread for itself."""
    for node in recording.nodes:
        if node.kind == "quantize" and node.quant_out is not None:
            node.quant_out.private = True
        if node.kind != "rms_norm" or node.output.base is not None:
            continue
        readers = recording.users(node.output)
        only_products = all(recording.nodes[i].kind in PRODUCTS for i in readers)
        if only_products and node.output is not recording.output.root:
            node.params["private"] = True
            if node.quant_out is not None:
                node.quant_out.private = True
