"""`headrace distill`: a few steps on a tiny target, and what is written drafts."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.request import Request, SamplingParams
from headrace.compute.models.load import load_model
from headrace.compute.spec.heads.eagle import load_eagle
from headrace.compute.spec.heads.files import HeadFiles, Target
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.tools.distill import prompts as prompts_page
from headrace.tools.distill import run as run_page
from headrace.tools.distill.folder import bfloat16, read_folder, write_folder
from headrace.tools.distill.plan import Plan
from headrace.tools.distill.prompts import make_prompts
from headrace.tools.distill.resume import Before
from headrace.tools.distill.run import distill, frequent
from headrace.tools.distill.states import Known, half
from headrace.tools.distill.text import Sample
from tests.kit.distill import CYCLE, Notes, config_of, make_target, plan, write_prompts
from tests.kit.engine import Drive, Rig, make_backend


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="module")
def config(target):
    return config_of(target)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.txt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, config, prompts):
    out, notes = tmp_path_factory.mktemp("heads") / "m", Notes()
    return out, distill(config, plan(out, prompts), notes), notes


def test_heads_learn_what_follows(trained):
    out, report, notes = trained
    assert report["acceptance_by_depth"][0] > 0.9
    assert report["tokens_per_step"] > 2.6
    assert report["vocabulary_covers"] == 1.0
    assert report["steps"] == 200
    assert json.loads((out / "report.json").read_text()) == report
    assert notes.phases == ["text", "states", "training"]
    assert notes.shares["training"][-1] == 1.0


def test_the_same_seed_gives_the_same_heads(trained, tmp_path, config, prompts):
    out, _, _ = trained
    distill(config, plan(tmp_path / "again", prompts), Notes())
    again = (tmp_path / "again" / "model.safetensors").read_bytes()
    assert again == (out / "model.safetensors").read_bytes()


def test_the_folder_is_heads(trained):
    out, report, _ = trained
    files = HeadFiles(out)
    known = files.integers("token_map", report["vocabulary"])
    assert len(set(known.tolist()) & set(CYCLE.values())) == 58
    assert files.matrix("lm_heads.1.weight", report["vocabulary"], 320).type_name == "bf16"
    assert files.vector("blocks.1.layers.0.bias", 320).dtype == np.float32


def test_bfloat16_is_the_nearest_and_ties_go_to_even():
    values = np.array([1.0, 1.00390625, 1.01171875, -3.1415927, 0.0], np.float32)
    back = (bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    assert back.tolist() == [1.0, 1.0, 1.015625, -3.140625, 0.0]


def test_frequent_tokens_are_counted_in_answers_only():
    samples = [Sample((9, 9, 9, 1, 2, 2), 3), Sample((9, 2, 3, 3, 3, 1), 1)]
    assert frequent(samples, 2, 320).tolist() == [2, 3]
    assert frequent(samples, 6, 320).tolist() == [0, 1, 2, 3, 4, 5]
    assert frequent(samples, 9, 4).tolist() == [0, 1, 2, 3]


def test_built_in_prompts_are_many_and_their_order_depends_on_the_seed():
    one, two = make_prompts(None, 1), make_prompts(None, 2)
    assert len(set(one)) == len(one) > 400
    assert one != two
    assert sorted(one) == sorted(two)


@pytest.fixture(scope="module")
def deeper(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("deeper") / "model", layers=2)


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_what_is_linear_is_known_before_the_first_step(tmp_path, deeper, prompts, method):
    """States are tokens here, and each token is followed by one: a matrix says it all."""
    report = distill(config_of(deeper), plan(tmp_path / "heads", prompts, method=method, steps=1), Notes())
    assert report["acceptance_by_depth"][0] > 0.9
    assert report["acceptance_by_depth"][1] > 0.9


def test_eagle_heads_learn_what_follows(tmp_path, deeper, prompts):
    out = tmp_path / "heads"
    report = distill(config_of(deeper), plan(out, prompts, method="eagle", steps=120), Notes())
    assert report["acceptance_by_depth"][1] > 0.8
    backend = make_backend("native")
    model = load_model(open_checkpoint(deeper), backend, 256)
    shared = Target(spec=model.spec, embed=model.weights.embed, head=model.weights.head)
    assert load_eagle(out, backend, shared, 256).taps.inputs_of == (0, 1, 2)
    counts = drafted(deeper, f"eagle={out},depth=2")
    assert counts["drafts_accepted"] > 0.8 * counts["drafts_checked"] > 20


def drafted(folder, speculate) -> dict:
    """Counts of a greedy answer of the target with these heads."""
    core = Rig(folder, "native", 1, 256).core(num_blocks=64, dtype="f32", speculate=speculate)
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=60)
    Drive(core).run([Request(request_id="r", prompt_ids=(97, 98), sampling=sampling)])
    return dict(core.stats().counters)


def test_what_the_report_promises_is_what_drafting_gives(trained, target):
    out, report, _ = trained
    counts = drafted(target, f"medusa={out},depth=2")
    assert counts["drafts_checked"] > 20
    share = counts["drafts_accepted"] / counts["drafts_checked"]
    assert abs(share - sum(report["acceptance_by_depth"]) / 2) < 0.15


def test_a_training_goes_on_from_what_was_written(trained, tmp_path, config, prompts):
    """With other text and the same vocabulary; what it cost adds up."""
    out, report, _ = trained
    again = tmp_path / "m"
    shutil.copytree(out, again)
    more = distill(config, plan(again, prompts, steps=1, resume=True), Notes())
    assert (more["rounds"], more["steps"]) == (2, 201)
    assert more["training_tokens"] > report["training_tokens"] + 700
    assert more["seconds"] > report["seconds"]
    assert more["acceptance_by_depth"][1] > report["acceptance_by_depth"][1] - 0.1
    one, two = (read_folder(folder)[1] for folder in (out, again))
    assert one["token_map"].tolist() == two["token_map"].tolist()
    moved = np.abs(one["blocks.0.layers.0.bias"] - two["blocks.0.layers.0.bias"]).max()
    assert 0 < moved < 0.01, "one step"


def test_the_text_of_another_round_is_another(config, prompts):
    asked, lines = plan(Path("x"), prompts), make_prompts(prompts, 0)
    texts = [run_page._write(config, asked, Notes(), lines, Before(rounds=n)) for n in (0, 0, 1)]
    assert texts[0] == texts[1]
    assert texts[0][1:] == texts[2][1:], "what heads are judged by stays"
    assert texts[0][0] != texts[2][0]


def test_a_linear_map_is_found_without_a_step():
    torch = pytest.importorskip("torch")
    from headrace.tools.distill.training import ridge

    rng = torch.Generator().manual_seed(0)
    x, m = (torch.randn(*shape, generator=rng) for shape in ((500, 8), (8, 3)))
    assert torch.allclose(ridge(x, x @ m, 1e-6), m, atol=1e-3)
    assert ridge(x, x @ m, 1.0).norm() < 0.6 * m.norm()
    assert not ridge(x * float("inf"), x @ m, 0.1).isfinite().any()


@pytest.mark.parametrize(("max_norm", "length"), [(None, 500.0), (1.0, 1.0)])
def test_losses_of_a_step_add_up_and_long_gradients_are_cut(max_norm, length):
    torch = pytest.importorskip("torch")
    from headrace.tools.distill.training import RATE, Training, descend, rate

    at, told, shares = torch.zeros(2, requires_grad=True), [], []

    def losses(share):
        shares.append(share)
        yield 1.0 + 300.0 * at[0]
        yield 2.0 + 400.0 * at[1]

    training = Training(heads=1, seconds=1.0, steps=2, seed=0)
    assert descend([at], losses, training, lambda *now: told.append(now), max_norm) == 2
    assert shares == [0.0, 0.5]
    assert [share for share, _ in told] == [0.5, 1.0]
    assert told[0][1] == 3.0 > told[1][1]
    assert at.grad.norm() == pytest.approx(length)
    assert at.tolist() == pytest.approx([-RATE * (rate(0.0) + rate(0.5))] * 2, rel=1e-3)


def test_long_gradients_of_an_eagle_training_are_cut(tmp_path):
    """Other heads are trained with gradients as they are."""
    torch = pytest.importorskip("torch")
    asked = Plan(method="eagle", out=tmp_path, heads=2, vocab=16, steps=1)
    trainer, text, _ = random_trainer(asked)
    weights = trainer._weights.values()

    def length():
        return torch.stack([values.grad.norm() for values in weights]).norm()

    trainer.train([text], lambda share, loss: None)
    assert length() == pytest.approx(1.0, rel=1e-3)
    for values in weights:
        values.grad = None
    trainer._loss(text, 1).backward()
    assert length() > 2


@pytest.mark.parametrize("size", [3, 4, 7, 20])
def test_every_text_comes_once_before_any_comes_again(size):
    """A round's rest is taken before the next one's texts, and no text twice in one step."""
    pytest.importorskip("torch")
    from headrace.tools.distill.training import Shuffled

    order = Shuffled(7, 0)
    taken = [order.take(size).tolist() for _ in range(21)]
    assert all(len(set(part)) == len(part) == min(size, 7) for part in taken)
    told = [i for part in taken for i in part]
    rounds = [told[first : first + 7] for first in range(0, len(told), 7)]
    assert all(sorted(each) == list(range(7)) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def random_trainer(asked):
    """A trainer of heads that know every second token, a text of random states, and those tokens."""
    from headrace.tools.distill import make

    rng = np.random.default_rng(1)
    ids = rng.integers(0, 12, 20).astype(np.int32)
    text = Known(ids, 4, tuple(rng.standard_normal((20, 64)).astype(np.float16) for _ in range(4)))
    known, weights = np.arange(1, 12, 2, dtype=np.int32), rng.standard_normal((12, 64)).astype(np.float32)
    reader = SimpleNamespace(
        head_rows=lambda tokens: weights[tokens],
        embed_rows=lambda tokens: weights[tokens],
        taps=SimpleNamespace(inputs_of=(0, 1, 2)),
    )
    return getattr(make, "make_" + asked.method)(reader, known, [text], asked)(1.0), text, known


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_ranks_are_those_of_the_right_tokens(method, tmp_path):
    """By hand, from the logits of each place; tokens that the heads do not know rank nowhere."""
    torch = pytest.importorskip("torch")
    from headrace.tools.distill.training import UNKNOWN

    asked = Plan(method=method, out=tmp_path, heads=3, vocab=16, steps=2)
    trainer, text, known = random_trainer(asked)
    ids = text.ids
    trainer.train([text], lambda share, loss: None)
    ranks = trainer.ranks([text])
    first, last = 2, 20 - 1 - 3
    assert ranks.shape == (3, last - first)
    with torch.no_grad():
        logits = (
            trainer._logits(text, first, last)
            if method == "eagle"
            else trainer._logits(torch.from_numpy(text.states[0][first:last]).float())
        )
    for k in range(3):
        for i in range(last - first):
            token = ids[first + 2 + k + i]
            order = known[logits[k, i].numpy().argsort()[::-1]].tolist()
            assert ranks[k, i] == (order.index(token) if token in order else UNKNOWN)


def test_eagle_heads_of_one_layer_are_refused(tmp_path, config, prompts):
    with pytest.raises(ConfigError, match="need a model of 2 layers, this has 1; take --heads medusa"):
        distill(config, plan(tmp_path / "x", prompts, method="eagle"), Notes())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"minutes": 0}, r"--minutes must be in \[0.01, 10000\], got 0"),
        ({"heads": 17}, r"--depth must be in \[1, 16\], got 17"),
        ({"vocab": 3}, "--vocab"),
        ({"temperature": 2.5}, "--temperature"),
        ({"max_tokens": 8}, "--max-tokens"),
        ({"seed": -1}, "--seed"),
        ({"steps": 0}, r"--steps must be in \[1, 4294967296\], got 0"),
        ({"steps": -1}, "--steps"),
    ],
)
def test_impossible_plans_are_refused(tmp_path, prompts, more, words):
    with pytest.raises(ConfigError, match=words):
        plan(tmp_path / "x", prompts, **more)


def test_unknown_heads_are_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="--heads must be one of medusa, eagle, got 'hydra'"):
        Plan(method="hydra", out=tmp_path)


def test_a_folder_with_other_things_is_not_written_to(tmp_path, config, prompts):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        distill(config, plan(tmp_path, prompts), Notes())
    with pytest.raises(ConfigError, match="is a file"):
        distill(config, plan(tmp_path / "thesis.tex", prompts), Notes())
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_prompts_that_cannot_be_used_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="cannot be read"):
        make_prompts(tmp_path / "none", 0)
    (tmp_path / "one").write_text("only one\n\n")
    with pytest.raises(ConfigError, match="holds 1 prompts; 2"):
        make_prompts(tmp_path / "one", 0)
    monkeypatch.setattr(prompts_page, "MAX_FILE_BYTES", 4)
    with pytest.raises(ConfigError, match="larger than"):
        make_prompts(tmp_path / "one", 0)


def test_answers_too_short_to_learn_from_are_said_so(tmp_path, config, prompts):
    with pytest.raises(ConfigError, match="too short"):
        distill(config, plan(tmp_path / "x", prompts, heads=16, max_tokens=16), Notes())


def test_states_beyond_float16_are_cut_to_its_range():
    """Infinite ones would make the loss NaN."""
    states = half(np.array([70_000.0, -1e9, 65_504.0, -2.5, np.nan], np.float32))
    assert states.dtype == np.float16
    assert states[:4].tolist() == [65_504.0, -65_504.0, 65_504.0, -2.5]
    assert np.isnan(states[4]), "broken states are not hidden"


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_training_whose_loss_breaks_down_stops(tmp_path, method):
    torch = pytest.importorskip("torch")
    from headrace.tools.distill import make

    rng = np.random.default_rng(0)
    states = tuple(rng.standard_normal((24, 64)).astype(np.float16) for _ in range(4))
    states[0][:] = states[3][:] = np.inf
    ids, known = rng.integers(0, 9, 24).astype(np.int32), np.arange(9, dtype=np.int32)
    weights = rng.standard_normal((9, 64)).astype(np.float32)
    reader = SimpleNamespace(
        head_rows=lambda tokens: weights[tokens],
        embed_rows=lambda tokens: weights[tokens],
        taps=SimpleNamespace(inputs_of=(0, 1, 2)),
    )
    texts = [Known(ids, 4, states)]
    asked = Plan(method=method, out=tmp_path, heads=2, vocab=16, steps=3)
    trainer = getattr(make, "make_" + method)(reader, known, texts, asked)(1.0)
    with pytest.raises(HeadraceError, match="the loss of step 1 is nan"):
        trainer.train(texts, lambda share, loss: None)
    assert all(
        torch.isfinite(torch.from_numpy(t.astype(np.float32))).all() for t in trainer.tensors().values()
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_weights_that_are_not_finite_are_not_written(tmp_path, kind, value):
    values = np.array([1.0, value, 3e38], np.float32)
    tensors = {"fine": values[:1], "broken": values if kind == "float32" else bfloat16(values)}
    with pytest.raises(HeadraceError, match="'broken' holds NaN or infinite values"):
        write_folder(tmp_path / "heads", {}, tensors, {})
    assert not (tmp_path / "heads").exists()
    write_folder(tmp_path / "heads", {}, {"fine": bfloat16(values[[0, 2]])}, {})
    assert (tmp_path / "heads" / "model.safetensors").exists()
