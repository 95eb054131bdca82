"""Shows a run: to people as lines of text that also read well in a file, to programs as one JSON object per line."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from cli.transcript import rendered
from contracts.outcome import Outcome, OutputReceipt, Report, Usage
from contracts.talk import Cancelled
from opencode.entries import GAP, entry, found_object
from opencode.events import printable

if TYPE_CHECKING:  # Temporal's client and SQLAlchemy, which `parse` does without
    from client.runs import RunSummary
    from client.story import Moment, Step
    from transcripts.store import Line

PLAIN_WIDTH: Final = 110
"""Columns when the output is no terminal."""
SUMMARY: Final = 2000


@dataclass(frozen=True)
class RunRef:
    """One run, with the names people and programs need.

    Attributes:
        page: link to the run's own page. It opens the transcript to whoever has it.
    """

    run_id: str
    agent_id: str
    workflow_id: str
    workflow_run_id: str
    web_ui: str | None = None
    page: str | None = None


class Display(Protocol):
    """How a command talks to whoever started it."""

    def note(self, text: str) -> None:
        """Something worth knowing."""
        ...

    def run(self, run: RunRef, ticket: str) -> None:
        """A run was started, joined or found."""
        ...

    def moment(self, moment: Moment) -> None:
        """The run reached a phase, or a step failed."""
        ...

    def line(self, attempt: int, line: Line) -> None:
        """One line of the agent's output."""
        ...

    def runs(self, runs: Iterable[tuple[RunSummary, RunRef]]) -> None:
        """A list of runs, each with its pages."""
        ...

    def steps(self, steps: Iterable[Step]) -> None:
        """What the run did, step by step."""
        ...

    def outcome(self, run_id: str, outcome: Outcome) -> None:
        """What came of it."""
        ...

    def cancelled(self, run_id: str, answer: Cancelled) -> None:
        """What became of a cancel."""
        ...

    def report(self, report: Report) -> None:
        """What the fold over a saved output says."""
        ...

    def facts(self, facts: dict[str, str]) -> None:
        """Addresses, environment: names and values."""
        ...


