"""The setting `speculate.method`, read and checked."""

from headrace.base.errors import ConfigError, RequestError
from headrace.base.tasks import AUTO, SOURCES, Speculation
from headrace.compute.spec.proposer import PROPOSERS, methods, rememberers

PARAM = "speculate.method"
MEMORY = "speculate.memory_tokens"
MAX_MEMORY_TOKENS = 1_000_000
MEMORY_TOKEN_BYTES = 200
"""Of the places of a token and what finds them; measured."""
_AS_PAY = "asked for; each row checks as many drafts as pay by what is measured"


def offered(asked: str) -> Speculation:
    """What the setting asks for.

    Raises:
        ConfigError: another form, a method that there is not, or one without what it is made from.
    """
    try:
        found = Speculation.parse(asked)
    except RequestError as error:
        raise ConfigError(error.message, param=PARAM) from error
    known = methods()
    for name in found.names:
        if name not in known:
            raise ConfigError(f"{PARAM} must be one of {', '.join(known)}, got {name!r}", param=PARAM)
    path, has_last, last = found.source.rpartition(",")
    if has_last and last in (AUTO, *PROPOSERS.names()):
        raise ConfigError(
            f"{PARAM}: lookups come first, as in {last},{found.method}={path:.60}; got {asked!r:.80}",
            param=PARAM,
        )
    if found.is_late and not found.source:
        raise ConfigError(
            f"{PARAM}: {found.method} needs {found.method}={SOURCES[found.method]}, got {asked!r:.80}",
            param=PARAM,
        )
    return found


def reason_of(found: Speculation) -> str:
    """Why this holds, for the table of settings."""
    if not found.is_on:
        return "the default"
    told = "asked for" if found.depth is not None else _AS_PAY
    return f"{told}; for each row the lookup drafts or {found.method}" if found.beside else told


def about_memory(found: Speculation, tokens: int) -> str:
    """What the table of settings says of the memory of answers.

    Raises:
        ConfigError: its size is out of range.
    """
    if not 0 <= tokens <= MAX_MEMORY_TOKENS:
        raise ConfigError(f"{MEMORY} must be in [0, {MAX_MEMORY_TOKENS}], got {tokens}", param=MEMORY)
    able = (AUTO, *rememberers())
    if found.lookup not in able:
        return f"not used: only {' and '.join(able)} draft from earlier answers, not {','.join(found.names)}"
    return f"asked for; up to {_at_most(tokens * MEMORY_TOKEN_BYTES)} beside what is planned"


def _at_most(size: int) -> str:
    """Bytes, rounded up: a bound that reads smaller than it is would be none."""
    return f"{-(-size >> 20)} MiB" if size >= 1 << 20 else f"{-(-size >> 10)} KiB"


def about_draft(description: str, *, is_small: bool) -> str:
    """What the table of settings says of a draft model."""
    if is_small:
        return description
    return f"{description}; warning: not smaller than the model, so drafting with it cannot pay"
