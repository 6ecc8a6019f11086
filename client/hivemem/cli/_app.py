"""The command as a whole: which commands there are, and how they end."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hivemem._errors import HivememError, InvalidField

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Modules of this folder, in the order in which `--help` shows their commands.
COMMANDS = ("sessions", "tail", "append", "search", "resume", "threads", "stats", "replay")
# Commands that come with the server.
SERVER_COMMANDS = {"serve": "Runs a server.", "demo": "Shows agents that work through one shared memory."}

_INTERRUPTED = 130
# What typer raises for arguments that make no sense; it does not give its name away.
_USAGE_ERROR: Any = typer.BadParameter.__base__


class _Group(TyperGroup):
    """The commands, with every error as one line on stderr."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Reads the arguments before the command."""
        with _errors_in_one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that was asked for."""
        with _errors_in_one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if "HIVEMEM_DEBUG" in os.environ:
            raise
        if said := _sentence(error):
            typer.echo(f"hivemem: {said}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None


def _sentence(error: Exception) -> str:
    """What is wrong and what helps, in one line. Empty: typer has shown the help already."""
    if isinstance(error, _USAGE_ERROR):
        command, wrong = error.ctx.command_path if error.ctx else "hivemem", error.format_message()
        return f"{wrong} (`{command} --help` says more)" if wrong else ""
    if isinstance(error, ModuleNotFoundError):
        return f"the module {error.name} is not installed: pip install 'hivemem[server]'"
    if isinstance(error, UnicodeError):
        return "the text is not valid UTF-8"
    if isinstance(error, InvalidField) and error.violations:
        return "; ".join(f"{one.field}: {one.description}" for one in error.violations)
    if isinstance(error, (HivememError, OSError, ValueError)):
        return " ".join(str(error).split())
    return f"this is a bug ({type(error).__name__}: {error}); HIVEMEM_DEBUG=1 shows where"


def build() -> typer.Typer:
    """The command with all its commands, those of other packages included."""
    _write_utf8()
    app = typer.Typer(
        cls=_Group,
        name="hivemem",
        help="The shared memory of a fleet of agents.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in COMMANDS:
        importlib.import_module(f"hivemem.cli.{name}").register(app)
    if not _asks_for_one_of_ours(sys.argv[1:]):
        for entry_point in metadata.entry_points(group="hivemem.commands"):
            _load(entry_point)(app)
    return app


def _asks_for_one_of_ours(arguments: list[str]) -> bool:
    """Whether the commands of other packages, which may be slow to load, do not matter."""
    return next((word for word in arguments if not word.startswith("-")), None) in COMMANDS


def _write_utf8() -> None:
    """Makes what is piped UTF-8 whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hivemem {metadata.version('hivemem')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Shows the version and ends.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Takes the options of the command as a whole; they act by their callbacks."""


def _load(entry_point: metadata.EntryPoint) -> Callable[[typer.Typer], None]:
    try:
        register: Callable[[typer.Typer], None] = entry_point.load()
    except ModuleNotFoundError:
        return _register_what_is_missing
    return register


def _register_what_is_missing(app: typer.Typer) -> None:
    """Stands in for the commands of the server where it is not installed."""

    def missing() -> None:
        raise ValueError("the server is not installed: pip install 'hivemem[server]'")

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    for name, text in SERVER_COMMANDS.items():
        app.command(name, help=f"{text} (Not installed.)", context_settings=anything)(missing)
