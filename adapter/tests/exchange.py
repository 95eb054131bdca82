"""Exchanges two paths atomically, again and again, until its standard input ends: what an agent's process can do.

python exchange.py ONE OTHER
"""

import ctypes
import os
import sys
import threading

AT_FDCWD = -100
RENAME_EXCHANGE = 2


def main(one: str, other: str) -> None:
    """Prints a line once the first exchange has worked."""
    over = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=await_end, daemon=True).start()
    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    paths = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    began = False
    while not over.is_set():
        if renameat2(*paths) != 0:
            raise OSError(ctypes.get_errno(), f"cannot exchange {one} and {other}")
        if not began:
            print("began", flush=True)
            began = True


if __name__ == "__main__":
    main(*sys.argv[1:])
