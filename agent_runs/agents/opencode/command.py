"""The command line of one run: `opencode run` with the prompt on standard input, never as an argument.

Source: `opencode run --help` of 1.18.33; which arguments change what a run means was observed.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from agent_runs.agents.opencode import VERSIONS
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.request import Capabilities, RunConfig
from agent_runs.transcript.events import printable

SESSION_TITLE_LIMIT: Final = 100

RESERVED_OPTIONS: Final[dict[str, str]] = {
    "--format": "the output format is fixed",
    "--session": "set resumeLastSession instead",
    "--continue": "set resumeLastSession instead",
    "--fork": "a run continues its own session",
    "--model": "set config.model instead",
    "--variant": "set config.variant instead",
    "--title": "the title names the run",
    "--dir": "set config.cwd instead",
    "--attach": "a run has its own OpenCode",
    "--password": "a run has its own OpenCode",
    "--username": "a run has its own OpenCode",
    "--port": "a run has its own OpenCode",
    "--interactive": "nobody is there to answer",
    "--share": "sharing is switched off",
    "--print-logs": "the log is always written",
    "--log-level": "the log is always written",
    "--auto": "set dangerouslySkipPermissions instead",
    "--yolo": "set dangerouslySkipPermissions instead",
    "--dangerously-skip-permissions": "set dangerouslySkipPermissions instead",
    "--help": "it would print help instead of running",
    "--version": "it would print a version instead of running",
}
"""Options that would fight with ours, and what to do instead."""

SHORT_OPTIONS: Final = {
    "-s": "--session",
    "-c": "--continue",
    "-m": "--model",
    "-p": "--password",
    "-u": "--username",
    "-i": "--interactive",
    "-h": "--help",
    "-v": "--version",
    "-f": "--file",
}
OPTIONS_WITH_VALUE: Final = frozenset({"--agent", "--command", "--file"})
SERVER_START: Final = timedelta(minutes=4)
"""Until OpenCode's server must listen. Ten that start at once on two cores need 11 s; three with half a core each, on a
node that is busy with other work, more than 90 s."""
SERVER_CAPABILITIES: Final = Capabilities(
    resumes=True, rests=True, takes_messages=True, asks=True, tokens="with each step", cost=True
)
"""OpenCode's server, 1 and 2."""


def command_line(
    *,
    model: str,
    directory: str,
    title: str,
    session_id: str | None = None,
    variant: str | None = None,
    extra_args: Sequence[str] = (),
) -> list[str]:
    """The argument vector, program first. The prompt goes to its standard input, which must then be closed.

    Args:
        model: `<provider>/<model>`.
        directory: absolute; a resumed session hangs for ever in any other directory than its own, so the process's
            PWD must be the same.
        title: any text; spares the request for one. See `run_title`.
        session_id: the session to resume.
        variant: the provider's reasoning profile.
        extra_args: `config.extraArgs`, after ours.

    Raises:
        InvalidRequest: an argument that OpenCode would misread or that fights with ours; names the field.
    """
    resume = ["--session", _checked("runtime.sessionParams.sessionId", session_id)] if session_id else []
    profile = ["--variant", _checked("config.variant", variant)] if variant else []
    return [
        *("opencode", "run", "--format", "json"),
        *resume,
        *("--model", _checked("config.model", model)),
        *profile,
        *("--title", run_title(title)),
        *("--dir", _checked("config.cwd", directory)),
        *("--print-logs", "--log-level", "INFO"),
        *(() if "--thinking" in extra_args else ("--thinking",)),
        *_extra(extra_args),
    ]


def served_turn(config: RunConfig, *, title: str, session_id: str | None) -> dict[str, Any] | None:
    """What OpenCode's server is to do, instead of the command line; None: the command line is to be used.

    The configuration was checked by `command_line`.

    Raises:
        InvalidRequest: `transport` wants the server, and `extraArgs` has an option that only the command line has.
    """
    agent, only_run = _server_options(config.extra_args)
    if not _served(config, only_run):
        return None
    if only_run:
        raise InvalidRequest(f"config.extraArgs: OpenCode's server has no {only_run}: remove it, or set transport: run")
    return {
        "title": run_title(title),
        "model": config.model,
        "variant": config.variant,
        "agent": agent,
        "session": session_id,
        "start_timeout": SERVER_START.total_seconds(),
        "versions": VERSIONS,
    }


def capabilities(config: RunConfig) -> Capabilities:
    """What OpenCode can do as it is configured."""
    _, only_run = _server_options(config.extra_args)
    if _served(config, only_run):
        return SERVER_CAPABILITIES.model_copy(update={"asks": config.ask_timeout_sec > 0})
    return SERVER_CAPABILITIES.model_copy(update={"rests": False, "takes_messages": False, "asks": False})


def _served(config: RunConfig, only_run: str | None) -> bool:
    return config.transport == "serve" or (config.transport == "auto" and not only_run)


def _server_options(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """The agent that these arguments name, and the first option that a server does not have."""
    agent, rest = None, iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        if option == "--agent":
            agent = value if equals else next(rest, None)
        elif option != "--thinking":
            return agent, option
    return agent, None


def run_title(*names: str | None) -> str:
    """A session title of one line, at most 100 characters, that no parser takes for an option."""
    words = " ".join(name for name in names if name)
    line = printable(re.sub(r"\s+", " ", words), SESSION_TITLE_LIMIT).lstrip("- ")
    return line or "agent run"


def _extra(arguments: Sequence[str]) -> list[str]:
    value_follows = False
    for position, argument in enumerate(arguments):
        if value_follows:
            _checked(f"config.extraArgs[{position}]", argument)
            value_follows = False
        else:
            value_follows = _takes_a_value(argument, position)
    if value_follows:
        raise InvalidRequest(f"config.extraArgs: {arguments[-1]} lacks its value; add it as the next item")
    return list(arguments)


def _takes_a_value(argument: str, position: int) -> bool:
    field = f"config.extraArgs[{position}]"
    if not argument.startswith("-") or argument in {"-", "--"}:
        raise InvalidRequest(
            f"{field}: remove it: a word that belongs to no option becomes part of the prompt (write --option=value)"
        )
    if "\0" in argument:
        raise InvalidRequest(f"{field}: remove the NUL character")
    options = _options(argument)
    for option in options:
        if option in RESERVED_OPTIONS:
            raise InvalidRequest(f"{field}: remove {option}: {RESERVED_OPTIONS[option]}")
    return options[-1] in OPTIONS_WITH_VALUE and "=" not in argument


def _options(argument: str) -> list[str]:
    """The long names in one argument as yargs reads it: `--no-x`, `--camelCase`, `--x.y` and `-abc` included."""
    name = argument.partition("=")[0]
    if not name.startswith("--"):
        return [SHORT_OPTIONS.get(f"-{letter}", f"-{letter}") for letter in name[1:]] or [name]
    option = _dashed(name.partition(".")[0])
    return ["--" + option.removeprefix("--no-") if option.startswith("--no-") else option]


def _dashed(option: str) -> str:
    """`--logLevel` as `--log-level`: yargs takes both spellings."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: f"-{match[1].lower()}", option)


def _checked(field: str, value: str) -> str:
    """A value that begins with a dash would be read as an option, whatever precedes it."""
    if not value.strip() or value.startswith("-") or "\0" in value:
        raise InvalidRequest(f"{field}: must not be empty, begin with '-' or contain NUL")
    return value
