"""Lines as OpenCode 1.18.33 writes them, for tests that need a run of a certain shape."""

import itertools
import json
from typing import Any

_IDS = itertools.count(1)


def line(kind: str, **part: Any) -> bytes:
    """One event of the session `ses_1`; its part has an id of its own."""
    part = {"id": f"prt_{next(_IDS)}", "messageID": "msg_1", **part}
    return json.dumps({"type": kind, "timestamp": 1, "sessionID": "ses_1", "part": part}).encode()


def step_start() -> bytes:
    return line("step_start", type="step-start")


def text(words: str = "done") -> bytes:
    return line("text", type="text", text=words, time={"start": 1, "end": 2})


def tool_use(tool: str = "bash", status: str = "completed", **arguments: Any) -> bytes:
    """The end of a tool call."""
    state = {"status": status, "input": arguments, "output": "", "title": tool, "time": {"start": 1, "end": 2}}
    return line("tool_use", type="tool", tool=tool, callID=f"call_{next(_IDS)}", state=state)


def step_finish(reason: str = "tool-calls", *, tokens: int = 100, cached: int = 0, cost: float | None = 0) -> bytes:
    """The end of a step; half of its uncached tokens are output."""
    shares = {
        "input": tokens - tokens // 2,
        "output": tokens // 2,
        "reasoning": 0,
        "cache": {"read": cached, "write": 0},
    }
    costs = {} if cost is None else {"cost": cost}
    return line("step_finish", type="step-finish", reason=reason, tokens=shares, **costs)
