"""Records the captures of OpenCode 2: `python -m tests.opencode.capture [CASE…]`.

Needed once its newest version changes. A capture is a turn of the real server with the scripted model: what the model
sent, the session's messages behind the prompt as the server gives them afterwards, and the lines that the driver wrote.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from dev_stack.opencode_binary import VERSION_2
from dev_stack.scripted_model import Usage
from tests.pod.driving import Played, Served, bash, script, serving

FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "opencode-2"
COUNTED: Final = {"usage": {"prompt": 1000, "completion": 50, "cached": 400, "reasoning": 10}}
DONE: Final = {"text": "Done.", **COUNTED}


def tool(name: str, **args: Any) -> dict[str, Any]:
    return {"tools": [{"name": name, "args": args}]}


def subagent(*steps: Mapping[str, Any]) -> dict[str, Any]:
    return tool("subagent", description="a part", prompt=script(*map(dict, steps)), agent="general")


CASES: Final[dict[str, tuple[Mapping[str, Any], ...]]] = {
    "text": (DONE,),
    "text-empty": ({"text": "", **COUNTED},),
    "text-long": ({"text": "word " * 2000, **COUNTED},),
    "text-odd": ({"text": "\u2028 \x1b[31mred\x1b[0m \ud83e\udd9a \u0000end", **COUNTED},),
    "reasoning": ({"reasoning": "I think.", **DONE},),
    "usage-none": ({"text": "Done.", "usage": {"prompt": 0, "completion": 0}},),
    "usage-large": ({"text": "Done.", "usage": {"prompt": 900_000, "completion": 30_000, "cached": 899_000}},),
    "tool-shell": ({**bash("echo heron"), **COUNTED}, DONE),
    "tool-shell-fails": ({**bash("echo lost >&2; exit 3"), **COUNTED}, DONE),
    "tool-shell-prints-much": ({**bash("seq 1 30000"), **COUNTED}, DONE),
    "tool-shell-in-background": ({**bash("sleep 1 & echo begun"), **COUNTED}, DONE),
    "tool-write": ({**tool("write", filePath="written.txt", content="a line\n"), **COUNTED}, DONE),
    "tool-read-missing": ({**tool("read", filePath="missing.txt"), **COUNTED}, DONE),
    "tool-unknown": ({**tool("juggle", balls=3), **COUNTED}, DONE),
    "tool-wrong-input": ({**tool("write", content=7), **COUNTED}, DONE),
    "tools-at-once": ({"tools": [*bash("echo one")["tools"], *bash("echo two")["tools"]], **COUNTED}, DONE),
    "steps-four": (*({"text": f"Step {number}.", **bash(f"echo {number}"), **COUNTED} for number in range(3)), DONE),
    "subagent": ({**subagent({**bash("echo part"), **COUNTED}, {"text": "Part.", **COUNTED}), **COUNTED}, DONE),
    "question": ({**tool("question", questions=[]), **COUNTED}, DONE),
    "error-400": ({"status": 400},),
    "error-401": ({"status": 401},),
    "error-403": ({"status": 403},),
    "error-404": ({"status": 404},),
    "error-after-a-tool": ({**bash("echo heron"), **COUNTED}, {"status": 401}),
}


def capture(served: Served, name: str, turn: Played, messages: list[dict[str, Any]], prompt: str) -> dict[str, Any]:
    sent = [each for each in served.model.sent if each.model != "aux/title"]
    answered = sum_of([each.usage for each in sent if each.status == 200 and each.usage])
    folder = json.dumps(str(served.folder))[1:-1]
    text = json.dumps({"messages": messages, "lines": turn.events}, ensure_ascii=False)
    return {
        "case": name,
        "version": VERSION_2,
        "sent": {"answers": [each.status for each in sent], "usage": asdict(answered)},
        "exit": turn.end["code"],
        "session": turn.end["session"],
        "prompt": prompt,
        **json.loads(text.replace(folder, "/mnt/runs")),
    }


def sum_of(used: list[Usage]) -> Usage:
    total = Usage(0, 0)
    for each in used:
        total = total.plus(each)
    return total


async def record(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with serving(Path(folder), VERSION_2) as served:
            for name in names:
                served.model.sent.clear()
                turn = await served.play(script(*map(dict, CASES[name])), model="fake/scenario/script")
                page = await served.call("GET", f"/api/session/{turn.end['session']}/message?limit=100&order=asc")
                (prompt,) = [each["id"] for each in page["data"] if each["type"] == "user"]
                found = capture(served, name, turn, page["data"], prompt)
                (FIXTURES / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
                print(name, turn.report.failure and turn.report.failure.code, turn.report.usage)


if __name__ == "__main__":
    FIXTURES.mkdir(exist_ok=True)
    asyncio.run(record(sys.argv[1:] or [*CASES]))
