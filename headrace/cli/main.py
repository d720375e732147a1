"""The entry point: finds the command, imports it alone, turns errors into one line and an exit code.

Exit codes: 0 fine; 1 Headrace could not do it; 2 it was asked wrongly; 130 interrupted.
"""

import ast
import gc
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import typer

from headrace import __version__
from headrace.base.env import calm_blas
from headrace.base.errors import ConfigError, HeadraceError, RequestError
from headrace.base.registry import Registry

COMMANDS: Registry[Callable[..., None]] = Registry("command", "headrace.cli.commands", "command")
WRONG = 2
GC_THRESHOLD = (50_000, 20, 20)
"""Loading makes hundreds of thousands of objects that stay; looking through them again takes long."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit; without arguments the process's own, which is then all that it does."""
    if arguments is not None:
        _run(list(arguments))
        return
    gc.set_threshold(*GC_THRESHOLD)
    calm_blas()
    try:
        _run(sys.argv[1:])
    finally:
        gc.freeze()  # what is left need not be taken apart piece by piece


def _run(arguments: list[str]) -> None:
    try:
        build(arguments)(arguments, prog_name="headrace")
    except HeadraceError as error:
        print(f"headrace: {error.message}", file=sys.stderr)
        sys.exit(2 if isinstance(error, (ConfigError, RequestError)) else 1)
    except SystemExit as ended:
        if ended.code == WRONG:
            for hint in hints(arguments):
                print(hint, file=sys.stderr)
        raise
    except MemoryError as error:
        print(f"headrace: out of memory ({error}); take a smaller model or KV pool", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def hints(arguments: Sequence[str]) -> list[str]:
    """Of flags that are spelled as their settings are named, how they are spelled."""
    from headrace.base.config import all_settings

    flags = {f"--{info.flag}" for info in all_settings()}
    found: list[str] = []
    for info in all_settings():
        names = {f"--{info.section}.{info.name}", f"--{info.section}-{info.name}".replace("_", "-")}
        names.add(f"--{info.name}".replace("_", "-"))
        asked = [a for a in (argument.partition("=")[0] for argument in arguments) if a in names - flags]
        found += [f"{name}: the setting {info.section}.{info.name} is --{info.flag}" for name in asked]
    return found


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application: the command that is called, alone; else all commands, each with its first line."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Headrace: an exact inference engine and server for large language models.",
    )
    names = COMMANDS.names()
    if arguments and arguments[0] in names:
        found = COMMANDS.get(arguments[0])
        if isinstance(found, typer.Typer):  # a command of commands
            app.add_typer(found, name=arguments[0])
        else:
            app.command(arguments[0], help=page(arguments[0]))(found)
    else:
        for name in names:
            app.command(name, help=first_line(name))(_not_called)
    app.callback()(_options)
    return app


def page(name: str) -> str:
    """A command's docstring, read from its file without importing it."""
    spec = find_spec(f"{COMMANDS.package}.{name}")
    if spec is None or spec.origin is None:
        return ""
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""


def first_line(name: str) -> str:
    """What a command does, in one line."""
    return page(name).partition("\n")[0]


def _not_called() -> None:
    """Stand in for a command that is not called."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    del version  # its callback has seen to it


if __name__ == "__main__":
    main()
