"""Shows a run: to people as lines of text that also read well in a file, to programs as one JSON object per line."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from agent_runs.cli.lazy import lazy
from agent_runs.cli.runs_table import runs_table
from agent_runs.client.explanation import explain
from agent_runs.contracts.outcome import GAP_STREAM, Outcome, Usage
from agent_runs.contracts.updates import Delivery, Question
from agent_runs.transcript.entries import entry, json_object
from agent_runs.transcript.events import printable, visible

if TYPE_CHECKING:  # Temporal's client and SQLAlchemy, which most commands do without
    from agent_runs.cli import terminal
    from agent_runs.client.explanation import StoredLines
    from agent_runs.client.obstacles import Obstacle
    from agent_runs.client.outcome import Cancelled
    from agent_runs.client.runs import RunSummary
    from agent_runs.client.timeline import PhaseChange, Step
    from agent_runs.contracts.start import Finding
    from agent_runs.transcript.store import Line
    from agent_runs.transcript.usage import RunUsage
else:  # Markdown, which only output is rendered with
    terminal = lazy("agent_runs.cli.terminal")

PLAIN_WIDTH: Final = 100_000
"""Columns when the output is no terminal, unless the variable COLUMNS has another number: no line is wrapped."""
MAX_SUMMARY: Final = 2000


@dataclass(frozen=True)
class RunRef:
    """One run, with the names people and programs need.

    Attributes:
        page: link to the run's own page. It opens the transcript to whoever has it.
        paperclip: link to Paperclip's page of the run.
        paperclip_task: link to Paperclip's page of its task.
    """

    run_id: str
    agent_id: str
    workflow_id: str
    workflow_run_id: str
    web_ui: str | None = None
    page: str | None = None
    paperclip: str | None = None
    paperclip_task: str | None = None


@dataclass(frozen=True)
class ListedRun:
    """One run of a list.

    Attributes:
        usage: None: the store knows nothing of it, or was not reached.
    """

    run: RunSummary
    ref: RunRef
    usage: RunUsage | None = None


class Display(Protocol):
    """The output of a command."""

    def note(self, text: str) -> None: ...

    def run(self, run: RunRef, ticket: str) -> None:
        """Show a run that was started, joined or found (`ticket`)."""
        ...

    def phase_change(self, change: PhaseChange) -> None:
        """Show that the run reached a phase, or that an activity failed."""
        ...

    def line(self, attempt: int, line: Line) -> None: ...

    def runs(self, runs: Sequence[ListedRun], *, at_work: bool = False) -> None:
        """Show a list of runs; `at_work`: all of them are."""
        ...

    def steps(self, steps: Iterable[Step]) -> None: ...

    def obstacles(self, obstacles: Iterable[Obstacle]) -> None: ...

    def outcome(self, run_id: str, outcome: Outcome, stored: StoredLines | None = None) -> None:
        """Show an outcome with its explanation; `stored` is None where the store was not read."""
        ...

    def cancelled(self, run_id: str, answer: Cancelled) -> None: ...

    def delivered(self, answer: Delivery) -> None: ...

    def questions(self, questions: Iterable[Question]) -> None: ...

    def values(self, values: Mapping[str, object]) -> None:
        """Show names and values, such as addresses or environment variables."""
        ...

    def findings(self, findings: Iterable[Finding]) -> None: ...


class OutputConsole(Console):
    """A console for people: nothing that comes from outside moves its cursor, or hides or turns around text.

    It leaves a broken pipe to the program, which exits with its own code.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Filter the text of every segment. Rich adds the escape codes of styles after this."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Rich would end the process with a code of its own."""
        raise BrokenPipeError


@dataclass(frozen=True)
class _Unpadded:
    """A renderable without its styles and the spaces with which Rich fills its lines."""

    renderable: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for line in console.render_lines(self.renderable, options, pad=False):
            yield Segment("".join(segment.text for segment in line).rstrip(" "))
            yield Segment.line()


