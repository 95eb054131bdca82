"""The columns of the table, each checked by what a row leaves: objects, the agent's notes, files, histories.

The result of a column is a short text: `yes`, `gap` when something is lost and the outcome names it, or `no` with the
reason.
"""

import asyncio
import base64
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from agent_runs.contracts.outcome import AttemptReport, Outcome
from dev_stack.cluster.kinds import JOBS, PODS, SECRETS
from tests.faults.environment import Environment, decoded, processes_of

CLEANUP_TIMEOUT: Final = timedelta(seconds=90)
"""For the cluster to delete what a deleted Job owned."""
COLUMNS: Final = {
    "one_job": "one Job per attempt",
    "lines": "no line lost or doubled",
    "name": "right name",
    "nothing_left": "nothing left over",
    "in_time": "ends in bounded time",
    "secrets": "secrets absent",
}
RESULTS: Final = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Expected:
    """What a row promises in addition to the columns, which promise the same in every row.

    Attributes:
        code: the outcome's name; None for a success.
        attempts: the names of all attempts, in order.
        bound: a run that takes longer hangs.
    """

    code: str | None
    attempts: tuple[str | None, ...]
    bound: timedelta


@dataclass
class RowResult:
    row: str
    action: str
    outcome: str
    attempts: int
    seconds: float
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> dict[str, str]:
        return {name: text for name, text in self.columns.items() if text.startswith("no")}

    def save(self) -> None:
        """Write the result for `python -m tests.faults.table`."""
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.row}.json").write_text(json.dumps(asdict(self), indent=1))


async def check_row(env: Environment, action: str, expected: Expected, outcome: Outcome, took: timedelta) -> RowResult:
    """All columns of a row that has ended."""
    seconds = took.total_seconds()
    result = RowResult(env.name, action, outcome.error_code or "succeeded", len(outcome.attempts), round(seconds, 1))
    columns: dict[str, Callable[[], Awaitable[str]]] = {
        "one_job": lambda: one_job(env, outcome),
        "lines": lambda: lines(env, outcome),
        "name": lambda: right_name(outcome, expected),
        "nothing_left": lambda: nothing_left(env),
        "in_time": lambda: in_time(took, expected.bound),
        "secrets": lambda: secrets(env),
    }
    assert columns.keys() == COLUMNS.keys()
    for name, column in columns.items():
        result.columns[name] = await column()
    return result


async def one_job(env: Environment, outcome: Outcome) -> str:
    """Each attempt had at most one Job, under its own name, and its agent started at most once."""
    created = Counter(
        name for name, _ in {(body["metadata"]["name"], body["metadata"]["uid"]) for body in env.states(JOBS)}
    )
    starts = Counter(env.note("starts"))
    expected = {attempt.job_name for attempt in outcome.attempts} | env.earlier_jobs
    if created.keys() - expected:
        return f"no: Jobs of no attempt: {sorted(created.keys() - expected)}"
    twice = [name for name, count in created.items() if count > 1]
    if twice:
        return f"no: created twice: {twice}"
    if starts.pop("twice", 0):
        return "no: two agents at a time"
    restarted = [attempt for attempt, count in starts.items() if count > 1]
    if restarted:
        return f"no: the agent of attempt {restarted} started twice"
    if sum(starts.values()) > sum(created.values()):
        return f"no: {sum(starts.values())} agents of {sum(created.values())} Jobs"
    return f"yes: {sum(created.values())}"


async def lines(env: Environment, outcome: Outcome) -> str:
    """Each line that the agent noted is stored once, in order; what is missing is named by its attempt's receipt."""
    texts = [await lines_of(env, attempt) for attempt in outcome.attempts]
    worst = [text for text in texts if text.startswith("no")] or [text for text in texts if text.startswith("gap")]
    return worst[0] if worst else texts[-1] if texts else "yes: 0"


