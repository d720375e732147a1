"""Every backend, and the choice of one."""

import logging

import numpy as np
import pytest

from headrace.base.errors import ConfigError, ShapeError
from headrace.base.registry import Registry
from headrace.compute.ops import bind
from headrace.compute.ops.api import AllowedMask, SampleBatch, SeenTokens, TokenBias
from headrace.compute.ops.backends.reference import ReferenceBackend
from tests.kit.steps import i32

BACKENDS = ("reference", *(("native",) if bind.available_isas() else ()))


def start(name):
    return bind.choose_backend(name, threads=2 if name == "native" else None)


def batch(rows, **changes):
    rng = np.random.default_rng(rows)
    values = {
        "positions": i32(rng.integers(0, 900, rows)),
        "seeds": rng.integers(0, 1 << 63, rows, dtype=np.uint64),
        "temperature": rng.choice([0.0, 0.7, 1.3], rows).astype(np.float32),
        "top_k": i32(rng.choice([0, 5], rows)),
        "top_p": rng.choice([1.0, 0.8], rows).astype(np.float32),
        "min_p": rng.choice([0.0, 0.05], rows).astype(np.float32),
        "penalties": np.tile(np.array([1.2, 0.3, 0.1], np.float32), (rows, 1)),
        "num_logprobs": i32(rng.integers(-1, 4, rows)),
    }
    return SampleBatch(**(values | changes))


def logits(rows, vocab=301):
    return np.random.default_rng(rows).standard_normal((rows, vocab)).astype(np.float32) * 3


def test_every_folder_is_a_backend():
    names = Registry("backend", "headrace.compute.ops.backends", "BACKEND").names()
    assert set(BACKENDS) <= set(names)


@pytest.mark.parametrize("name", BACKENDS)
def test_self_test_is_silent_on_a_good_backend(name):
    backend = start(name)
    assert backend.name == name
    assert bind.self_test(backend) == []


def test_self_test_speaks_on_faulty_kernels():
    """AT-4."""

    class Faulty(ReferenceBackend):
        def vector(self, values):
            return super().vector(values) * np.float32(1.01)

        def rope_table(self, cosines, sines):
            return super().rope_table(cosines, -sines)

    findings = bind.self_test(Faulty())
    assert any("norm" in finding for finding in findings)
    assert any("rope" in finding for finding in findings)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_backends_draw_the_same_tokens(rows):
    changes = {
        "seen": SeenTokens(
            start=i32(np.arange(rows + 1) * 2), ids=i32([3, 7] * rows), counts=i32([0, 2] * rows)
        ),
        "bias": TokenBias(
            start=i32(np.arange(rows + 1)),
            ids=i32(np.arange(rows)),
            values=np.where(np.arange(rows) % 2, -np.inf, 2.0).astype(np.float32),
        ),
        "allowed": AllowedMask(
            row=i32(np.arange(rows) % 2 - 1), masks=np.full((1, 10), 0x5555FFFF, np.uint32)
        ),
    }
    results = [start(name).sample(logits(rows), batch(rows, **changes)) for name in BACKENDS]
    for got in results:
        assert (got.tokens == results[0].tokens).all()
        assert (got.errors == 0).all()
        assert np.allclose(got.logprobs, results[0].logprobs, atol=1e-5)
        assert (got.top_ids == results[0].top_ids).all()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_sampler_draws_what_sample_draws_while_positions_grow(name):
    backend, rows = start(name), 6
    mine = batch(rows, num_logprobs=i32([-1] * rows))
    draw = backend.sampler(mine, 301)
    for step in range(8):
        values = logits(rows) + np.float32(step)
        values[step % rows, 5] = np.nan
        wanted = backend.sample(values.copy(), mine)
        tokens, errors = draw(values.copy(), None)
        assert tokens.tolist() == wanted.tokens.tolist()
        assert errors.tolist() == wanted.errors.tolist()
        assert sum(errors.tolist()) == 1
        mine.positions += 1


@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_with_nan_fails_alone(name):
    values = logits(3)
    values[1, 5] = np.nan
    got = start(name).sample(values.copy(), batch(3))
    assert got.errors.tolist() == [0, 1, 0]
    assert got.tokens[0] == start(name).sample(values[:1].copy(), batch_row(batch(3), 0)).tokens[0]


def batch_row(whole, row):
    here = slice(row, row + 1)
    names = (
        "positions",
        "seeds",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "penalties",
        "num_logprobs",
    )
    return SampleBatch(**{name: getattr(whole, name)[here] for name in names})


def test_backends_report_the_same_log_probabilities():
    values, tokens = logits(4), i32([0, 300, 17, 5])
    results = [start(name).logprobs(values, tokens, 3) for name in BACKENDS]
    for got in results:
        assert (got.tokens == tokens).all()
        assert (got.ranks == results[0].ranks).all()
        assert (got.top_ids == results[0].top_ids).all()
        assert np.allclose(got.logprobs, results[0].logprobs, atol=1e-5)