def _console() -> Console:
    console = OutputConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = PLAIN_WIDTH
    return console


@dataclass
class TextDisplay:
    """Text for people: plain lines, no cursor movements; colours only in a terminal and without NO_COLOR."""

    verbose: bool = False
    console: Console = field(default_factory=_console)

    def note(self, text: str) -> None:
        """Print a dim line, not wrapped: it may hold a command to copy."""
        self.console.print(Text(text, style="dim"), soft_wrap=True)

    def run(self, run: RunRef, ticket: str) -> None:
        self._print(Text.assemble((f"run {run.run_id}", "bold"), f"  {ticket}, agent {run.agent_id}"))
        links = {"page": run.page, "Paperclip": run.paperclip, "task": run.paperclip_task, "Web UI": run.web_ui}
        present = {name: link for name, link in links.items() if link}
        width = max(map(len, present), default=0)
        for name, link in present.items():
            self.console.print(Text(f"{name:<{width}}  {link}", style="cyan"), soft_wrap=True)

    def phase_change(self, change: PhaseChange) -> None:
        style = "red" if change.failed else "bold cyan"
        label = "failed" if change.failed else change.phase
        line = Text.assemble((f"{change.elapsed.total_seconds():7.1f} s  ", "dim"), (f"{label:<11}", style))
        self._print(line.append(f" {change.detail}", style="red" if change.failed else "dim"))

    def line(self, attempt: int, line: Line) -> None:
        """Print the line's entry: OpenCode's own log only with `verbose`, gaps always."""
        del attempt  # visible in the phases before it
        if line.stream not in {"stdout", GAP_STREAM} and not self.verbose:
            return
        parsed = entry(line.data, line.stream)
        if parsed is not None:
            self._print(terminal.render(parsed, markdown=self.console.is_terminal))

    def runs(self, runs: Sequence[ListedRun], *, at_work: bool = False) -> None:
        """Print a table, newest first. In terminals with hyperlinks a run's id opens its page."""
        if not runs:
            self._print(
                Text("no run is at work" if at_work else "no run fits; start one with `agent-runs start`", style="dim")
            )
            return
        self._print(runs_table(runs, self.console.width, datetime.now(UTC), last_output=at_work))
        if any(run.ref.page for run in runs):
            self.note("a run's page: agent-runs show RUN")

    def steps(self, steps: Iterable[Step]) -> None:
        table = Table(box=None, pad_edge=False)
        table.add_column("step")
        table.add_column("took", justify="right")
        for step in steps:
            took = "…" if step.ended is None else _seconds(step.ended - step.started)
            table.add_row(Text(step.name), Text(took, style="red" if step.failed else ""))
        self._print(table)

    def obstacles(self, obstacles: Iterable[Obstacle]) -> None:
        """Print one a line, not wrapped: it may hold a command to copy."""
        for each in obstacles:
            self.console.print(Text(printable(each.text, 1000), style="yellow"), soft_wrap=True)

    def outcome(self, run_id: str, outcome: Outcome, stored: StoredLines | None = None) -> None:
        """Print a table: the explanation, model, usage, cost, and the agent's summary."""
        rows = {name: Text(text) for name, text in explain(outcome, stored).items()}
        rows["what happened"].stylize("bold red" if outcome.failure else "bold green")
        rows |= {
            "model": Text("/".join(part for part in (outcome.provider, outcome.model) if part)),
            "tokens": Text(_tokens(outcome.usage)),
            "cost": Text("unknown" if outcome.cost_usd is None else f"${outcome.cost_usd:.6f}"),
            "summary": Text(printable(outcome.summary or "none", MAX_SUMMARY)),
            "run": Text(run_id),
        }
        self._print(_grid(rows))

    def cancelled(self, run_id: str, answer: Cancelled) -> None:
        stop = answer.stop
        ended = "stopped" if stop.agent_stopped else "not confirmed to have stopped"
        agent = ended if stop.agent_started else "never started"
        session = "kept, the next wake can resume it" if stop.session_preserved else "not kept"
        self._print(
            _grid(
                {
                    "run": Text(f"{run_id} {_ended(answer)}"),
                    "agent": Text(agent),
                    "session": Text(f"{answer.session_id}: {session}" if answer.session_id else "none"),
                }
            )
        )

    def delivered(self, answer: Delivery) -> None:
        if answer.queued:
            text = f"it is the next prompt of run {answer.run_id}, once the agent's turn has ended"
        else:
            text = f"the agent of run {answer.run_id} has it"
        self._print(Text(text))

    def questions(self, questions: Iterable[Question]) -> None:
        """Print each with its id and its numbered options."""
        for question in questions:
            self._print(Text(f"{question.id} ({question.kind})", style="bold"))
            for part in question.fields:
                self._print(Text(printable(part.text, 1000)))
                for number, option in enumerate(part.options, 1):
                    self._print(Text(f"  {number}  {printable(f'{option.label}  {option.description}', 500)}"))
                if part.own_words:
                    self._print(Text("  or own words"))

    def values(self, values: Mapping[str, object]) -> None:
        """Print one per line, not wrapped; environment variables as `export` commands."""
        for name, value in values.items():
            line = f"export {name}={shlex.quote(str(value))}" if name.isupper() else f"{name}  {value}"
            self.console.print(Text(line), soft_wrap=True)

    def findings(self, findings: Iterable[Finding]) -> None:
        """Print one per line, with what to do about it, not wrapped."""
        styles = {"error": "bold red", "warn": "yellow", "info": "green"}
        for each in findings:
            hint = f". {printable(each.hint, 500)}" if each.hint and each.level != "info" else ""
            text = f"  {each.code}  {printable(each.message, 1000)}{hint}"
            self.console.print(Text.assemble((f"{each.level:<5}", styles[each.level]), text), soft_wrap=True)

    def _print(self, renderable: RenderableType) -> None:
        shown = renderable if self.console.is_terminal else _Unpadded(renderable)
        self.console.print(shown, markup=False, highlight=False, emoji=False)


