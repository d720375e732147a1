"""`/v1/embeddings`: the request body, and vectors as the answer spells them."""

import base64
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import RequestError
from headrace.base.tasks import Pooling, pooling_of
from headrace.serve.schema.completion import AnyPrompts, Prompt, token_ids
from headrace.serve.schema.sampling import needs
from headrace.serve.schema.support import StrictBody

MAX_INPUTS = 2048
"""OpenAI's limit on the inputs of one request."""


class EmbeddingBody(StrictBody):
    """Body of `/v1/embeddings`. `input` is checked by `inputs`, item by item, after its length."""

    model_config = needs("input")
    counted_by_hand: ClassVar[frozenset[str]] = frozenset({"input"})

    model: str | None = None
    input: AnyPrompts = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    pooling: str | None = None
    normalize: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None

    def kind(self) -> Pooling:
        """The pooling asked for.

        Raises:
            RequestError: it is unknown, or shorter vectors are asked for.
        """
        if self.dimensions is not None:
            raise RequestError(
                "dimensions is not supported: the model declares no shorter vectors; leave it out",
                param="dimensions",
            )
        return pooling_of(self.pooling or Pooling.LAST.value)

    def inputs(self, max_ids: int) -> list[Prompt]:
        """The inputs: a text, a list of texts, a list of ids, or a list of lists of ids.

        Args:
            max_ids: the context limit; a longer list of ids is refused before its items are looked at.

        Raises:
            RequestError: none of these, or too many.
        """
        given = self.input
        if isinstance(given, str):
            return [given]
        if not isinstance(given, list) or not given:
            raise RequestError(
                "input must be a text, a list of texts, a list of token ids, or a list of such lists",
                param="input",
            )
        items = cast("list[Any]", given)
        if isinstance(items[0], int):
            return [token_ids(items, max_ids, "input")]
        if len(items) > MAX_INPUTS:
            raise RequestError(
                f"input has {len(items)} entries, limit {MAX_INPUTS}; send them in several requests",
                param="input",
            )
        return [item if isinstance(item, str) else token_ids(item, max_ids, "input") for item in items]

    def spell(self, vector: NDArray[np.float32]) -> list[float] | str:
        """A vector as a list of numbers, or as base64 of its little-endian float32 bytes."""
        if self.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()