class TestNative:
    """What only the native backend promises."""

    def test_sampling_is_the_same_for_all_sets_and_threads(self):
        first = None
        for isa in bind.available_isas():
            for threads in (1, 2, 4):
                got = bind.choose_backend("native", isa, threads).sample(logits(9), batch(9))
                first = first or got
                for name in ("tokens", "logprobs", "ranks", "top_ids", "top_logprobs"):
                    assert getattr(got, name).tobytes() == getattr(first, name).tobytes()

    def test_known_maxima_change_nothing(self):
        rows = 24
        values = logits(rows)
        values[3, 7], values[4, 300], values[5] = np.nan, np.inf, -np.inf
        values[6, [20, 200]] = 99.0
        padded = np.pad(values, ((0, 0), (0, 19)), constant_values=-np.inf)
        with np.errstate(invalid="ignore"):
            maxima = padded.reshape(rows, 5, 64).max(2)
        maxima[np.isnan(maxima)] = np.inf
        greedy = {"temperature": np.zeros(rows, np.float32), "num_logprobs": i32([-1] * rows)}
        for isa in bind.available_isas():
            backend = bind.choose_backend("native", isa, 2)
            for changes in ({}, greedy):
                plain = backend.sample(values, batch(rows, **changes))
                known = backend.sample(values, batch(rows, maxima=maxima, **changes))
                assert plain.errors.tolist() == [0, 0, 0, 1, 1, 1] + [0] * (rows - 6)
                for name in ("tokens", "logprobs", "ranks", "errors", "top_ids", "top_logprobs"):
                    assert getattr(known, name).tobytes() == getattr(plain, name).tobytes()
            assert known.tokens[6] == 20

    def test_bad_sampling_input_raises(self):
        backend, rows = start("native"), 2
        wrong = [
            {"top_k": i32([1])},
            {"temperature": np.ones(2, np.float64)},
            {"penalties": np.ones((2, 2), np.float32)},
            {"num_logprobs": i32([302, 0])},
            {"seen": SeenTokens(start=i32([0, 1, 2]), ids=i32([1, 301]), counts=i32([0, 0]))},
            {"seen": SeenTokens(start=i32([0, 5, 2]), ids=i32([1, 2]), counts=i32([0, 0]))},
            {"bias": TokenBias(start=i32([0, 0, 1]), ids=i32([0, 1]), values=np.zeros(2, np.float32))},
            {"allowed": AllowedMask(row=i32([0, 1]), masks=np.zeros((1, 10), np.uint32))},
            {"allowed": AllowedMask(row=i32([0, 0]), masks=np.zeros((1, 9), np.uint32))},
            {"maxima": np.zeros((2, 4), np.float32)},
            {"maxima": np.zeros((1, 5), np.float32)},
            {"maxima": np.zeros((2, 5), np.float64)},
        ]
        for changes in wrong:
            with pytest.raises(ShapeError):
                backend.sample(logits(rows), batch(rows, **changes))
        seen = SeenTokens(start=i32([0, 1, 2]), ids=i32([1, 2]), counts=i32([0, 0]))
        quiet = {"num_logprobs": i32([-1] * rows)}
        plain = batch(rows, **quiet)
        for refused in ({"seen": seen} | quiet, {"num_logprobs": i32([-1, 0])}, {"top_k": i32([1])} | quiet):
            with pytest.raises(ShapeError):
                backend.sampler(batch(rows, **refused), 301)
        for values, maxima in (
            (logits(3), None),
            (logits(2, 300), None),
            (logits(2), np.zeros((2, 4), np.float32)),
        ):
            with pytest.raises(ShapeError):
                backend.sampler(plain, 301)(values, maxima)
        for tokens, k in ((i32([0, 301]), 1), (i32([0]), 1), (i32([0, 1]), 302), (i32([0, 1]), -1)):
            with pytest.raises(ShapeError):
                backend.logprobs(logits(rows), tokens, k)

    def test_choice_names_its_reasons(self):
        choice = bind.choose("auto")
        assert (choice.name, choice.isa) == ("native", bind.available_isas()[0])
        assert len(choice.reasons) == 3
        for isa in bind.available_isas():
            assert bind.choose("native", isa, 3) == bind.Choice(
                name="native",
                isa=isa,
                threads=3,
                reasons=(choice.reasons[0], f"{isa} was asked for", "3 threads were asked for"),
            )

    def test_the_plain_step_is_on_offer(self):
        assert bind.choose_backend("native", threads=1, graphs=False).options.fused is False


def test_impossible_choices_are_refused():
    for settings in (
        ("cuda", "auto", 1),
        ("native", "sse9", 1),
        ("native", "auto", 0),
        ("native", "auto", 5000),
    ):
        with pytest.raises(ConfigError):
            bind.choose_backend(*settings)


def test_without_kernels_the_reference_runs_and_says_what_is_lost(monkeypatch, caplog):
    monkeypatch.setattr(bind, "native_module", lambda: (None, "the native kernels are missing (test)"))
    with caplog.at_level(logging.WARNING):
        assert bind.choose_backend("auto").name == "reference"
    assert "are missing" in caplog.text
    assert "tens of times slower" in caplog.text
    with pytest.raises(ConfigError, match="missing"):
        bind.choose_backend("native")


def test_kernels_that_fail_their_test_are_not_used(monkeypatch, caplog):
    monkeypatch.setattr(bind, "self_test", lambda backend, **_: ["product with q4_0: relative error 1"])
    with caplog.at_level(logging.WARNING):
        assert bind.choose_backend("auto").name == "reference"
    assert "q4_0" in caplog.text
    with pytest.raises(ConfigError, match="self-test"):
        bind.choose_backend("native")
