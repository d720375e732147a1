"""What answers are made of, and errors."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Described(BaseModel):
    """A part of an answer.

    Answers are not checked against it: its validator is made when the description of the API is asked for,
    not at each start.
    """

    model_config = ConfigDict(protected_namespaces=(), defer_build=True)


class ErrorFacts(Described):
    """What went wrong; `param` names the field to correct."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(Described):
    """Errors of every path but those below `/v1/messages`."""

    error: ErrorFacts


class MessageErrorFacts(Described):
    """What went wrong."""

    type: str
    message: str


class MessageErrorAnswer(Described):
    """Errors below `/v1/messages`."""

    type: Literal["error"]
    error: MessageErrorFacts
