"""Activations rounded to bfloat16 where weights are: the definition, and the same bits however it runs."""

import numpy as np
import pytest

from headrace import _native
from headrace.base.errors import ConfigError
from headrace.compute.ops import bind
from headrace.compute.ops.backends.native.backend import NativeBackend, NativeOptions
from headrace.compute.ops.backends.native.fuse import PASSES
from headrace.compute.ops.backends.native.lower import lower
from headrace.compute.ops.backends.native.packer import layout_digest
from headrace.compute.ops.backends.native.record import record
from headrace.compute.ops.backends.reference import ReferenceBackend
from headrace.compute.ops.bind import choose_backend
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.compute.weights.packed import cache as folder_of_files
from headrace.compute.weights.packed import store
from headrace.compute.weights.packed.cache import PackedCache
from tests.kit.programs import BLOCK, PROMPT, Tiny, check_splits
from tests.kit.quantized import quantized_llama
from tests.kit.steps import TinyModel, float_weight, geometry, random_weight, run_ops

BEST = _native.isas()[0]
VARIANTS = [(isa, threads, fused) for isa in _native.isas() for threads in (1, 2) for fused in (True, False)]
VARIANTS += [(BEST, 3, True)]
MIXES = [("bf16", "bf16", "bf16"), ("bf16", "f16", "q8_0"), ("q8_0", "bf16", "bf16")]
"""The last has products that read codes and rounded values side by side."""


def native(isa=BEST, threads=2, fused=True, rounds=True):
    return NativeBackend(NativeOptions(isa=isa, threads=threads, fused=fused, rounds=rounds))


def rounded(values):
    """To the nearest bfloat16, ties to even; below 2^-56 to zero."""
    bits = values.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.abs(values) < 2.0**-56, np.float32(0), nearest.view(np.float32))


