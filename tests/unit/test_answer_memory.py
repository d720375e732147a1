"""Finished answers that later drafts may follow: what is found, whose it is, and how much is held."""

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.config import EngineConfig, SpeculateConfig
from headrace.base.errors import ConfigError
from headrace.base.grammar import Grammar
from headrace.base.ids import RequestId
from headrace.base.request import Request, SamplingParams
from headrace.base.tasks import AUTO, Pooling, Speculation
from headrace.base.terms import Tenant, Terms
from headrace.compute.spec.drafting import Drafting
from headrace.compute.spec.proposer import Ask, Owner, Remembers
from headrace.compute.spec.proposers import _answers, ngram, suffix
from headrace.compute.spec.proposers._votes import EDGE
from headrace.engine.drafts.wish import MAX_MEMORY_TOKENS, MEMORY_TOKEN_BYTES, about_memory
from tests.unit.test_proposers import lines_of

ANNA, BEN = Owner("anna", ""), Owner("ben", "")
PROMPT = [50, 51, 52]


SALTED = Owner("anna", "s" * 110)


def room(owner):
    """What an owner counts as beside its answers."""
    return 8 + len(owner.salt) // 50


class Held:
    """The memory as lists of (owner, answer) by tenant, the oldest first; tenants in the order they came."""

    def __init__(self, most):
        self.most, self.by_tenant = most, {}

    @property
    def answers(self):
        return [pair for pairs in self.by_tenant.values() for pair in pairs]

    def size(self, tenant):
        pairs = self.by_tenant[tenant]
        return sum(len(answer) + 1 for _, answer in pairs) + sum(map(room, {owner for owner, _ in pairs}))

    @property
    def num_tokens(self):
        return sum(map(self.size, self.by_tenant))

    def keep(self, owner, answer):
        size = len(answer) + 1
        if len(answer) < 2 or size + room(owner) > self.most or (owner, answer) in self.answers:
            return
        while self.num_tokens + size + room(owner) * (owner not in dict(self.answers)) > self.most:
            tenant = max(self.by_tenant, key=self.size)
            del self.by_tenant[tenant][0]
            if not self.by_tenant[tenant]:
                del self.by_tenant[tenant]
        self.by_tenant.setdefault(owner.tenant, []).append((owner, answer))


def naive_voters(held, owner, ids, num_prompt, most):
    """(tokens that match, what follows up to the end of the answer), the latest place first."""
    found = []
    for whose, answer in reversed(held.answers):
        if whose != owner:
            continue
        theirs = [EDGE, *answer]
        stem = [EDGE, ids[-1]] if len(ids) == num_prompt + 1 else ids[-2:]
        for place in range(len(theirs) - 1, 1, -1):
            if theirs[place - 2 : place] != stem:
                continue
            count = 0
            for back in range(1, min(32, len(ids), place) + 1):
                at = len(ids) - back
                token = theirs[place - back]
                if token == EDGE:
                    count += at == num_prompt - 1
                    break
                if token != ids[at]:
                    break
                count += 1
            found.append((count, theirs[place:]))
    return found[:most]


def told(voters):
    """The same of real voters."""
    found = []
    for match, text, place in voters:
        end = next((i for i in range(place, len(text)) if text[i] == EDGE), len(text))
        found.append((match, list(text[place:end])))
    return found


@given(
    st.integers(0, 90),
    st.lists(
        st.tuples(
            st.sampled_from([ANNA, BEN, SALTED, Owner("carl", "")]),
            st.lists(st.integers(0, 2), max_size=14),
        ),
        max_size=25,
    ),
    st.lists(st.integers(0, 2), min_size=3, max_size=12),
    st.integers(1, 11),
    st.integers(1, 5),
)
def test_any_answers_are_found_again_until_they_leave(most, answers, ids, num_prompt, count):
    memory, held = _answers.Memory(most), Held(most)
    for owner, answer in answers:
        memory.keep(owner, answer)
        held.keep(owner, answer)
        assert memory.num_tokens == held.num_tokens <= most
        for each in (ANNA, BEN, SALTED, Owner("carl", "")):
            mine = memory.of(each)
            assert (mine is not None) == any(o == each for o, _ in held.answers)
            if mine is not None:
                want = naive_voters(held, each, ids, min(num_prompt, len(ids) - 1), count)
                assert told(mine.voters(ids, min(num_prompt, len(ids) - 1), count)) == want


