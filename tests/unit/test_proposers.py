"""Proposers without a model: what they say, what an index costs, what a slot forgets."""

import random
import sys
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.request import Request, SamplingParams
from headrace.base.tasks import AUTO, Speculation
from headrace.compute.spec.drafting import Drafting
from headrace.compute.spec.proposer import PROPOSERS, Ask, Needs
from headrace.compute.spec.proposers import _votes, ngram, suffix
from headrace.compute.spec.proposers._grams import Chains, key_of, keys_of

tokens = st.lists(st.integers(0, 3), max_size=60)
NAMES = PROPOSERS.names()


def naive_match(ids, place):
    """Tokens before a place that equal those at the end."""
    count = 0
    while count < min(place, _votes.MAX_MATCH) and ids[place - 1 - count] == ids[-1 - count]:
        count += 1
    return count


def naive_drafts(ids, places, most):
    """What places say, votes and all; the latest first."""
    matches = {place: naive_match(ids, place) for place in places}
    text, sure = list(ids), 1.0
    end = len(ids) + min(most, _votes.STRETCH * max(matches.values(), default=0))
    while len(text) < end:
        said = {place: text[place + len(text) - len(ids)] for place in matches}
        votes = Counter()
        for place, token in said.items():
            votes[token] += matches[place] ** 2
        ((best, count),) = votes.most_common(1)  # of equals the first
        sure *= count / votes.total()
        if sure < _votes.LEAST:
            break
        text.append(best)
        matches = {place: matches[place] for place, token in said.items() if token == best}
    return text[len(ids) :]


def naive_places(ids, size, most):
    ends = range(len(ids) - 1, size - 1, -1)
    return [at for at in ends if ids[at - size : at] == ids[len(ids) - size :]][:most]


def naive_ngram(ids, most):
    found = (naive_places(ids, size, ngram.PLACES) for size in ngram.SIZES)
    return naive_drafts(ids, next(filter(None, found), []), most)


def naive_suffix(ids, most):
    return naive_drafts(ids, naive_places(ids, suffix.STEM, suffix.CHAIN), most)


NAIVE = {"ngram": naive_ngram, "suffix": naive_suffix}


def naive_longest(ids):
    """Length of the longest end that occurred before with something after it."""
    return max(
        (
            n
            for n in range(1, len(ids))
            if any(ids[a - n : a] == ids[len(ids) - n :] for a in range(n, len(ids)))
        ),
        default=0,
    )


def test_the_methods_are_the_files():
    assert set(NAMES) == {"ngram", "suffix"}
    for name in NAMES:
        assert PROPOSERS.get(name)().needs is Needs.NOTHING


@given(st.lists(st.integers(0, 2**18), min_size=5, max_size=30), st.integers(1, 5))
def test_keys_made_together_equal_keys_made_one_by_one(ids, size):
    ends = range(size, len(ids) + 1)
    assert keys_of(ids, size, len(ids), size) == [key_of(ids, end, size) for end in ends]
    grams = {tuple(ids[e - size : e]) for e in ends}
    assert len({key_of(ids, e, size) for e in ends}) == len(grams)


@pytest.mark.parametrize("name", NAMES)
@example([3, 3, 3, 3, 1, 0, 2, 0, 3, 3, 3, 3], [], 7)  # the longest match is outvoted, and its length counts
@given(
    st.lists(st.integers(0, 3), max_size=120), st.lists(st.integers(1, 5), max_size=20), st.integers(1, 16)
)
def test_drafts_are_what_the_places_before_say(name, start, grows, most):
    proposer, ids, rng = PROPOSERS.get(name)(), list(start), random.Random(1)
    proposer.begin(0)
    for grow in [0, *grows]:
        ids += [rng.randrange(4) for _ in range(grow)]
        assert proposer.propose([Ask(0, ids, most)]) == [NAIVE[name](ids, most)]


@pytest.mark.parametrize("name", NAMES)
def test_a_long_prompt_is_taken_in_at_once_as_it_would_be_one_by_one(name):
    rng = random.Random(5)
    ids = [rng.randrange(30) for _ in range(800)]
    ids += ids[100:104]
    whole, steps = PROPOSERS.get(name)(), PROPOSERS.get(name)()
    for end in range(1, len(ids) + 1):
        by_step = steps.propose([Ask(0, ids[:end], 4)])
    assert whole.propose([Ask(0, ids, 4)]) == by_step != [[]]


