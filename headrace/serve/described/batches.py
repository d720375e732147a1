"""Answers of `/v1/files` and `/v1/batches`."""

from typing import Any, Literal

from pydantic import BaseModel


class FileAnswer(BaseModel):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str
    expires_at: int | None


class FileList(BaseModel):
    """Files, newest first."""

    object: Literal["list"]
    data: list[FileAnswer]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(BaseModel):
    """A file that is gone."""

    id: str
    object: Literal["file"]
    deleted: bool


class BatchAnswer(BaseModel):
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


class BatchDeleted(BaseModel):
    """A batch that is gone."""

    id: str
    object: Literal["batch"]
    deleted: bool


class BatchList(BaseModel):
    """Batches, newest first."""

    object: Literal["list"]
    data: list[BatchAnswer]
    has_more: bool
    first_id: str | None
    last_id: str | None
