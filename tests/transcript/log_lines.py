"""Lines of OpenCode's log as 1.18.33 writes them to stderr, without those that are of no interest here."""

from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 11, 23, 18, tzinfo=UTC)
PROVIDER = "providerID=fake modelID=scenario/script"


def _line(level: str, rest: str) -> str:
    return f"timestamp={_time(0)} level={level} run=e314f244 {rest}"


def _time(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def written(line: str, seconds: float) -> str:
    """The line as it is written so many seconds after the first one could be."""
    return line.replace(_time(0), _time(seconds))


def created(session: str, parent: str = "undefined") -> str:
    return _line("INFO", f"message=created id={session} slug=shiny-falcon version=1.18.33 parentID={parent} title=test")


def loop(session: str, step: int) -> str:
    """A step begins."""
    return _line("INFO", f"message=loop session.id={session} step={step}")


def request(session: str) -> str:
    """A request to the provider begins; again for each retry."""
    return _line("INFO", f"message=stream {PROVIDER} session.id={session} small=false agent=build mode=primary")


def stream_error(session: str, error: str) -> str:
    return _line(
        "ERROR", f'message="stream error" {PROVIDER} session.id={session} error.error="AI_APICallError: {error}"'
    )


def call(permission: str, pattern: str) -> str:
    """A tool call may run."""
    return _line("INFO", f'message=evaluated permission={permission} pattern="{pattern}" action.action=allow')


def plugin(words: str) -> str:
    return _line("INFO", f"service=plugin message={words!r}")
