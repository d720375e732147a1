"""One settings tree from four places: flag, environment, file, default, in this order.

Flags are generated from `base.config.all_settings()`; a YAML file holds `section: {field: value}`; the
environment holds `HEADRACE_SECTION_FIELD`. Unknown names are errors that suggest the nearest known one.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from headrace.base.config import EngineConfig, SettingInfo, all_settings
from headrace.base.env import settings_from_env
from headrace.base.errors import ConfigError

MAX_FILE_BYTES = 1 << 20
_OTHER_VARIABLES = frozenset({"cache_dir"})
"""Variables with the prefix that are no settings."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The tree, and where each value that is not a default came from."""

    config: EngineConfig
    origin_by_name: Mapping[str, str]


def gather(
    flags: Mapping[str, Any],
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Gathered:
    """Put the tree together.

    Args:
        flags: values by `section.field`; None means not given.
        file: a YAML file.
        environment: variables in lower case without the prefix; None: the process's.

    Raises:
        ConfigError: an unknown name, or a value of a wrong type.
    """
    known = {f"{s.section}.{s.name}": s for s in all_settings()}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    variables = settings_from_env() if environment is None else environment
    given = [(name, value, f"file {file}") for name, value in _from_file(file).items()]
    given += [(n, v, _variable(n.replace(".", "_"))) for n, v in _from_environment(variables, known).items()]
    given += [(n, v, f"--{known[n].flag}") for n, v in flags.items() if v is not None and v != []]
    for name, value, origin in given:
        if name not in known:
            raise _unknown("setting", name, known)
        values[name] = parse(known[name], value, origin)
        origins[name] = origin
    return Gathered(_tree(values), origins)


def parse(info: SettingInfo, value: Any, origin: str) -> Any:
    """A value as its setting's type; text is read, other types must fit.

    Raises:
        ConfigError: it is of another type, or not one of the choices.
    """
    if value is None and "None" in info.type_name:
        return None
    kind = info.type_name.partition(" | ")[0]
    try:
        found = _PARSERS[kind](value)
    except (ValueError, TypeError) as err:
        raise ConfigError(
            f"{origin}: {info.section}.{info.name} must be {_WORDS[kind]}, got {value!r}",
            param=f"{info.section}.{info.name}",
        ) from err
    if info.choices and found not in info.choices:
        raise ConfigError(
            f"{origin}: {info.section}.{info.name} must be one of {', '.join(info.choices)}, got {value!r}",
            param=f"{info.section}.{info.name}",
        )
    return found


def with_settings(*sections: str, without: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Give a command a flag for each setting of these sections, and `--config`.

    The command is called with its own parameters and `settings: Gathered`.

    Args:
        sections: sections of the tree.
        without: settings (`section.field`) that get no flag.
    """

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        infos = [
            s for s in all_settings() if s.section in sections and f"{s.section}.{s.name}" not in without
        ]
        own = [p for p in inspect.signature(run).parameters.values() if p.name != "settings"]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters += [_parameter(s) for s in infos]
        parameters.append(
            _keyword(
                "config_file",
                Annotated[Path | None, typer.Option("--config", help="YAML file with settings.")],
            )
        )

        def command(**given: Any) -> None:
            file = given.pop("config_file")
            flags = {f"{s.section}.{s.name}": given.pop(_argument(s)) for s in infos}
            if given.get("model") is not None:
                flags["model.model"] = given["model"]
            run(**given, settings=gather(flags, file))

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = run.__doc__
        return command

    return decorate


def _parameter(info: SettingInfo) -> inspect.Parameter:
    kind: Any = {"bool": bool, "int": int, "float": float, "tuple": list[str]}.get(
        info.type_name.partition(" | ")[0], str
    )
    flag = f"--{info.flag}/--no-{info.flag}" if kind is bool else f"--{info.flag}"
    shown = "auto" if info.default is None else "none" if info.default == () else info.default
    choices = f" ({', '.join(info.choices)})" if info.choices else ""
    option = typer.Option(flag, help=f"{info.help}{choices} [default: {shown}]", show_default=False)
    annotation = Annotated[kind | None, option]
    return _keyword(_argument(info), annotation)


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _argument(info: SettingInfo) -> str:
    return f"{info.section}_{info.name}"


def _from_environment(variables: Mapping[str, str], known: Mapping[str, SettingInfo]) -> dict[str, str]:
    by_variable = {name.replace(".", "_"): name for name in known}
    sections = {s.section for s in known.values()}
    found: dict[str, str] = {}
    for variable, value in variables.items():
        if variable in by_variable:
            found[by_variable[variable]] = value
        elif variable not in _OTHER_VARIABLES and variable.partition("_")[0] in sections:
            raise _unknown("variable", f"HEADRACE_{variable.upper()}", [_variable(n) for n in by_variable])
    return found


def _variable(name: str) -> str:
    return f"HEADRACE_{name.upper()}"


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml

    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes; a settings file is short")
        loaded = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as err:
        raise ConfigError(f"cannot read {path}: {err}") from err
    sections = [f.name for f in fields(EngineConfig)]
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold sections ({', '.join(sections)}), each with settings")
    found: dict[str, Any] = {}
    for section, body in cast("dict[Any, Any]", loaded).items():
        if section not in sections:
            raise _unknown(f"section in {path}", str(section), sections)
        if not isinstance(body, dict):
            raise ConfigError(f"{path}: section {section} must hold settings, got {body!r}")
        found |= {f"{section}.{name}": value for name, value in cast("dict[Any, Any]", body).items()}
    return found


def _unknown(kind: str, name: str, known: Any) -> ConfigError:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"unknown {kind} {name!r}{hint}", param=name)


def _tree(values: Mapping[str, Any]) -> EngineConfig:
    tree = EngineConfig()
    for section in fields(EngineConfig):
        part = {n.partition(".")[2]: v for n, v in values.items() if n.partition(".")[0] == section.name}
        if part:
            tree = replace(tree, **{section.name: replace(getattr(tree, section.name), **part)})
    return tree


def _bool(value: Any) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError(value)


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(value)
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(value)
    found = float(value)
    if found != found or found in (float("inf"), float("-inf")):
        raise ValueError(value)
    return found


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _texts(value: Any) -> tuple[str, ...]:
    """A list of texts; one text is a list with commas, as the environment has it."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list | tuple):
        raise TypeError(value)
    return tuple(_str(part) for part in cast("list[Any]", value))


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _str,
    "tuple": _texts,
}
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "tuple": "a list of texts",
}
