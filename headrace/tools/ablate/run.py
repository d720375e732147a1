"""Each technique in turn: two servers, one with it and one without it, compared on its load."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from headrace.base.errors import RequestError
from headrace.tools.ablate.launch import serving
from headrace.tools.ablate.techniques import Technique
from headrace.tools.bench.ask import Wish
from headrace.tools.bench.compare import Compared, Comparison, Side, check_pairs, compare
from headrace.tools.bench.drive import OnDone
from headrace.tools.bench.run import first_model, warm_up
from headrace.tools.bench.wire import Client, Target

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a technique does to its figure, and everything else that was measured."""

    technique: Technique
    comparison: Comparison

    @property
    def chief(self) -> Compared:
        """The figure that the technique is for; A is without it, B with it.

        Raises:
            RequestError: a pair did not give it.
        """
        found = next((f for f in self.comparison.figures if f.title == self.technique.figure), None)
        if found is None:
            raise RequestError(f"{self.technique.name}: no {self.technique.figure} in every pair")
        return found


OnHalf = Callable[[Technique, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who is told how far it is."""

    on_half: OnHalf | None = None
    on_done: OnDone | None = None


async def ablate(
    model: str,
    techniques: Sequence[Technique],
    num_pairs: int,
    flags: Sequence[str] = (),
    watch: Watch | None = None,
) -> list[Effect]:
    """Measure them one after the other.

    Args:
        model: what is served.
        techniques: what is switched.
        num_pairs: repetitions of each comparison.
        flags: more flags of both servers.
        watch: who is told.

    Raises:
        RequestError: too few pairs, or a server that completes nothing.
        EngineDeadError: a server did not start.
    """
    check_pairs(num_pairs)
    watch = watch or Watch()
    effects: list[Effect] = []
    for technique in techniques:
        with ExitStack() as stack:
            sides = [
                await _side(stack.enter_context(serving(model, (*flags, *own))))
                for own in (technique.off, technique.on)
            ]

            def half(number: int, name: str, technique: Technique = technique) -> None:
                if watch.on_half is not None:
                    watch.on_half(technique, number, "without" if name == "A" else "with")

            found = await compare(sides[0], sides[1], technique.plan, num_pairs, half, watch.on_done)
        effects.append(Effect(technique=technique, comparison=found))
    return effects


async def _side(url: str) -> Side:
    client = Client(Target.from_url(url))
    fields = {"temperature": 0, "ignore_eos": True}
    wish = Wish(await first_model(client), timeout_s=TIMEOUT_S, extra=fields)
    await warm_up(client, wish, 2)
    return Side(client, wish)
