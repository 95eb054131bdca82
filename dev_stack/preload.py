"""Imports a module while other parts still come up, then runs its `main`: `python -m dev_stack.preload MODULE`.

It continues when it reads `go` from standard input, and ends when its parent has closed that instead.
"""

import sys
from importlib import import_module

GO = b"go\n"


def main(module: str) -> None:
    run = import_module(module).main
    if sys.stdin.buffer.readline() == GO:
        run()


if __name__ == "__main__":
    main(sys.argv[1])