def test_ngram_ranks_places_by_what_stands_before_them_then_by_votes_then_by_age():
    gram = [1, 2, 3, 4]
    ids = [8, 9, *gram, 5, 0, *gram, 6, 0, *gram, 6, 0, 8, 9, *gram]
    assert ngram.NGram().propose([Ask(0, ids, 1)]) == [[5]]  # 6 * 6 votes against 4 * 4 + 4 * 4
    ids = [*gram, 6, 0, *gram, 5, 0, *gram, 6, 0, *gram, 7, 0, 9, *gram]
    assert ngram.NGram().propose([Ask(0, ids, 1)]) == [[6]]
    ids = [*gram, 5, 0, *gram, 6, 9, *gram]
    assert ngram.NGram().propose([Ask(0, ids, 1)]) == [[6]]
    # The longest n decides, whatever shorter ones say.
    ids = [*gram, 5, 0, *([7, 2, 3, 4, 6, 0] * 3), 9, *gram]
    assert ngram.NGram().propose([Ask(0, ids, 1)]) == [[5]]


def test_ngram_drafts_less_where_places_disagree_and_where_little_stands_before_them():
    ids = []
    for i in range(8):
        ids += [1, 2, 3, 4, 5, 6, 100 + i]
    assert ngram.NGram().propose([Ask(0, [*ids, 1, 2, 3], 16)]) == [[4, 5, 6]]
    ids = [9, 1, 2, 10, 11, 12, 13, 14, 15, 16, 17, 0, 1, 2]
    assert ngram.NGram().propose([Ask(0, ids, 16)]) == [[10, 11, 12, 13]]


def test_a_copy_that_reaches_its_own_end_goes_on_in_a_circle():
    for name in NAMES:
        (drafts,) = PROPOSERS.get(name)().propose([Ask(0, [9, 1, 2, 3, 1, 2, 3, 1, 2], 6)])
        assert drafts == [3, 1, 2, 3, 1, 2]


@given(tokens.filter(lambda ids: len(ids) > 3))
def test_suffix_drafts_go_on_for_twice_the_match_at_most(ids):
    (drafts,) = suffix.Suffix().propose([Ask(0, ids, 16)])
    assert len(drafts) <= _votes.STRETCH * naive_longest(ids)
    if naive_longest(ids) < suffix.STEM:
        assert drafts == []


def test_suffix_prefers_the_longer_match_and_counts_votes():
    long, short = [7, 8, 1, 2], [1, 2]
    ids = [*long, 5, 0, *short, 6, 0, *short, 6, 0, *long]
    assert suffix.Suffix().propose([Ask(0, ids, 1)]) == [[5]]  # 4 * 4 votes against 2 * 2 + 2 * 2
    ids = [*short, 6, 0, *short, 5, 0, *short, 6, 0, 9, *short]
    assert suffix.Suffix().propose([Ask(0, ids, 1)]) == [[6]]


def test_suffix_stops_where_places_disagree():
    rng = random.Random(3)
    ids = []
    for _ in range(8):
        ids += [1, 2, 3, 4, 5, rng.randrange(100, 10**6)]
    ids += [1, 2]
    assert suffix.Suffix().propose([Ask(0, ids, 16)]) == [[3, 4, 5]]


@pytest.mark.parametrize("name", NAMES)
def test_a_slot_forgets_and_slots_do_not_mix(name):
    proposer = PROPOSERS.get(name)()
    ids = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    assert proposer.propose([Ask(0, ids, 2), Ask(1, [4, 4], 2)]) == [[5, 1], []]
    proposer.begin(0)
    assert proposer.propose([Ask(0, [8, 9, 7, 1, 2, 3], 2)]) == [[]]
    proposer.end(0)
    assert proposer.propose([Ask(0, ids, 2)]) == [[5, 1]]


@pytest.mark.parametrize("name", NAMES)
def test_an_ask_looks_at_a_bounded_number_of_tokens(name):
    """SP-7: 20,000 tokens of context, with and without matches; counted, not timed."""

    class Counted(list):
        looks = 0

        def __getitem__(self, at):
            Counted.looks += at.stop - at.start if isinstance(at, slice) else 1
            return super().__getitem__(at)

    rng = random.Random(1)
    for top in (1, 3, 200, 10**6):
        proposer, ids = PROPOSERS.get(name)(), Counted(rng.randrange(top) for _ in range(20_000))
        proposer.propose([Ask(0, ids, 8)])
        for _ in range(20):
            ids.append(rng.randrange(top))
            Counted.looks = 0
            proposer.propose([Ask(0, ids, 8)])
            assert Counted.looks <= 1000


