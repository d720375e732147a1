"""What was asked for, what holds, and why: noted as settings are resolved."""

from dataclasses import dataclass

from headrace.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A resolved setting: what was asked for, what holds, and why."""

    name: str
    asked: str
    value: str
    reason: str
    falls_short: bool = False
    """Less than was asked for, or than would be good: worth a look."""


class Notes:
    """Collects the settings with their reasons."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []

    def add(self, name: str, asked: object, value: object, reason: str, *, falls_short: bool = False) -> None:
        """What was asked for (None: nothing), what holds, and why."""
        text = "auto" if asked is None else str(asked)
        self.settings.append(
            Setting(name=name, asked=text, value=str(value), reason=reason, falls_short=falls_short)
        )

    def pick(self, name: str, asked: int | None, default: int, reason: str, most: int) -> int:
        """The asked value, or the default; both between 1 and `most`.

        Raises:
            ConfigError: it is not.
        """
        value = default if asked is None else asked
        if not 1 <= value <= most:
            raise ConfigError(f"{name} must be in [1, {most}], got {value}", param=name)
        self.add(name, asked, value, reason if asked is None else "asked for")
        return value
