"""Runs a command as if on a machine of its own: `python -m tests.support.own_machine PLACE=FOLDER... -- COMMAND...`.

All ports are free, each FOLDER is at its PLACE, and nothing outlives the command. Programs see an ordinary user, also
when the tests run as root, because PostgreSQL refuses root; the files of root are that user's.
"""

import fcntl
import os
import pwd
import signal
import socket
import struct
import sys
from pathlib import Path

from dev_stack.cluster import supervisor

CLONE_NEWNET = 0x40000000
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1
NOBODY = "nobody"


def enter(places: dict[str, str]) -> None:
    """In namespaces of user, network, mounts and, for its children, of process ids."""
    user, group = os.geteuid(), os.getegid()
    seen = pwd.getpwnam(NOBODY) if user == 0 else pwd.getpwuid(user)
    kinds = supervisor.CLONE_NEWUSER | CLONE_NEWNET | supervisor.CLONE_NEWNS | supervisor.CLONE_NEWPID
    supervisor.checked("unshare", supervisor.libc.unshare(kinds))
    maps = {"setgroups": "deny", "uid_map": f"{seen.pw_uid} {user} 1", "gid_map": f"{seen.pw_gid} {group} 1"}
    for name, text in maps.items():
        Path(f"/proc/self/{name}").write_text(text)
    with socket.socket() as probe:
        request = struct.pack("16sH", b"lo", 0)
        flags = struct.unpack("16sH", fcntl.ioctl(probe, GET_FLAGS, request))[1]
        fcntl.ioctl(probe, SET_FLAGS, struct.pack("16sH", b"lo", flags | UP))
    for place, folder in places.items():
        flags = supervisor.MS_BIND | supervisor.MS_REC
        supervisor.checked("mount", supervisor.libc.mount(folder.encode(), place.encode(), None, flags, None))


def main(arguments: list[str]) -> int:
    """The exit code of the command."""
    split = arguments.index("--")
    enter(dict(each.split("=", 1) for each in arguments[:split]))
    first = os.fork()  # with process id 1: its end ends all others
    if first == 0:
        supervisor.libc.prctl(supervisor.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.execvp(arguments[split + 1], arguments[split + 1 :])  # noqa: S606 - without a shell
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
