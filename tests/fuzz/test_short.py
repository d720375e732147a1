"""Short runs of what `make fuzz` does at length; every case is drawn from a fixed seed."""

import asyncio

from tests.fuzz import bodies, described, engines, files, natives, texts


def test_bodies() -> None:
    tally = asyncio.run(bodies.run(2000, seed=1))
    assert not tally.faults, tally.faults[:3]
    assert tally.statuses.total() == 2000
    answered = {path for path, status in tally.statuses if status == 200}
    assert answered >= set(bodies.SEEDS)  # or nothing behind the door was tried


def test_bodies_on_a_real_engine() -> None:
    tally = asyncio.run(engines.run_engine(400, seed=2))
    assert not tally.faults, tally.faults[:3]
    assert sum(count for (_, status), count in tally.statuses.items() if status == 200) > 30


def test_seed_bodies_are_good() -> None:
    async def send() -> list[tuple[str, int, bytes]]:
        target = bodies.Target()
        return [
            (path, status, content)
            for path, given in bodies.SEEDS.items()
            for body in given
            for status, _, content in [await target.ask("POST", path, bodies.json.dumps(body).encode())]
        ]

    assert not [found for found in asyncio.run(send()) if found[1] != 200]


def test_described_bodies() -> None:
    tally = described.run(12)
    assert not tally.faults, tally.faults[:3]
    assert tally.statuses.total() > 100
    assert any(status == 200 and path != "other" for path, status in tally.statuses)


def test_model_files() -> None:
    outcomes, faults, slowest = files.run(300, seed=1)
    assert not faults, faults[:3]
    assert 0 < slowest[0] <= files.MAX_CPU_S
    assert outcomes.total() == 300
    assert outcomes["refused"] > 100
    assert outcomes["loaded"] > 10


def test_templates_and_grammars() -> None:
    outcomes, faults = texts.run(600, seed=1)
    assert not faults, faults[:3]
    assert {"template good", "template refused", "grammar good", "grammar refused"} == set(outcomes)


def test_native_calls() -> None:
    """Field lesson of chapter 16, llama.cpp#10380: no input makes native code abort."""
    outcomes, faults = natives.run(3000, seed=1)
    assert not faults, faults[:3]
    assert outcomes.total() == 3000
    called = {name for name, _ in outcomes}
    assert len(called) > 30
    for said in ("returned", "refused"):  # or the calls are not nearly right
        assert {name for name, what in outcomes if what == said} == called
