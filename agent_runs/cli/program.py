"""Shared by `agent-runs` and the commands of `dev_stack`: options, exit codes, errors in one line."""

import contextlib
import io
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from agent_runs.cli.lazy import lazy
from agent_runs.cli.refusals import Refused

if TYPE_CHECKING:
    from agent_runs.cli import failures
    from agent_runs.client import connection
else:
    failures, connection = map(lazy, ("agent_runs.cli.failures", "agent_runs.client.connection"))

BROKEN_PIPE: Final = 141
"""Exit code of a program whose reader has closed the pipe, as shells count it: 128 + SIGPIPE."""

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show OpenCode's own log lines (stderr), too.")]


def program(name: str, description: str) -> typer.Typer:
    """Create an application without commands."""
    return typer.Typer(
        name=name,
        help=description,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def entry_point(app: typer.Typer) -> Callable[[], None]:
    """The entry point of `app`. Characters that the terminal's encoding lacks are replaced."""

    def main() -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        app()

    return main


def run_async(work: Callable[[], Awaitable[int]]) -> NoReturn:
    """Run a command's coroutine to its end and exit with its code."""
    finish(lambda: connection.run_to_end(work))


def finish(work: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its code; a refusal is one line on stderr."""
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError):  # the reader is gone: flushing at exit must not fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    except Exception as error:
        refusal = error if isinstance(error, Refused) else failures.as_refusal(error)
        if refusal is None:
            raise
        typer.echo(f"agent-runs: {refusal}", err=True)
        code = refusal.code
    raise typer.Exit(code)
