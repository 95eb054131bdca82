"""The columns of the table, each judged from what can be found after a row: objects, notes, files, histories.

A verdict is a short text: `yes`, `gap` when something is lost and the outcome names it, or `no` with what was found.
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

from contracts.outcome import AttemptReport, Outcome
from local.cluster.kinds import JOBS, PODS, SECRETS
from tests.faults.scene import Scene, decoded, processes_of
from tests.runs.ground import attempt_key

PATIENCE: Final = timedelta(seconds=20)
"""For the cluster to collect what a deleted Job owned."""
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
    """What a row promises beside the columns that promise the same in every row.

    Attributes:
        code: the outcome's name; None for a success.
        attempts: the names of all attempts, in order.
        bound: a run that takes longer hangs.
    """

    code: str | None
    attempts: tuple[str | None, ...]
    bound: timedelta


@dataclass
class Verdict:
    """One row of the table."""

    row: str
    did: str
    outcome: str
    attempts: int
    seconds: float
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def broken(self) -> dict[str, str]:
        return {name: said for name, said in self.columns.items() if said.startswith("no")}

    def keep(self) -> None:
        """For `python -m tests.faults.table`."""
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.row}.json").write_text(json.dumps(asdict(self), indent=1))


async def judged(scene: Scene, did: str, expected: Expected, outcome: Outcome, took: timedelta) -> Verdict:
    """All columns of a row that has come to its end."""
    seconds = took.total_seconds()
    verdict = Verdict(scene.name, did, outcome.error_code or "succeeded", len(outcome.attempts), round(seconds, 1))
    columns: dict[str, Callable[[], Awaitable[str]]] = {
        "one_job": lambda: one_job(scene, outcome),
        "lines": lambda: lines(scene, outcome),
        "name": lambda: named(outcome, expected),
        "nothing_left": lambda: nothing_left(scene),
        "in_time": lambda: in_time(took, expected.bound),
        "secrets": lambda: secrets(scene),
    }
    assert columns.keys() == COLUMNS.keys()
    for name, column in columns.items():
        verdict.columns[name] = await column()
    return verdict


async def one_job(scene: Scene, outcome: Outcome) -> str:
    """Each attempt had one Job at the most, under its own name, and its agent began once at the most."""
    created = Counter(
        name for name, _ in {(body["metadata"]["name"], body["metadata"]["uid"]) for body in scene.states(JOBS)}
    )
    starts = Counter(scene.note("starts"))
    wanted = {attempt.job_name for attempt in outcome.attempts}
    if created.keys() - wanted:
        return f"no: Jobs of no attempt: {sorted(created.keys() - wanted)}"
    twice = [name for name, count in created.items() if count > 1]
    if twice:
        return f"no: created again: {twice}"
    if starts.pop("twice", 0):
        return "no: two agents at a time"
    again = [attempt for attempt, count in starts.items() if count > 1]
    if again:
        return f"no: the agent of attempt {again} began again"
    if sum(starts.values()) > sum(created.values()):
        return f"no: {sum(starts.values())} agents of {sum(created.values())} Jobs"
    return f"yes: {sum(created.values())}"


async def lines(scene: Scene, outcome: Outcome) -> str:
    """Each line that the agent noted is stored once, in order; what is missing is named by its attempt's receipt."""
    said = [await lines_of(scene, attempt) for attempt in outcome.attempts]
    worst = [text for text in said if text.startswith("no")] or [text for text in said if text.startswith("gap")]
    return worst[0] if worst else said[-1]


