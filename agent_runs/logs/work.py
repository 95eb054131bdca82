"""What the processes of an agent do: whether a tool works although OpenCode writes nothing. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

BUSY_SHARE: Final = 0.01
"""Of a core: what an idle server process that OpenCode has started does not use."""
_CENTISECOND: Final = timedelta(milliseconds=10)


@dataclass(frozen=True)
class ProcessWork:
    """When a process began, counted from OpenCode's begin; the CPU time of it and of its children that have ended."""

    began: timedelta
    cpu: timedelta


@dataclass(frozen=True)
class Work:
    """The processes of an agent by their ids, without OpenCode itself and the runner's process that waits for it."""

    processes: Mapping[int, ProcessWork]

    @classmethod
    def parse(cls, listing: bytes) -> "Work | None":
        """Read what the runner prints with `--work`; None for anything else."""
        found: dict[int, _Listed] = {}
        for line in listing.splitlines():
            words = line.split(None, 4)
            if len(words) < 4 or not all(word.isdigit() for word in words[:4]):
                return None
            pid, *values = (int(word[:15]) for word in words[:4])
            found[pid] = _Listed(*values)
        if not found:
            return None
        waiting = _oldest(found)  # what the runner waits with for OpenCode
        opencode = _oldest({pid: each for pid, each in found.items() if each.parent == waiting} or found)
        begin = found[opencode].age
        return cls(
            {
                pid: ProcessWork((begin - each.age) * _CENTISECOND, each.cpu * _CENTISECOND)
                for pid, each in found.items()
                if pid not in {waiting, opencode}
            }
        )

    def goes_on(self, last_progress: timedelta, earlier: "Work | None", elapsed: timedelta) -> bool:
        """Whether a tool works, or may work.

        A process that began after the last progress is a tool's own, which OpenCode ends at the tool's time-out. An
        older one, such as an MCP server, works if it uses CPU.

        Args:
            last_progress: counted from OpenCode's first output, which comes after its begin.
            earlier: what was read before; None: nothing yet, so it is not known who uses CPU.
            elapsed: since then.
        """
        if any(each.began >= last_progress for each in self.processes.values()):
            return True
        if not self.processes:
            return False
        if earlier is None:
            return True
        before = {pid: each.cpu for pid, each in earlier.processes.items()}
        used = sum((each.cpu - before.get(pid, each.cpu) for pid, each in self.processes.items()), timedelta())
        return used >= elapsed * BUSY_SHARE


def process_names(listing: bytes) -> list[bytes]:
    """Return the names in such a list, which the agent chooses; nothing of any other line."""
    lines = [line.split(None, 4) for line in listing.splitlines()]
    return [words[4] for words in lines if len(words) > 4 and all(word.isdigit() for word in words[:4])]


class _Listed(NamedTuple):
    """One line of the list; times in centiseconds."""

    parent: int
    age: int
    cpu: int


def _oldest(processes: Mapping[int, _Listed]) -> int:
    return max(processes, key=lambda pid: (processes[pid].age, -pid))