async def lines_of(env: Environment, attempt: AttemptReport) -> str:
    noted, stored = env.written(attempt), await env.stored(attempt.attempt)
    numbers = [int(line.split()[1]) for line in stored]
    if numbers != list(range(len(numbers))):
        return f"no: attempt {attempt.attempt} has the lines {numbers}"
    receipt = attempt.receipt
    missing = len(noted) - len(stored)
    if missing < -1:  # one may be written and not yet noted when the agent is killed
        return f"no: {-missing} lines that the agent never wrote"
    if receipt.state != "verified" and attempt.failure_code is None:
        return f"no: a success whose receipt is {receipt.state}"
    if missing <= 0:
        return f"yes: {len(stored)}" if stored else "yes: nothing was written"
    if receipt.gaps or receipt.state == "unverified":
        return f"gap: {missing} of {len(noted)} lost with the pod; receipt `{receipt.state}`"
    return f"no: {missing} of {len(noted)} lost; receipt {receipt.state}"


async def right_name(outcome: Outcome, expected: Expected) -> str:
    """The outcome and each attempt have the name of what happened, with a message and a next step."""
    attempts = tuple(attempt.failure_code for attempt in outcome.attempts)
    if (outcome.error_code, attempts) != (expected.code, expected.attempts):
        return f"no: {outcome.error_code} of {attempts}, {outcome.error_message}"
    if expected.code is None:
        return "yes"
    complete = outcome.failure is not None and outcome.failure.next_step and outcome.error_message
    return "yes" if complete else "no: the message or the next step is missing"


async def nothing_left(env: Environment) -> str:
    """No Job, pod, Secret or process of the agent."""
    await env.end_rest()
    try:
        async with asyncio.timeout(CLEANUP_TIMEOUT.total_seconds()):
            for kind in (JOBS, PODS, SECRETS):
                await env.until_none_left(kind)
    except TimeoutError:
        left = {kind.plural: names for kind in (JOBS, PODS, SECRETS) if (names := env.left(kind))}
        return f"no: {left}"
    running = processes_of(env.agent_id)
    return f"no: processes {running}" if running else "yes"


async def in_time(took: timedelta, bound: timedelta) -> str:
    return "yes" if took <= bound else f"no: {took.total_seconds():.0f} s"


async def secrets(env: Environment) -> str:
    """Each canary is in a Secret of the cluster, so it was planted, and nowhere else."""
    contents = " ".join(decoded(body) for body in env.states(SECRETS) if body.get("data"))
    with_job = bool(env.states(JOBS))
    expected = env.canaries.keys() - env.not_taken if with_job else ()
    unplanted = [where for where in expected if env.canaries[where] not in contents]
    if unplanted:
        return f"no: never planted: {unplanted}"
    leaks = [
        f"{where} in {place}"
        for place, content in [text async for text in places(env)]
        for where, canary in env.canaries.items()
        if any(form in content for form in encodings(canary))
    ]
    return f"no: {leaks}" if leaks else "yes"


async def places(env: Environment) -> AsyncIterator[tuple[str, bytes]]:
    """Name and content of everything that people may read."""
    for ticket in {ticket.workflow_run_id: ticket for ticket in env.tickets}.values():
        history = await ticket.handle(env.system.temporal).fetch_history()
        yield "history", b"".join(event.SerializeToString() for event in history.events)
    yield "transcript store", stored_bytes(env.folder / "transcripts.db")
    for log in env.folder.glob("*.log"):
        yield log.name, log.read_bytes()
    for kind in (JOBS, PODS):
        yield kind.plural, json.dumps(env.states(kind)).encode()


def stored_bytes(file: Path) -> bytes:
    """The whole SQLite store, its journal included."""
    with sqlite3.connect(file) as store:
        dump = "\n".join(store.iterdump()).encode()
    return dump + b"".join(part.read_bytes() for part in file.parent.glob(f"{file.name}*"))


def encodings(canary: str) -> Iterable[bytes]:
    """The canary as it is, and inside base64 at each of the three offsets."""
    raw = canary.encode()
    yield raw
    for offset in range(3):
        yield base64.b64encode(b"\0" * offset + raw)[(4 if offset else 0) : -4]