async def lines_of(scene: Scene, attempt: AttemptReport) -> str:
    key = attempt_key(scene.raw, attempt.attempt)
    noted = scene.note(f"said-{key.attempt}")
    stored = [
        line.data.decode() for line in await scene.system.lines(scene.raw, key.attempt) if line.stream == "stdout"
    ]
    kept = [" ".join(line.split()[:2]) for line in stored if line.startswith("line ")]
    numbers = [int(line.split()[1]) for line in kept]
    if numbers != list(range(len(numbers))):
        return f"no: attempt {key.attempt} has {len(set(numbers))} different lines of {len(numbers)}, or out of order"
    receipt = attempt.receipt
    missing = len(noted) - len(kept)
    if missing < -1:  # one may be written and not yet noted when the agent is killed
        return f"no: {-missing} lines that the agent never wrote"
    if receipt.state != "verified" and attempt.failure_code is None:
        return f"no: a success whose receipt is {receipt.state}"
    if missing <= 0:
        return f"yes: {len(kept)}" if kept else "yes: nothing was written"
    if receipt.gaps or receipt.state == "unverified":
        return f"gap: {missing} of {len(noted)} lost with the pod; receipt `{receipt.state}`"
    return f"no: {missing} of {len(noted)} lost; receipt {receipt.state}"


async def named(outcome: Outcome, expected: Expected) -> str:
    """The outcome and each attempt have the name of what happened, with a message and a next step."""
    attempts = tuple(attempt.failure_code for attempt in outcome.attempts)
    if (outcome.error_code, attempts) != (expected.code, expected.attempts):
        return f"no: {outcome.error_code} of {attempts}, {outcome.error_message}"
    if expected.code is None:
        return "yes"
    told = outcome.failure is not None and outcome.failure.next_step and outcome.error_message
    return "yes" if told else "no: nothing says what to do next"


async def nothing_left(scene: Scene) -> str:
    """No Job, pod, Secret or process of the agent."""
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            for kind in (JOBS, PODS, SECRETS):
                await scene.vanished(kind)
    except TimeoutError:
        left = {kind.plural: names for kind in (JOBS, PODS, SECRETS) if (names := scene.left(kind))}
        return f"no: {left}"
    running = processes_of(scene.agent_id)
    return f"no: processes {running}" if running else "yes"


async def in_time(took: timedelta, bound: timedelta) -> str:
    return "yes" if took <= bound else f"no: {took.total_seconds():.0f} s"


async def secrets(scene: Scene) -> str:
    """What is secret is in the Secrets of the cluster, so it was planted, and nowhere else."""
    made = [body for body in scene.states(SECRETS) if body.get("data")]
    held = " ".join(map(decoded, made))
    with_job = bool(scene.states(JOBS))
    unplanted = [where for where, canary in scene.canaries.items() if with_job and canary not in held]
    if unplanted:
        return f"no: never planted: {unplanted}"
    found = [
        f"{where} in {place}"
        for place, content in [text async for text in places(scene)]
        for where, canary in scene.canaries.items()
        if any(form in content for form in forms(canary))
    ]
    return f"no: {found}" if found else "yes"


async def places(scene: Scene) -> AsyncIterator[tuple[str, bytes]]:
    """Everything that somebody may read: name and content."""
    for ticket in {ticket.workflow_run_id: ticket for ticket in scene.tickets}.values():
        history = await ticket.handle(scene.system.temporal).fetch_history()
        yield "history", b"".join(event.SerializeToString() for event in history.events)
    yield "transcript store", stored_bytes(scene.folder / "transcripts.db")
    for log in scene.folder.glob("*.log"):
        yield log.name, log.read_bytes()
    for kind in (JOBS, PODS):
        yield kind.plural, json.dumps(scene.states(kind)).encode()


def stored_bytes(file: Path) -> bytes:
    """All of a SQLite store, its journal included."""
    with sqlite3.connect(file) as store:
        dump = "\n".join(store.iterdump()).encode()
    return dump + b"".join(part.read_bytes() for part in file.parent.glob(f"{file.name}*"))


def forms(canary: str) -> Iterable[bytes]:
    """As it is, and inside base64 at each of the three offsets."""
    raw = canary.encode()
    yield raw
    for offset in range(3):
        yield base64.b64encode(b"\0" * offset + raw)[(4 if offset else 0) : -4]
