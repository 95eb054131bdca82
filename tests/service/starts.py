"""Starts workers for tests: imports the program once, then each start is a process of its own, forked from this one.

A start is one JSON line on standard input (its environment), its end one JSON line on standard output. Threads of the
Temporal SDK begin with a client, so there are none yet to be lost by the fork.
"""

import json
import os
import sys
import tempfile
from typing import Any

import worker


def start(environment: dict[str, str]) -> dict[str, Any]:
    """Run `main` to its end in a child, as `python -m worker` does with this environment."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if (child := os.fork()) == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.environ.clear()
            os.environ.update(environment)
            worker.main()
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = [file.seek(0) or file.read().decode() for file in (out, err)]
    return {"code": code, "log": texts[0], "output": texts[1]}


if __name__ == "__main__":
    for line in sys.stdin:
        answer = json.dumps(start(json.loads(line)))
        print(answer, flush=True)
