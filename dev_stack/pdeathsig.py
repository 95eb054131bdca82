"""Starts a command that must not outlive its parent: `pdeathsig.py PARENT_PID COMMAND…`. Standard library only.

On Linux the kernel sends SIGTERM to the command when the parent dies, however it dies; elsewhere the command is
simply started. Source: prctl(2), PR_SET_PDEATHSIG, which survives execve.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the signal was set
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - the caller's own command, no shell


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
