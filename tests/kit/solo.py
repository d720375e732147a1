"""What a schedule gave, held against runs of each request by itself."""

from collections.abc import Container, Mapping, Sequence

from headrace.base.request import Request
from tests.kit.engine import Life, Rig


def check_against_solo(
    lives: Mapping[str, Life],
    requests: Sequence[Request],
    alone: Rig,
    shape: dict,
    aborts: Container[str] = (),
) -> None:
    """Every answer is that of a solo run on `alone`; of an aborted request, its beginning.

    Where drafts are checked, chunks are cut otherwise, so an error may come after another part of a prompt.
    """
    for request in requests:
        life, want = lives[request.request_id], alone.solo(request, shape["dtype"])
        if request.request_id in aborts:
            assert life.tokens == want.tokens[: len(life.tokens)]
            assert life.logprobs == want.logprobs[: len(life.logprobs)]
        elif want.error:
            assert (life.tokens, life.logprobs, life.error) == (want.tokens, want.logprobs, want.error)
        else:
            assert life.answer == want.answer, (request, shape)
