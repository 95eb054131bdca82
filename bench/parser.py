"""Lines per second of the whole fold, against a bare decoder with the same accounting, in one run.

Run as `python -m bench.parser`. All get whole lines, as the log reader hands them over. The baselines decode each with
`json` or `orjson` and keep the same sums, answer, errors and recent ids, but trust every line: no odd shapes, no cut
lines, no diagnostics, no bounds. Best of five rounds, taken in turns, so that a busy machine hurts all alike.
"""

import json
import os
import platform
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from importlib.metadata import version
from typing import Any

import orjson

from agent_runs.contracts.outcome import ContainerEnd, Usage
from agent_runs.transcript.fold import Fold
from agent_runs.transcript.lines import Line
from tests.support.lines import file_line

STEPS = 5000
ROUNDS = 5


def transcript(steps: int) -> list[Line]:
    """`steps` steps of four events (start, text, tool, finish), 1.1 kB each on average."""
    events = (event for step in range(steps) for event in step_of(step, last=step == steps - 1))
    return [file_line(line_of(event)[:-1]) for event in events]


def line_of(event: dict[str, Any]) -> bytes:
    """An event as OpenCode prints it."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def step_of(step: int, *, last: bool) -> list[dict[str, Any]]:
    """The four events of one step, as OpenCode 1.18 shapes them."""
    session, message = "ses_e001b6f10ffeowfTKMtc0DNYmh", f"msg_1ffe4acd{step:04x}gxCcpcGYUJf3Zt"

    def event(kind: str, number: int, **part: Any) -> dict[str, Any]:
        identity = {"id": f"prt_{step:08x}{number:04x}yWlSpVz4ulBqvY", "messageID": message, "sessionID": session}
        return {"type": kind, "timestamp": 1795294546888 + step, "sessionID": session, "part": {**identity, **part}}

    clock = {"start": 1795294546821, "end": 1795294548564}
    output = f"{step}: " + "The quick brown fox jumps over the lazy dog. " * 21
    state = {
        "status": "completed",
        "input": {"command": f"make step-{step}", "description": "build the next step"},
        "output": output,
        "metadata": {"output": output, "exit": 0, "truncated": False},
        "title": f"make step-{step}",
        "time": clock,
    }
    tokens = {"total": 12_350, "input": 3000, "output": 222, "reasoning": 128, "cache": {"write": 0, "read": 9000}}
    snapshot = "9f2aa68d4bcec8147e70f1c2d0d78ffbdfd7c7df"
    return [
        event("step_start", 0, snapshot=snapshot, type="step-start"),
        event("text", 1, type="text", text="I will run the next step and read what it says. " * 25, time=clock),
        event("tool_use", 2, type="tool", tool="bash", callID=f"call_{step}", state=state),
        event(
            "step_finish",
            3,
            type="step-finish",
            reason="stop" if last else "tool-calls",
            snapshot=snapshot,
            tokens=tokens,
            cost=0.01695,
        ),
    ]


class Plain:
    """The sums of the fold without its checks."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self.session: str | None = None
        self.steps = self.tools = self.events = 0
        self.usage = [0, 0, 0, 0, 0]
        self.largest = 0
        self.cost = Decimal(0)
        self.reason: str | None = None
        self.texts: OrderedDict[str, list[str]] = OrderedDict()
        self.answer = ""
        self.last_output = ""
        self.errors: list[str] = []
        self.seen: OrderedDict[str, None] = OrderedDict()

    def line(self, raw: bytes) -> None:
        event = self._decode(raw)
        self.events += 1
        kind, part = event["type"], event.get("part", {})
        self.session = self.session or event["sessionID"]
        if kind == "text":
            self.texts.setdefault(part["messageID"], []).append(part["text"].strip())
            self.last_output = part["text"].strip().splitlines()[-1][:200]
        elif kind == "tool_use" and not self._repeated(part["callID"]):
            self.tools += 1
            self.last_output = f"{part['tool']}: {part['state']['title']}"
        elif kind == "step_finish" and not self._repeated(part["id"]):
            self._finish(part)
        elif kind == "error":
            self.errors.append(str(event["error"]))

    def _finish(self, part: dict[str, Any]) -> None:
        self.steps += 1
        self.reason = part["reason"]
        tokens, cache = part["tokens"], part["tokens"]["cache"]
        step = (tokens["input"], tokens["output"], cache["read"], cache["write"], tokens["reasoning"])
        self.usage = [total + share for total, share in zip(self.usage, step, strict=True)]
        self.largest = max(self.largest, step[0] + step[2] + step[3])
        self.cost += Decimal(repr(part["cost"]))
        self.answer = "\n\n".join(self.texts.pop(part["messageID"], []))

    def _repeated(self, identifier: str) -> bool:
        if identifier in self.seen:
            return True
        self.seen[identifier] = None
        if len(self.seen) > 4096:
            self.seen.popitem(last=False)
        return False


def ours(lines: Sequence[Line]) -> tuple[Usage, Decimal | None, str]:
    fold = Fold()
    for line in lines:
        fold.add(line)
    report = fold.report(ContainerEnd(exit_code=0))
    return report.usage, report.cost_usd, report.summary


def baseline(decode: Callable[[bytes], Any]) -> Callable[[Sequence[Line]], tuple[Usage, Decimal | None, str]]:
    def run(lines: Sequence[Line]) -> tuple[Usage, Decimal | None, str]:
        plain = Plain(decode)
        for line in lines:
            plain.line(line.data)
        fresh, written, read, write, reasoning = plain.usage
        usage = Usage(
            input_tokens=fresh,
            output_tokens=written + reasoning,
            cached_input_tokens=read,
            cache_write_tokens=write,
            reasoning_tokens=reasoning,
        )
        return usage, plain.cost, plain.answer

    return run


def measure(steps: int = STEPS, rounds: int = ROUNDS) -> str:
    """A Markdown table; raises when the contenders do not agree on the result."""
    output = transcript(steps)
    lines, size = len(output), sum(len(line.data) for line in output)
    contenders = {
        "this project's fold (msgspec)": ours,
        "`orjson.loads` per line": baseline(orjson.loads),
        "`json.loads` per line": baseline(json.loads),
    }
    answers = {name: run(output) for name, run in contenders.items()}
    if len(set(map(repr, answers.values()))) != 1:
        raise RuntimeError(f"the contenders disagree: {answers}")
    best = _best(contenders, output, rounds)
    fastest = best[next(iter(contenders))]
    rows = [
        f"| {name} | {lines / seconds:,.0f} | {size / seconds / 1e6:,.0f} | {seconds / lines * 1e6:.2f} "
        f"| {seconds / fastest:.2f} |"
        for name, seconds in best.items()
    ]
    tools = f"Python {platform.python_version()}, msgspec {version('msgspec')}, orjson {version('orjson')}"
    head = [
        f"{lines:,} lines of {size / lines:,.0f} bytes, best of {rounds}; {tools}, {os.cpu_count()} cores.",
        "",
        "| with full accounting | lines/s | MB/s | µs per line | time, ours = 1 |",
        "|---|---:|---:|---:|---:|",
    ]
    return "\n".join([*head, *rows])


def _best(
    contenders: Mapping[str, Callable[[Sequence[Line]], object]], output: Sequence[Line], rounds: int
) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(_seconds(run, output))
    return {name: min(taken) for name, taken in times.items()}


def _seconds(run: Callable[[Sequence[Line]], object], output: Sequence[Line]) -> float:
    start = time.perf_counter()
    run(output)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(measure())