def lines_of(call) -> int:
    """Lines of Python that a call runs, those of functions that it calls included."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("top", [3, 200, 10**6])
def test_an_ask_runs_a_bounded_number_of_lines(name, top):
    """SP-7: at 20,000 tokens; counted, as 0.2 ms are some 4,000 lines of Python on any machine."""
    rng, lines = random.Random(1), []
    proposer, ids = PROPOSERS.get(name)(), [rng.randrange(top) for _ in range(20_000)]
    proposer.propose([Ask(0, ids, 8)])
    for _ in range(50):
        ids.append(rng.randrange(top))
        lines.append(lines_of(lambda: proposer.propose([Ask(0, ids, 8)])))
    assert 10 < max(lines) <= 700


@pytest.mark.parametrize("name", NAMES)
def test_an_ask_where_all_places_match_at_length_runs_a_bounded_number_of_lines(name):
    """SP-7: the most that an ask can cost. All tokens are equal."""
    proposer, ids = PROPOSERS.get(name)(), [7] * 20_000
    proposer.propose([Ask(0, ids, 16)])
    ids.append(7)
    assert 500 < lines_of(lambda: proposer.propose([Ask(0, ids, 16)])) <= 2500


@pytest.mark.parametrize("most", [1, 3, 8])
def test_places_are_the_latest_ones_and_no_more_are_looked_at_than_asked_for(most):
    class Counted(list):
        looks = 0

        def __getitem__(self, at):
            self.looks += 1
            return super().__getitem__(at)

    chains, ids = Chains(2), [1, 2, 3] * 2000
    chains.grow(ids)
    chains._before = Counted(chains._before)
    assert chains.places(ids, most) == [len(ids) - 3 * i for i in range(1, most + 1)]
    assert chains._before.looks == most


class Silent:
    needs = Needs.NOTHING

    def __init__(self, drafts, auto_place=0):
        self.drafts, self.slots, self.auto_place = drafts, set(), auto_place

    def begin(self, slot):
        self.slots.add(slot)

    def end(self, slot):
        self.slots.discard(slot)

    def propose(self, asks):
        assert all(a.slot in self.slots for a in asks)
        return [list(self.drafts) for _ in asks]


def request(speculate=None):
    sampling = SamplingParams(seed=0, speculate=speculate)
    return Request(request_id="r", prompt_ids=(1,), sampling=sampling)


def test_a_request_chooses_its_method():
    drafting = Drafting({"ngram": Silent([5], 1), "suffix": Silent([6, 7], 0)}, Speculation(AUTO))
    for slot, wish in enumerate((None, "ngram", "suffix", "off", "auto,depth=1")):
        drafting.begin(slot, request(wish))
        assert not drafting.grow(slot, 2, [2])
        drafting.know(slot, [1, 2])
        assert drafting.grow(slot, 2, [3])
    assert drafting.propose([(slot, 2) for slot in range(5)]) == [2, 1, 2, 0, 2]
    assert drafting.agree(0, [6, 7, 8]) == (2, 2)
    assert drafting.agree(1, [4]) == (1, 0)
    assert drafting.agree(2, [6]) == (1, 1)
    assert drafting.agree(2, [6]) == (0, 0)
    assert drafting.agree(4, [6, 1]) == (2, 1)


def test_auto_asks_suffix_first_and_each_method_has_a_place_of_its_own():
    places = {name: make().auto_place for name, make in PROPOSERS.all().items()}
    assert len(set(places.values())) == len(places)
    assert min(places, key=places.__getitem__) == "suffix"


def test_auto_asks_the_next_method_where_one_is_silent():
    drafting = Drafting({"ngram": Silent([5], 1), "suffix": Silent([], 0)}, Speculation(AUTO))
    drafting.begin(0, request())
    drafting.know(0, [1])
    assert drafting.propose([(0, 3)]) == [1]
    assert drafting.held[0] == [5]
    drafting.end(0)
    assert drafting.held == {}


def test_a_proposer_that_needs_more_than_tokens_is_refused():
    proposer = Silent([])
    proposer.needs = Needs.HIDDEN
    with pytest.raises(ValueError, match="'x' needs"):
        Drafting({"x": proposer}, Speculation("x"))