def product(backend, weight, x):
    table = backend.matrix([float_weight(x)])
    matrix = backend.matrix([weight])
    return run_ops(
        backend,
        lambda _: lambda ops, ctx: ops.linear(ops.select(ctx, ops.embed(ctx, table, 1.0)), matrix),
        len(x),
        backend.kv_pool(geometry(block_size=256), 1),
    )


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 37, 96), (5, 16, 32), (33, 50, 1024), (130, 20, 160)])
def test_products_are_sums_in_pairs_the_odd_column_first(isa, rows, n, k):
    rng = np.random.default_rng(rows)
    weight = random_weight(rng, "bf16", n, k)
    x = rng.standard_normal((rows, k)).astype(np.float32)
    x[:, ::7] *= np.float32(2.0**-58)  # most of them become zero
    values = (weight.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    given, sums = rounded(x), np.zeros((rows, n), np.float32)
    assert (given == 0).any()
    for i in range(k):
        at = i ^ 1
        sums += given[:, at, None] * values[None, :, at]  # products of two bfloat16 are exact
    got = product(native(isa), weight, x)
    assert got.tobytes() == sums.tobytes()
    assert got.tobytes() != product(native(isa, rounds=False), weight, x).tobytes()


def test_columns_that_fill_no_group_stay_as_they_are():
    rng = np.random.default_rng(1)
    weight, x = random_weight(rng, "bf16", 20, 33), rng.standard_normal((3, 33)).astype(np.float32)
    assert product(native(), weight, x).tobytes() == product(native(rounds=False), weight, x).tobytes()


@pytest.mark.parametrize("schemes", MIXES)
def test_all_variants_give_the_same_bits_near_the_reference(schemes):
    model, table, results = TinyModel(schemes=schemes), list(range(10)), []
    for variant in VARIANTS:
        mine = Tiny(model, native(*variant))
        whole = mine.run([(0, 30, table)], PROMPT[:30])
        steps = [mine.run([(30 + i, 1, table)], [PROMPT[30 + i]]) for i in range(7)]
        results.append(np.concatenate([whole, *steps]))
        assert results[-1].tobytes() == results[0].tobytes(), variant
    exact = Tiny(model, native(rounds=False)).run([(0, 37, table)], PROMPT)
    assert results[0].tobytes() != exact.tobytes()
    wanted = Tiny(model, ReferenceBackend()).run([(0, 37, table)], PROMPT)
    assert np.abs(results[0] - wanted).mean() < 0.015 * np.abs(wanted).max()


@pytest.mark.parametrize("schemes", MIXES)
def test_any_split_into_rows_and_chunks_gives_the_same_bits(schemes):
    model = TinyModel(schemes=schemes)
    check_splits(model, Tiny(model, native()), 15)


def kinds(schemes, fused):
    """(int8 codes, rounded values) of each value that a model's products read in another form than floats."""
    recording = record(TinyModel(schemes=schemes).forward(native()), None)
    for rewrite in PASSES if fused else ():
        rewrite(recording)
    lower(recording, fused=fused)
    return {(n.quant_in.codes, n.quant_in.rounded) for n in recording.nodes if n.quant_in is not None}


def test_only_what_is_read_is_made():
    """A model of bfloat16 alone quantizes nothing to int8, and one without it rounds nothing."""
    wide = TinyModel(schemes=("bf16", "bf16", "bf16")), TinyModel(schemes=("q8_0", "q8_0", "q8_0"))
    for fused in (True, False):
        assert kinds(("bf16", "bf16", "bf16"), fused) == {(False, True)}
        assert kinds(("q8_0", "q8_0", "q8_0"), fused) == {(True, False)}
        assert (True, True) in kinds(("q8_0", "bf16", "bf16"), fused)
    sizes = [[Tiny(m, native(rounds=r)).program.native.bytes for r in (False, True)] for m in wide]
    assert sizes[0][0] < sizes[0][1]
    assert sizes[1][0] == sizes[1][1]
    codes = _native.quant_bytes(40, 96), _native.quant_bytes(40, 96, False, True)
    assert codes[1] == 40 * 96 * 4
    assert _native.quant_bytes(40, 96, True, True) == sum(codes)


def test_products_refuse_rows_that_lack_what_they_read():
    backend = native(threads=1)
    pool = backend.kv_pool(TinyModel().geometry(BLOCK, "f16"), 2)
    for scheme, held in (("bf16", (True, False)), ("q8_0", (False, True))):
        matrix = backend.matrix([random_weight(np.random.default_rng(0), scheme, 16, 64)])
        program = _native.Program(backend.runtime, pool.memory, (4, 1, 4, 2), 1 << 16, 1 << 16)
        x, out = program.add_buffer(0, 64, False, None), program.add_buffer(8192, 16, False, None)
        rows = program.add_quant_buffer(16384, 64, False, None, *held)
        group = program.add_group(list(matrix.parts))
        with pytest.raises(ValueError, match="lack what its matrices read"):
            program.matmul((x, 0, 64), rows, group, (out, 0, 16), None, False)
    with pytest.raises(ValueError, match="need codes or rounded values"):
        program.add_quant_buffer(0, 64, False, None, False, False)


def test_packed_files_of_one_setting_are_not_taken_for_the_other():
    plain, pairs = (native(rounds=r).packer for r in (False, True))
    forms = [("q4_1", 576), ("f32", 64), ("bf16", 33)]
    assert plain.layout_of(forms) == pairs.layout_of(forms) == layout_digest()
    forms.append(("bf16", 64))
    assert plain.layout_of(forms) == layout_digest() != pairs.layout_of(forms) == layout_digest(pairs=True)
    weight = random_weight(np.random.default_rng(2), "bf16", 20, 64)
    stored = [native(rounds=r).matrix([weight]).parts[0].data().tobytes() for r in (False, True)]
    assert stored[0] != stored[1]


def test_how_pairs_lie_changes_only_the_layouts_that_have_them(monkeypatch):
    """Files from before there were pairs keep their key."""
    digest, known = layout_digest.__wrapped__, _native.source_blocks()  # past its cache
    plain = digest()
    others = {k: v for k, v in known.items() if k != _native.BFLOAT_PAIRS}
    monkeypatch.setattr(_native, "source_blocks", lambda: others)
    assert digest() == plain
    monkeypatch.setattr(_native, "source_blocks", lambda: {**others, _native.BFLOAT_PAIRS: (512, 1024 + 4)})
    with pytest.raises(ValueError, match="rows have"):  # so they are packed for it
        digest(pairs=True)
    assert digest() == plain


@pytest.mark.parametrize(("scheme", "again"), [("q8_0", False), ("bf16", True)])
def test_another_setting_packs_anew_only_what_lies_otherwise(tmp_path, monkeypatch, scheme, again):
    monkeypatch.setattr(store, "MIN_BYTES", 0)
    monkeypatch.setattr(folder_of_files, "SPARE_BYTES", 0)
    cache = PackedCache(mode="map", limit_bytes=1 << 30, folder=tmp_path)
    checkpoint, found = open_checkpoint(quantized_llama(scheme, 1)), []
    for rounds in (False, True):
        weights = store.PackedStore(native(rounds=rounds), checkpoint, cache)
        found.append(weights.is_found)
        weights.matrix([checkpoint.weights.matrix("layers.0.gate.weight")])
        writer = weights.finish()
        if writer is not None:
            writer.join()
    assert found == [False, not again]
    assert len(list(tmp_path.iterdir())) == 1


class Faulty(NativeBackend):
    """The last result of products of 37 outputs and so many rows has another last bit."""

    wrong_rows = 0

    def compile(self, forward, limits, kv):
        program, rows = super().compile(forward, limits, kv), self.wrong_rows

        class Wrong:
            def run(self, ctx):
                out = np.array(program.run(ctx))
                if out.shape == (rows, 37):
                    out[-1, -1] = np.nextafter(out[-1, -1], np.float32(9))
                return out

        return Wrong()


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("name", ["auto", "native"])
def test_the_self_test_finds_one_wrong_bit_of_a_rounded_product(monkeypatch, name, rows):
    faulty = Faulty(NativeOptions(isa=BEST, rounds=True))
    assert bind.self_test(faulty, rounds=True) == []
    faulty.wrong_rows = rows
    assert bind.self_test(faulty) == []
    found = f"product of bf16 with {rows} rounded rows: 1 of {37 * rows} differ"
    assert bind.self_test(faulty, rounds=True) == [found]
    monkeypatch.setattr(bind, "_native_backend", lambda *_, **__: faulty)
    with pytest.raises(ConfigError, match=f"self-test: {found}"):
        choose_backend(name, threads=1, rounds=True)


def test_the_self_test_finds_activations_that_are_not_rounded():
    found = bind.self_test(native(rounds=False), rounds=True)
    assert [finding.partition(":")[0] for finding in found] == [
        "product of bf16 with 1 rounded rows",
        "product of bf16 with 7 rounded rows",
    ]


@pytest.mark.parametrize("isa", _native.isas())
def test_the_self_test_of_rounding_is_silent_on_every_instruction_set(isa):
    assert bind.self_test(native(isa), rounds=True) == []


def test_the_reference_says_that_it_does_not_round():
    with pytest.raises(ConfigError, match=r"float_activations is bfloat16.*reference.*native"):
        choose_backend("reference", rounds=True)
    assert choose_backend("native", threads=1, rounds=True).options.rounds is True
    assert choose_backend("native", threads=1).options.rounds is False
    assert choose_backend("reference").name == "reference"


def test_ids_are_read_back_from_pairs():
    """The embedding of a model with bfloat16 weights lies in pairs, too."""
    rng = np.random.default_rng(5)
    weight = random_weight(rng, "bf16", 21, 64)
    backend = native()
    table = backend.matrix([weight])
    values = (weight.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    got = run_ops(backend, lambda _: lambda ops, ctx: ops.select(ctx, ops.embed(ctx, table, 0.5)), 21)
    assert got.tobytes() == (values * np.float32(0.5)).tobytes()
