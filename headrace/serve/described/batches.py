"""Answers of `/v1/files` and `/v1/batches`."""

from typing import Any, Literal

from headrace.serve.described.errors import Described


class FileAnswer(Described):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str
    expires_at: int | None


class FileList(Described):
    """Files, newest first."""

    object: Literal["list"]
    data: list[FileAnswer]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(Described):
    """A file that is gone."""

    id: str
    object: Literal["file"]
    deleted: bool


class BatchAnswer(Described):
    """A batch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    errors: dict[str, Any] | None
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    expires_at: int | None
    request_counts: dict[str, int]
    metadata: dict[str, str] | None


class BatchDeleted(Described):
    """A batch that is gone."""

    id: str
    object: Literal["batch"]
    deleted: bool


class BatchList(Described):
    """Batches, newest first."""

    object: Literal["list"]
    data: list[BatchAnswer]
    has_more: bool
    first_id: str | None
    last_id: str | None
