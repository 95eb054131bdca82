"""An agent that plays a recorded conversation over its standard input and output.

    python recorded_agent.py CAPTURE [SCRIPT]

It waits for each message that the agent got, by its method, and writes what the agent answered. SCRIPT, in JSON,
changes that: `end` is the exit code with which it ends after so many lines of output (`lines`), `hang` the method after
which it says nothing any more. It answers the method `hold` once a file `go` exists. After the first prompt it writes
the bytes of the file `raw` instead.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(capture: str, script: str = "{}") -> None:
    """Play it."""
    changes = json.loads(script)
    numbers, written = {}, 0
    conversation = [json.loads(line) for line in Path(capture).read_text().splitlines()]
    for line in conversation:
        content = line["message"]
        if line["to"] == "agent":
            got = _await(content)
            if "id" in content and "method" in content:
                numbers[content["id"]] = got["id"]
            if "hang" in changes and changes["hang"] == got.get("method"):
                _await({"method": "never"})
            if "hold" in changes and changes["hold"] == got.get("method"):
                while not Path("go").exists():
                    time.sleep(0.02)
            if "raw" in changes and got.get("method") == "session/prompt":
                _write(Path(changes["raw"]).read_bytes().replace(b"NUMBER", str(got["id"]).encode()))
                _await({"method": "never"})
            continue
        if "method" not in content:
            content = {**content, "id": numbers[content["id"]]}
        _write(json.dumps(content).encode() + b"\n")
        written += 1
        if written == changes.get("lines"):
            os._exit(changes["end"])
    _await({"method": "never"})


def _await(wanted: dict[str, Any]) -> dict[str, Any]:
    """The next message of this method, or the next answer; ends the agent at the end of its input."""
    while line := sys.stdin.buffer.readline():
        try:
            got: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        with Path("received").open("ab") as log:
            log.write(line)
        if got.get("method") == wanted.get("method"):
            return got
    os._exit(0)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
