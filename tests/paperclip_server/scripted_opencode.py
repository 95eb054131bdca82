"""The `opencode` of scripted agents: writes numbered events in OpenCode's format at a set pace. Standard library only.

Started as `python scripted_opencode.py FOLDER run …`. FOLDER/plan.json is its plan (`scripted_agents.Plan`);
FOLDER/starts.ndjson gets a line for every start; with FOLDER/release it continues after the held line.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def option(arguments: list[str], name: str) -> str | None:
    return arguments[arguments.index(name) + 1] if name in arguments[:-1] else None


def write_event(session: str, kind: str, **part: Any) -> None:
    event = {"type": kind, "timestamp": int(time.time() * 1000), "sessionID": session, "part": {**part, "type": kind}}
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def write_error(session: str, status: int) -> None:
    data: dict[str, Any] = {"message": f"The provider answers {status}."}
    error = {"name": "APIError", "data": {**data, "statusCode": status, "isRetryable": False}}
    if status == 0:
        error = {"name": "UnknownError", "data": data}
    sys.stdout.write(json.dumps({"type": "error", "timestamp": 0, "sessionID": session, "error": error}) + "\n")
    sys.stdout.flush()


def report(method: str, path: str, body: Any) -> tuple[int, str]:
    """Sends a request to Paperclip as its skill teaches agents to: address and token from the environment."""
    request = urllib.request.Request(  # noqa: S310 - http, on this machine
        f"{os.environ['PAPERCLIP_API_URL']}/api{path}", json.dumps(body).encode(), method=method
    )
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", f"Bearer {os.environ.get('PAPERCLIP_API_KEY', '')}")
    request.add_header("X-Paperclip-Run-Id", os.environ["PAPERCLIP_RUN_ID"])
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError as error:  # Paperclip does not answer
        return 0, str(error)


def record(file: Path, names: list[str]) -> None:
    """Writes some of the environment, and the text of every configuration file that it names, into `file`."""
    values: dict[str, Any] = {name: os.environ.get(name) for name in names}
    named = [Path(value) for name, value in os.environ.items() if name.startswith("OPENCODE_CONFIG")]
    values["files"] = {str(path): path.read_text() for path in named if path.is_file()}
    values["inline"] = os.environ.get("OPENCODE_CONFIG_CONTENT")
    file.write_text(json.dumps(values))


def main(folder: Path, arguments: list[str]) -> int:
    plan = json.loads((folder / "plan.json").read_text())
    session = option(arguments, "--session") or plan["session"]
    prompt = sys.stdin.read()
    start = {
        "at": time.time(),
        "pid": os.getpid(),
        "run": os.environ.get("PAPERCLIP_RUN_ID"),
        "resumed": option(arguments, "--session"),
        "cwd": str(Path.cwd()),
        "prompt": prompt,
        "environment": sorted(os.environ),
    }
    with (folder / "starts.ndjson").open("a") as file:
        file.write(json.dumps(start) + "\n")
    if plan["records"]:
        record(folder / "recorded.json", plan["records"])
    if plan["unknown_session"] and option(arguments, "--session") == plan["unknown_session"]:
        sys.stderr.write(f"Error: Session not found: {plan['unknown_session']}\n")
        return 1
    if plan["refuses_start"]:
        sys.stderr.write("Error: Config file is not valid JSON\n")
        return 1
    write_event(session, "step_start", id="prt_0")
    for number in range(1, plan["lines"] + 1):
        write_event(session, "text", id=f"prt_{number}", text=f"line {number}")
        if number == plan["hold"]:
            while not (folder / "release").exists():
                time.sleep(0.05)
        time.sleep(plan["pace"])
    for name, value in plan["reports"].items():
        status, answer = report("PATCH", f"/issues/{os.environ['PAPERCLIP_TASK_ID']}", {name: value})
        write_event(
            session, "text", id=f"prt_{name}", text=f"reported {name}: {status}{'' if status == 200 else ' ' + answer}"
        )
    if plan["error"] is not None:
        write_error(session, plan["error"])
        return 1
    if plan["signal"] is not None:
        os.kill(os.getpid(), plan["signal"])
    tokens = {"input": 11, "output": 7, "reasoning": 0, "cache": {"read": 3, "write": 0}}
    write_event(session, "step_finish", id="prt_end", reason=plan["reason"], cost=0.0125, tokens=tokens)
    time.sleep(plan["exit_delay"])
    return int(plan["code"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
