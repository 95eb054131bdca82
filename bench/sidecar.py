"""What the sidecar of an agent's pod costs: its memory and CPU for a short run, its start, and its throughput.

    python -m bench.sidecar

Nothing of Kubernetes takes part: the sidecar runs as its container starts it, beside a process that writes what an
agent writes. The runner's part is left out, because it does no more than open two files.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from agent_runs.pod.archive import sidecar_archive
from bench.reports import machine

LINES = 150
LINE = b'{"type":"text","part":"' + b"x" * 460 + b'"}\n'
PAUSE = 0.02
"""Seconds between the lines of the short run."""
LARGE = 200 * 1000 * 1000
"""Bytes of the large run."""
RUNS = 5


@dataclass(frozen=True)
class Cost:
    """One run.

    Attributes:
        start: seconds from the process's start until the runner may start.
        memory: MiB, of the forwarder and the API proxy together; the largest.
        cpu: seconds, of both.
        wall: seconds from the first byte to the last frame.
    """

    start: float
    memory: float
    cpu: float
    wall: float


def measure(folder: Path, chunks: int, chunk: bytes, pause: float) -> Cost:
    """Run the sidecar beside a process that writes `chunks` times."""
    archive, out, control = folder / "sidecar.pyz", folder / "out", folder / "control"
    archive.write_bytes(sidecar_archive())
    for each in (out, control):
        each.mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    sidecar = subprocess.Popen(
        [sys.executable, "-I", "-S", archive, "run", out, control, folder, "0"],
        env={"PAPERCLIP_UPSTREAM_URL": "http://127.0.0.1:9"},
        stdout=subprocess.PIPE,
    )
    while not (out / "ready").exists():
        time.sleep(0.0005)
    start = time.perf_counter() - began
    fifo = os.open(out / "agent", os.O_RDWR)
    os.write(fifo, b"started\n")
    writer = os.open(out / "stdout", os.O_WRONLY | os.O_APPEND)
    reader = subprocess.Popen(["/usr/bin/wc", "-l"], stdin=sidecar.stdout, stdout=subprocess.DEVNULL)
    begin = time.perf_counter()
    for _ in range(chunks):
        os.write(writer, chunk)
        if pause:
            time.sleep(pause)
    memory = resident(sidecar.pid)
    os.write(fifo, b"result 0 null false null null\n")
    os.close(fifo)
    sidecar.wait()
    wall = time.perf_counter() - begin
    if sidecar.stdout:
        sidecar.stdout.close()
    reader.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(start, memory, cpu, wall)


def resident(pid: int) -> float:
    """MiB that a process and its children have to themselves, and their part of what they share."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(proportional(each) for each in (str(pid), *children)) / 1024


def proportional(pid: str) -> int:
    """KiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def main() -> None:
    print(machine())
    print("| run | ready after | memory | CPU | wall |\n|---|---|---|---|---|")
    block = LINE * (1_000_000 // len(LINE))
    for name, chunks, chunk, pause in (
        (f"{LINES} lines", LINES, LINE, PAUSE),
        ("200 MB", LARGE // len(block), block, 0.0),
    ):
        costs = []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as folder:
                costs.append(measure(Path(folder), chunks, chunk, pause))
        start, memory, cpu, wall = (
            sorted(getattr(cost, part) for cost in costs)[RUNS // 2] for part in ("start", "memory", "cpu", "wall")
        )
        print(f"| {name} | {start * 1000:.0f} ms | {memory:.1f} MiB | {cpu:.2f} s | {wall:.2f} s |")


if __name__ == "__main__":
    main()
