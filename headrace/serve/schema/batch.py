"""`/v1/batches`: the request body."""

from typing import Literal

from headrace.serve.schema.support import StrictBody


class BatchBody(StrictBody):
    """Body of `/v1/batches`."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    completion_window: str | None = None
    metadata: dict[str, str] | None = None
