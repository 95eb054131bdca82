"""Imports a module while other parts still come up, then runs its `main`: `python -m local.warm MODULE`.

It goes on when it reads `go` from standard input, and ends when its parent is gone instead.
"""

import sys
from importlib import import_module

GO = b"go\n"


def main(module: str) -> None:
    """Import, wait for the word, run."""
    run = import_module(module).main
    if sys.stdin.buffer.readline() == GO:
        run()


if __name__ == "__main__":
    main(sys.argv[1])
