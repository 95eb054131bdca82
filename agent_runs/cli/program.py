"""Shared by `agent-runs` and the commands of `dev_stack`: options, exit codes, errors in one line."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from typer.completion import (  # type: ignore[attr-defined]  # Typer documents them and exports none
    completion_init,  # pyright: ignore[reportPrivateImportUsage]
    get_completion_script,  # pyright: ignore[reportPrivateImportUsage]
)

from agent_runs.cli.lazy import lazy

if TYPE_CHECKING:
    from agent_runs.cli import known_errors
    from agent_runs.client import connection
    from agent_runs.transcript import events
else:
    known_errors, connection = map(lazy, ("agent_runs.cli.known_errors", "agent_runs.client.connection"))
    events = lazy("agent_runs.transcript.events")

TRACEBACK: Final = "AGENT_RUNS_TRACEBACK"
"""With this variable an error of the program itself has its traceback."""
BUG: Final = 70
"""Exit code of an error of the program itself. Source: BSD's sysexits.h, EX_SOFTWARE."""
ABORTED: Final = 130
USAGE: Final = 2
BROKEN_PIPE: Final = 141
"""Exit code of a program whose reader has closed the pipe, as shells count it: 128 + SIGPIPE."""

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the agent's own log lines (stderr), too.")]


class Refused(Exception):
    """A command cannot do what was requested. The text names what is wrong and what to do; `code` is the exit code."""

    def __init__(self, text: str, code: int = USAGE) -> None:
        super().__init__(text)
        self.code = code


def program(name: str, description: str) -> typer.Typer:
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

    def run() -> int:
        if _complete_variable(app.info.name or "") in os.environ:  # a shell asks, by the script of `completion`
            completion_init()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            if "--json" not in sys.argv:
                app()
            return _main_with_json(app)
        except SystemExit as end:
            if isinstance(end.code, str):
                raise
            return int(end.code or 0)
        except Exception as error:  # noqa: BLE001 - one that a person wants to see; Python would show it and end itself
            sys.excepthook(type(error), error, error.__traceback__)
            return 1

    return lambda: _end(run())


def _end(code: int) -> NoReturn:
    """End the process. With a Temporal client Python itself is not ended: see `connection.EXIT_DELAY_SEC`."""
    if "temporalio.bridge.temporal_sdk_bridge" not in sys.modules:
        sys.exit(code)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _main_with_json(app: typer.Typer) -> int:
    """Run the program; a wrong usage is one JSON object on stdout, as every other error is."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        return ABORTED
    except Exception as error:
        usage = getattr(error, "format_message", None)  # Typer has its own copy of Click, whose classes are private
        if usage is None:
            raise
        code = int(getattr(error, "exit_code", USAGE))
        _show_error(str(usage()), code)
    return code if isinstance(code, int) else 0


def completion_script(name: str, shell: str) -> str:
    """The script with which a shell completes the commands of a program."""
    return str(get_completion_script(prog_name=name, complete_var=_complete_variable(name), shell=shell))


def _complete_variable(name: str) -> str:
    return f"_{name}_COMPLETE".replace("-", "_").upper()


def run_async(work: Callable[[], Awaitable[int]]) -> NoReturn:
    """Run a command's coroutine to its end and exit with its code."""

    def run() -> int:
        connection.log_to_stderr()
        return connection.run_to_end(work, exit_delay_sec=0)

    finish(run)


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
        refusal = error if isinstance(error, Refused) else known_errors.as_refusal(error)
        if refusal is None:
            if os.environ.get(TRACEBACK):
                raise
            refusal = Refused(  # without the error's message, which may be of any length and hold anything
                f"an error of agent-runs itself ({type(error).__name__}). Run the command again with {TRACEBACK}=1 "
                "and report what it shows",
                code=BUG,
            )
        _show_error(str(refusal), refusal.code)
        code = refusal.code
    raise typer.Exit(code)


def _show_error(text: str, code: int) -> None:
    """One line on stderr for people; for programs one JSON object on stdout."""
    if "--json" in sys.argv:
        typer.echo(json.dumps({"type": "error", "message": text, "exitCode": code}))
    else:
        typer.echo(f"agent-runs: {events.visible(text)}", err=True)