@dataclass
class JsonDisplay:
    """JSON for programs: one object per line, each with a `type`, flushed at once."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)

    def note(self, text: str) -> None:
        """`{"type": "note", "text": …}`."""
        self._write("note", text=text)

    def run(self, run: RunRef, ticket: str) -> None:
        """`{"type": "run", "runId": …, "ticket": "started" | "joined" | "found", …}`."""
        self._write("run", ticket=ticket, **_run(run))

    def phase_change(self, change: PhaseChange) -> None:
        """`{"type": "phase" | "activityFailed", "phase": …, "elapsed": seconds, …}`."""
        self._write(
            "activityFailed" if change.failed else "phase",
            phase=change.phase,
            elapsed=round(change.elapsed.total_seconds(), 3),
            at=change.at.isoformat(),
            detail=change.detail,
        )

    def line(self, attempt: int, line: Line) -> None:
        """`{"type": "line", …}` with the `event`, or `text` where the line is no event."""
        event = json_object(line.data) if line.stream == "stdout" else None
        content = {"text": line.data.decode("utf-8", errors="replace")} if event is None else {"event": event}
        at = line.at.isoformat()
        self._write("line", attempt=attempt, sequence=line.sequence, stream=line.stream, at=at, **content)

    def runs(self, runs: Sequence[ListedRun], *, at_work: bool = False) -> None:  # noqa: ARG002 (the port's)
        """One `{"type": "run", …}` each; `usage` is null where the store knows nothing of the run."""
        for listed in runs:
            run = listed.run
            self._write(
                "run",
                **_run(listed.ref),
                agentName=run.names.agent or None,
                taskName=run.names.task or None,
                companyId=run.key.company_id,
                phase=run.phase,
                open=run.open,
                model=run.model,
                taskKey=run.task_key,
                failureCode=run.failure_code,
                startedAt=run.started_at.isoformat(),
                endedAt=run.ended_at.isoformat() if run.ended_at else None,
                outcomeKeptUntil=run.kept_until.isoformat() if run.kept_until else None,
                events=run.events,
                usage=None if listed.usage is None else listed.usage.for_programs(),
            )

    def steps(self, steps: Iterable[Step]) -> None:
        """One `{"type": "step", …}` each."""
        for step in steps:
            took = (step.ended - step.started).total_seconds() if step.ended else None
            self._write("step", name=step.name, started=step.started.isoformat(), seconds=took, failed=step.failed)

    def obstacles(self, obstacles: Iterable[Obstacle]) -> None:
        """`{"type": "obstacle", "obstacle": "step_fails" | …, "subject": …, "text": …, "since": …}`."""
        for each in obstacles:
            self._write(
                "obstacle", obstacle=each.kind, subject=each.subject, text=each.text, since=each.since.isoformat()
            )

    def outcome(self, run_id: str, outcome: Outcome, stored: StoredLines | None = None) -> None:
        """`{"type": "outcome", "runId": …, "outcome": {…} in Paperclip's spelling, "explanation": {…}}`."""
        explanation = {_program_name(name): text for name, text in explain(outcome, stored).items()}
        self._write("outcome", runId=run_id, outcome=outcome.model_dump(mode="json"), explanation=explanation)

    def cancelled(self, run_id: str, answer: Cancelled) -> None:
        """`{"type": "cancelled", "runId": …, "answer": {…}}`."""
        self._write("cancelled", runId=run_id, answer=answer.model_dump(mode="json"))

    def delivered(self, answer: Delivery) -> None:
        """`{"type": "delivered", "runId": …, "attempt": …, "at": …, "queued": …}`."""
        self._write("delivered", **answer.model_dump(mode="json", by_alias=True))

    def questions(self, questions: Iterable[Question]) -> None:
        """`{"type": "question", "id": …, "kind": "permission" | "question", "fields": …}`."""
        for question in questions:
            self._write("question", **question.model_dump(mode="json", by_alias=True))

    def values(self, values: Mapping[str, object]) -> None:
        """`{"type": "values", …}`."""
        self._write("values", **{_program_name(name): value for name, value in values.items()})

    def findings(self, findings: Iterable[Finding]) -> None:
        """`{"type": "finding", "code": …, "level": "info" | "warn" | "error", "message": …, "hint": …}`."""
        for each in findings:
            self._write("finding", code=each.code, level=each.level, message=each.message, hint=each.hint)

    def _write(self, kind: str, /, **content: Any) -> None:
        self.stream.write(json.dumps({"type": kind, **content}) + "\n")
        self.stream.flush()


def display(*, as_json: bool, verbose: bool = False) -> Display:
    return JsonDisplay() if as_json else TextDisplay(verbose=verbose)


def _program_name(name: str) -> str:
    """A name for people in the spelling of programs: `next step` as `nextStep`."""
    first, *others = name.split(" ")
    return first.lower() + "".join(map(str.capitalize, others)) if others else name


def _run(run: RunRef) -> dict[str, str | None]:
    return {
        "runId": run.run_id,
        "agentId": run.agent_id,
        "workflowId": run.workflow_id,
        "workflowRunId": run.workflow_run_id,
        "webUi": run.web_ui,
        "page": run.page,
        "paperclip": run.paperclip,
        "paperclipTask": run.paperclip_task,
    }


def _grid(rows: dict[str, Text]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, text)
    return Group(Text(""), table)


def _ended(answer: Cancelled) -> str:
    if answer.outcome == "cancelled":
        return "is cancelled"
    return f"had already ended: {answer.failure_code or 'succeeded'}"


def _tokens(usage: Usage | None) -> str:
    if usage is None:
        return "unknown"
    reasoning = f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else ""
    return f"{usage.uncached_tokens:,} in, {usage.cached_input_tokens:,} cached, {usage.output_tokens:,} out{reasoning}"


def _seconds(took: timedelta) -> str:
    return f"{took.total_seconds():.1f} s"