def test_what_finds_answers_leaves_with_them():
    rng = random.Random(1)
    memory = _answers.Memory(500)
    for _ in range(300):
        memory.keep(ANNA, [rng.randrange(10**6) for _ in range(rng.randint(2, 60))])
    answers = memory.of(ANNA)
    assert answers is not None
    assert 400 < memory.num_tokens <= 500
    assert len(answers.ids) == len(answers._before) <= 1000
    assert len(answers._latest_by_key) <= 500
    assert len(answers._known) == len(answers._starts) == len(memory._shelf_by_tenant["anna"].answers)


def test_who_asks_much_displaces_its_own():
    memory = _answers.Memory(100)
    memory.keep(BEN, [7, 8, 9])
    for i in range(50):
        memory.keep(Owner("anna", str(i)), [i] * 10)
    assert memory.of(BEN) is not None
    assert memory.of(Owner("anna", "49")) is not None
    assert memory.of(Owner("anna", "30")) is None
    assert len(memory._answers_by_owner) == 1 + (100 - 12) // (11 + 8)


@pytest.mark.parametrize("salt", ["", "s" * 40, "\N{SNOWMAN}" * 256, "\N{CHEESE WEDGE}" * 256])
@pytest.mark.parametrize("length", [2, 8, 40])
def test_many_salts_take_no_more_memory_than_is_told(salt, length):
    """Each salt is another owner, asked for twice with a text of its own; 0.2 KB a token."""
    rng, most, memory = random.Random(1), 20_000, _answers.Memory(20_000)
    tracemalloc.start()
    try:
        for i in range(3 * most // (length + 9)):
            for _ in range(2):
                owner = Owner("anna", f"{i:08d}{salt}")
                memory.keep(owner, [rng.randrange(300, 10**6) for _ in range(length)])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(memory._answers_by_owner) > 100
    assert held < 1.1 * most * MEMORY_TOKEN_BYTES


def remembering(most=1000):
    proposer = suffix.Suffix()
    proposer.remember(most)
    return proposer


def finish(proposer, owner, answer):
    proposer.begin(0)
    proposer.belong(0, owner, len(PROMPT))
    proposer.keep(0, answer)
    proposer.end(0)


def ask(proposer, owner, ids, most=8):
    proposer.begin(1)
    proposer.belong(1, owner, len(PROMPT))
    return proposer.propose([Ask(1, [*PROMPT, *ids], most)])[0]


def test_an_answer_is_drafted_from_its_first_token_on():
    proposer = remembering()
    finish(proposer, ANNA, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert ask(proposer, ANNA, [1]) == [2, 3, 4, 5]
    assert ask(proposer, ANNA, [1, 2, 3, 4]) == [5, 6, 7, 8, 9]  # and no further than it goes
    assert ask(proposer, ANNA, [3]) == []  # where no answer began
    assert ask(proposer, ANNA, [0, 3, 4]) == [5, 6, 7, 8]


def test_the_edge_counts_where_both_answers_begin():
    memory = _answers.Memory(100)
    memory.keep(ANNA, [1, 2, 3, 4])
    answers = memory.of(ANNA)
    assert answers is not None
    assert told(answers.voters([*PROMPT, 1, 2], len(PROMPT), 4)) == [(3, [3, 4])]
    assert told(answers.voters([*PROMPT, 9, 1, 2], len(PROMPT), 4)) == [(2, [3, 4])]


def test_answers_of_others_and_under_other_salts_are_not_drafted_from():
    proposer, plain = remembering(), suffix.Suffix()
    finish(proposer, ANNA, [1, 2, 3, 4, 5])
    for owner in (BEN, Owner("anna", "s"), Owner("", "anna"), Owner("", "")):
        for ids in ([1], [1, 2], [1, 2, 3, 9, 1, 2]):
            assert ask(proposer, owner, ids) == ask_plain(plain, ids)


def ask_plain(proposer, ids):
    proposer.begin(1)
    return proposer.propose([Ask(1, [*PROMPT, *ids], 8)])[0]


def test_a_request_and_earlier_answers_vote_together():
    proposer = remembering()
    finish(proposer, ANNA, [7, 1, 2, 3, 5])
    finish(proposer, ANNA, [7, 1, 2, 3, 5, 6])
    ids = [9, 1, 2, 3, 4, 8, 9, 1, 2, 3]
    assert ask(proposer, ANNA, ids, 1) == [5]  # 3 * 3 votes twice against 4 * 4
    assert ask(proposer, ANNA, [9, *ids[:6], 9, *ids], 1) == [4]


def test_the_same_answer_again_takes_no_room():
    proposer = remembering(100)
    finish(proposer, ANNA, [8, 9, 8])
    for _ in range(50):
        finish(proposer, ANNA, [1, 2, 3, 4, 5])
    assert ask(proposer, ANNA, [8]) == [9, 8]


@pytest.mark.parametrize("top", [1, 3, 200])
def test_an_ask_that_looks_at_answers_too_runs_a_bounded_number_of_lines(top):
    """SP-7: 20,000 tokens of context and as many of answers; 0.2 ms are some 4,000 lines."""
    rng, proposer, lines = random.Random(1), remembering(20_000), []
    for _ in range(60):
        finish(proposer, ANNA, [rng.randrange(top) for _ in range(rng.randint(250, 350))])
    ids = [rng.randrange(top) for _ in range(20_000)]
    proposer.begin(1)
    proposer.belong(1, ANNA, 10)
    proposer.propose([Ask(1, ids, 16)])
    for _ in range(30):
        ids.append(rng.randrange(top))
        lines.append(lines_of(lambda: proposer.propose([Ask(1, ids, 16)])))
    assert 20 < max(lines) <= 4000


def request(speculate=None, tenant="anna", task=None, structured=None):
    sampling = SamplingParams(seed=0, speculate=speculate, structured=structured)
    terms = Terms(tenant=Tenant(name=tenant))
    return Request(
        request_id=RequestId("r"), prompt_ids=tuple(PROMPT), sampling=sampling, terms=terms, task=task
    )


def drafting(memory_tokens=100):
    proposers = {"ngram": ngram.NGram(), "suffix": suffix.Suffix()}
    return Drafting(proposers, Speculation(AUTO), memory_tokens=memory_tokens)


@pytest.mark.parametrize(
    ("first", "is_kept"),
    [
        (request(), True),
        (request("suffix"), True),
        (request("auto,depth=2"), True),
        (request("off"), False),
        (request("ngram"), False),
        (request(task=Pooling.LAST), False),
        (request(structured=Grammar.regex("a*")), False),
    ],
)
def test_only_answers_that_suffix_drafts_are_kept(first, is_kept):
    made = drafting()
    made.begin(0, first)
    assert made.remembers(0) == is_kept
    made.keep(0, [1, 2, 3])
    made.end(0)
    made.begin(0, request())
    made.know(0, [*PROMPT, 1])
    assert made.propose([(0, 4)]) == [2 * is_kept]


def test_nothing_is_remembered_unless_asked_for():
    made = drafting(0)
    made.begin(0, request())
    assert not made.remembers(0)
    assert isinstance(suffix.Suffix(), Remembers)
    assert not isinstance(ngram.NGram(), Remembers)
    assert EngineConfig().speculate == SpeculateConfig(method="off", memory_tokens=0)


def test_a_sequence_that_comes_back_has_its_owner():
    made = drafting()
    made.begin(0, request())
    made.keep(0, [1, 2, 3, 4])
    made.end(0)
    made.begin(0, request(tenant="ben"))
    made.know(0, [*PROMPT, 1])
    assert made.propose([(0, 4)]) == [0]
    made.end(0)
    made.begin(0, request())
    made.know(0, [*PROMPT, 1, 2])
    assert made.propose([(0, 4)]) == [2]


def test_settings_say_what_becomes_of_the_memory():
    sizes = {1: "1 KiB", 100: "20 KiB", 5_242: "1024 KiB", 5_243: "2 MiB", 100_000: "20 MiB"}  # never less
    for tokens, size in sizes.items():
        assert about_memory(Speculation(AUTO), tokens) == f"asked for; up to {size} beside what is planned"
    assert "not used: only auto and suffix" in about_memory(Speculation("ngram"), 100)
    for wrong in (-1, MAX_MEMORY_TOKENS + 1):
        with pytest.raises(ConfigError, match=rf"speculate.memory_tokens must be in .*got {wrong}"):
            about_memory(Speculation(AUTO), wrong)