class _Paper(Console):
    """A console whose reader may go away: that is the program's end, not rich's."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console() -> Console:
    console = _Paper(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


@dataclass
class People:
    """For people. Plain lines, no cursor movements; colours only where the terminal has them and NO_COLOR is unset."""

    verbose: bool = False
    console: Console = field(default_factory=_console)

    def note(self, text: str) -> None:
        """A dim line, unbroken: it may hold a command to copy."""
        self.console.print(Text(text, style="dim"), soft_wrap=True)

    def run(self, run: RunRef, ticket: str) -> None:
        """Names and the link to watch it by."""
        self._print(Text.assemble((f"run {run.run_id}", "bold"), f"  {ticket}, agent {run.agent_id}"))
        for name, link in (("page", run.page), ("Web UI", run.web_ui)):
            if link:
                self.console.print(Text(f"{name:<6}  {link}", style="cyan"), soft_wrap=True)

    def moment(self, moment: Moment) -> None:
        """Elapsed time, phase, what it is about."""
        style = "red" if moment.trouble else "bold cyan"
        what = "trouble" if moment.trouble else moment.phase
        line = Text.assemble((f"{moment.elapsed.total_seconds():7.1f} s  ", "dim"), (f"{what:<11}", style))
        self._print(line.append(f" {moment.detail}", style="red" if moment.trouble else "dim"))

    def line(self, attempt: int, line: Line) -> None:
        """As a person reads it; OpenCode's own log only when asked for. What is missing is always told."""
        del attempt  # the phases before it tell
        if line.stream not in {"stdout", GAP} and not self.verbose:
            return
        found = entry(line.data, line.stream)
        if found is not None:
            self._print(rendered(found))

    def runs(self, runs: Iterable[tuple[RunSummary, RunRef]]) -> None:
        """A table, newest first. In terminals that know links a run's id opens its page."""
        table = Table(box=None, pad_edge=False)
        for column in ("run", "phase", "started (UTC)", "took", "failure", "model", "agent"):
            table.add_column(column, overflow="ellipsis", no_wrap=column not in {"model", "agent"})
        linked = False
        for run, named in runs:
            took = "" if run.ended_at is None else _seconds(run.ended_at - run.started_at)
            started = f"{run.started_at:%Y-%m-%d %H:%M:%S}"
            cells = (run.key.run_id, run.phase, started, took, run.failure_code, run.model, run.key.agent_id)
            first, *others = (Text(printable(cell or "", 128)) for cell in cells)
            if named.page:
                first.stylize(Style(link=named.page))
                linked = True
            table.add_row(first, *others)
        self._print(table if table.row_count else Text("no runs yet: `agent-runs demo` makes one", style="dim"))
        if linked:
            self.note("a run's page: agent-runs show RUN")

    def steps(self, steps: Iterable[Step]) -> None:
        """A table in order."""
        table = Table(box=None, pad_edge=False)
        table.add_column("step")
        table.add_column("took", justify="right")
        for step in steps:
            took = "…" if step.ended is None else _seconds(step.ended - step.began)
            table.add_row(Text(step.name), Text(took, style="red" if step.failed else ""))
        self._print(table)

    def outcome(self, run_id: str, outcome: Outcome) -> None:
        """A table: what came of it, what it cost, whether the output is whole."""
        rows = {"result": _result(outcome.error_code, outcome.error_message)}
        if outcome.failure is not None:
            rows["next step"] = Text(printable(outcome.failure.next_step, 400))
        rows |= {
            "session": Text(outcome.session_id or "none"),
            "model": Text(outcome.model or ""),
            "tokens": Text(_tokens(outcome.usage)),
            "cost": Text("unknown" if outcome.cost_usd is None else f"${outcome.cost_usd:.6f}"),
            "output": Text(_receipt(outcome.receipt)),
        }
        if len(outcome.attempts) > 1:
            codes = [f"{one.attempt}: {one.failure_code or 'ok'}" for one in outcome.attempts]
            rows["attempts"] = Text(", ".join(codes))
        rows["summary"] = Text(printable(outcome.summary or "none", SUMMARY))
        rows["run"] = Text(run_id)
        self._print(_grid(rows))

    def cancelled(self, run_id: str, answer: Cancelled) -> None:
        """One line each: the result, the agent, the session."""
        stop = answer.stop
        ended = "stopped" if stop.agent_stopped else "not known to have stopped"
        agent = ended if stop.agent_started else "never started"
        kept = "kept, the next wake can resume it" if stop.session_preserved else "not kept"
        self._print(
            _grid(
                {
                    "run": Text(f"{run_id} {_ended(answer)}"),
                    "agent": Text(agent),
                    "session": Text(f"{answer.session_id}: {kept}" if answer.session_id else "none"),
                }
            )
        )

    def report(self, report: Report) -> None:
        """A table of what the fold found."""
        failure = report.failure
        rows = {"result": _result(failure.code if failure else None, failure.message if failure else None)}
        if failure is not None:
            rows["next step"] = Text(failure.next_step)
        rows |= {
            "session": Text(report.session_id or "none"),
            "tokens": Text(_tokens(report.usage)),
            "cost": Text("unknown" if report.cost_usd is None else f"${report.cost_usd:.6f}"),
            "steps": Text(f"{report.steps}, {report.tool_calls} tool calls, finish reason {report.finish_reason}"),
            "events": Text(f"{report.events}, {report.unparsed_lines} lines that are none"),
        }
        for name, told in (("warning", report.warnings), ("error", report.errors), ("tool error", report.tool_errors)):
            if told:
                rows[name] = Text("\n".join(printable(text, 400) for text in told))
        rows["summary"] = Text(printable(report.summary or "none", SUMMARY))
        self._print(_grid(rows))

    def facts(self, facts: dict[str, str]) -> None:
        """One per line, fit for a shell where the names are variables; never wrapped."""
        for name, value in facts.items():
            line = f"export {name}={shlex.quote(value)}" if name.isupper() else f"{name}  {value}"
            self.console.print(Text(line), soft_wrap=True)

    def _print(self, what: RenderableType) -> None:
        self.console.print(what, markup=False, highlight=False, emoji=False)


