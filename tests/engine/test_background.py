"""The bound of docs/batches.md on a live engine: the background fills it, and others are planned at once."""

from headrace.base.ids import RequestId
from headrace.base.request import Request, SamplingParams
from headrace.base.terms import Terms
from tests.kit.engine import Drive, Life, rig

LATER = Terms(is_background=True)


def request(name: str, length: int, max_tokens: int, terms: Terms) -> Request:
    ids = tuple((7 * i + len(name) + ord(name[-1])) % 90 for i in range(length))
    params = SamplingParams(max_tokens=max_tokens, seed=ord(name[-1]), logprobs=0)
    return Request(request_id=RequestId(name), prompt_ids=ids, sampling=params, terms=terms)


def test_requests_run_in_the_next_step_whatever_the_background_holds_and_all_answers_are_their_own():
    subject = rig()
    core = subject.core(slots=4, num_blocks=17, block_size=8, budget=64)
    lines = [request(f"line-{i}", 20, 12, LATER) for i in range(6)]
    drive = Drive(core)
    for line in lines:
        drive.lives[line.request_id] = Life()
        core.add((line,))
    asked: list[Request] = []
    for step in range(400):
        if not core.has_work:
            break
        is_full = sum(s.is_background for s in core.scheduler._roster.running) == 4
        if is_full and len(asked) < 8:  # all slots are taken, and nearly all blocks
            new = [request(f"now-{step}-{i}", 10 + 3 * i, 3, Terms()) for i in range(3)]
            for one in new:
                drive.lives[one.request_id] = Life()
                core.add((one,))
            drive.take(core.step())
            running = {s.request_id for s in core.scheduler._roster.running}
            assert {one.request_id for one in new} <= running
            asked += new
        else:
            drive.take(core.step())
        core.check()
    drive.check_idle()
    assert len(asked) >= 8
    assert any(drive.lives[line.request_id].preempted for line in lines)
    for one in (*lines, *asked):
        assert drive.lives[one.request_id].answer == subject.solo(one).answer
