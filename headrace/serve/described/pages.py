"""Answers of the small endpoints."""

from typing import Any, Literal

from pydantic import Field

from headrace.serve.described.errors import Described


class ModelCard(Described):
    """The model, and what applies where a request says nothing."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    default_sampling_params: dict[str, float]


class ModelList(Described):
    """Answer of `/v1/models`."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokens(Described):
    """Answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class PromptText(Described):
    """Answer of `/detokenize`."""

    prompt: str


class State(Described):
    """Answer of the probes."""

    status: str
    reason: str


class Version(Described):
    """Answer of `/version`."""

    version: str


class CancelledRequest(Described):
    """Answer to the end of a request."""

    id: str
    object: Literal["request"]
    cancelled: Literal[True]


class Found(Described):
    """One finding of the doctor."""

    name: str
    severity: Literal["bottleneck", "warning", "info"]
    evidence: dict[str, float | str]
    remedy: str
    expected_gain: str


class Diagnosis(Described):
    """Answer of `/doctor`; `bottleneck` is `healthy` when nothing bounds the speed."""

    bottleneck: str
    evidence: dict[str, float | str]
    next: str | None
    findings: list[Found]


class OpenApi(Described):
    """This description."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]
    security: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