@dataclass
class Machines:
    """For programs: one JSON object per line, each with a `type`, flushed at once."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)

    def note(self, text: str) -> None:
        """`{"type": "note", "text": …}`."""
        self._write("note", text=text)

    def run(self, run: RunRef, ticket: str) -> None:
        """`{"type": "run", "runId": …, "ticket": "started" | "joined" | "found", …}`."""
        self._write("run", ticket=ticket, **_run(run))

    def moment(self, moment: Moment) -> None:
        """`{"type": "phase", "phase": …, "elapsed": seconds, …}`."""
        self._write(
            "trouble" if moment.trouble else "phase",
            phase=moment.phase,
            elapsed=round(moment.elapsed.total_seconds(), 3),
            at=moment.at.isoformat(),
            detail=moment.detail,
        )

    def line(self, attempt: int, line: Line) -> None:
        """`{"type": "line", …}` with the whole `event`, or `text` where the line is none."""
        event = found_object(line.data) if line.stream == "stdout" else None
        content = {"text": line.data.decode("utf-8", errors="replace")} if event is None else {"event": event}
        at = line.at.isoformat()
        self._write("line", attempt=attempt, sequence=line.sequence, stream=line.stream, at=at, **content)

    def runs(self, runs: Iterable[tuple[RunSummary, RunRef]]) -> None:
        """One `{"type": "run", …}` each."""
        for run, named in runs:
            self._write(
                "run",
                runId=run.key.run_id,
                agentId=run.key.agent_id,
                companyId=run.key.company_id,
                workflowId=run.workflow_id,
                workflowRunId=run.workflow_run_id,
                phase=run.phase,
                open=run.open,
                model=run.model,
                taskKey=run.task_key,
                failureCode=run.failure_code,
                startedAt=run.started_at.isoformat(),
                endedAt=run.ended_at.isoformat() if run.ended_at else None,
                events=run.events,
                webUi=named.web_ui,
                page=named.page,
            )

    def steps(self, steps: Iterable[Step]) -> None:
        """One `{"type": "step", …}` each."""
        for step in steps:
            took = (step.ended - step.began).total_seconds() if step.ended else None
            self._write("step", name=step.name, began=step.began.isoformat(), seconds=took, failed=step.failed)

    def outcome(self, run_id: str, outcome: Outcome) -> None:
        """`{"type": "outcome", "runId": …, "outcome": {…}}` in Paperclip's spelling."""
        self._write("outcome", runId=run_id, outcome=outcome.model_dump(mode="json"))

    def cancelled(self, run_id: str, answer: Cancelled) -> None:
        """`{"type": "cancelled", "runId": …, "answer": {…}}`."""
        self._write("cancelled", runId=run_id, answer=answer.model_dump(mode="json"))

    def report(self, report: Report) -> None:
        """`{"type": "report", "report": {…}}`."""
        self._write("report", report=report.model_dump(mode="json"))

    def facts(self, facts: dict[str, str]) -> None:
        """`{"type": "facts", …}`."""
        self._write("facts", **facts)

    def _write(self, kind: str, **content: Any) -> None:
        self.stream.write(json.dumps({"type": kind, **content}) + "\n")
        self.stream.flush()


def display(*, as_json: bool, verbose: bool = False) -> Display:
    """The display a command's options ask for."""
    return Machines() if as_json else People(verbose=verbose)


def _run(run: RunRef) -> dict[str, str | None]:
    return {
        "runId": run.run_id,
        "agentId": run.agent_id,
        "workflowId": run.workflow_id,
        "workflowRunId": run.workflow_run_id,
        "webUi": run.web_ui,
        "page": run.page,
    }


def _grid(rows: dict[str, Text]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, text)
    return Group(Text(""), table)


def _result(code: str | None, message: str | None) -> Text:
    if code is None:
        return Text("succeeded", style="bold green")
    return Text.assemble((code, "bold red"), f"  {printable(message or '', 1000)}")


def _ended(answer: Cancelled) -> str:
    if answer.outcome == "cancelled":
        return "is cancelled"
    return f"had ended before: {answer.failure_code or 'succeeded'}"


def _tokens(usage: Usage | None) -> str:
    if usage is None:
        return "unknown"
    reasoning = f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else ""
    return f"{usage.input_tokens:,} in, {usage.cached_input_tokens:,} cached, {usage.output_tokens:,} out{reasoning}"


def _receipt(receipt: OutputReceipt | None) -> str:
    if receipt is None:
        return "none"
    gaps = f", {len(receipt.gaps)} gaps" if receipt.gaps else ""
    return f"{receipt.lines:,} lines, {receipt.bytes:,} bytes, receipt {receipt.state}{gaps}"


def _seconds(took: timedelta) -> str:
    return f"{took.total_seconds():.1f} s"
