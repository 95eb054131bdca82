"""A carried folder: seconds, CPU seconds and memory out, in the pod, per checkpoint and back, beside `tar` of the same.

All parts are the product's: the plugin's code in Node, the service with a folder as its store, the pod's own program.
`python -m bench.carry [MIB:FILES ...]` prints a Markdown table.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.pod.archive import sidecar_archive
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.server import serving
from agent_runs.web.workspaces import Workspaces
from agent_runs.workspace.store import WorkspaceStore
from dev_stack.plan import ROOT

SIZES: Final = ("1:100", "100:5000", "1000:1000")
SERVE: Final = "--serve"
FILES_IN_FOLDER: Final = 100
POLL: Final = 0.005
"""Seconds between two looks at the memory of a process that ends soon."""
CLOCK: Final = os.sysconf("SC_CLK_TCK")


@dataclass
class Used:
    """`cpu` is that of the process that works; `service` that of the service meanwhile; `rss` in MiB."""

    seconds: float
    cpu: float
    service: float
    rss: float
    sent: int | None = None


async def serve(folder: Path) -> None:
    store = WorkspaceStore.open(f"file://{folder}/store")
    async with serving(Workspaces(store, Tokens.load(folder / "key.json")).application) as address:
        print(address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@dataclass
class Bench:
    """One agent's folder, its service and its pod."""

    scratch: Path
    url: str
    service: int
    key: AttemptKey

    @property
    def folder(self) -> Path:
        return self.scratch / "folder"

    @property
    def pod(self) -> Path:
        return self.scratch / "pod"

    def plugin(self, what: str) -> Used:
        """The plugin's part, in a process of its own."""
        run = self.key.run
        about = {
            "url": self.url,
            "keyFile": str(self.scratch / "key.json"),
            "folder": str(self.folder),
            "agent": {"id": run.agent_id, "companyId": run.company_id, "name": "Ada", "adapterType": None},
            "runId": run.run_id,
        }
        argv = ["node", str(ROOT / "bench" / "carry.mjs"), str(ROOT / "adapter"), str(self.scratch), what]
        before = self._cpu_of_service()
        ran = subprocess.run(argv, env={**os.environ, "CARRY": json.dumps(about)}, check=True, capture_output=True)
        return Used(**json.loads(ran.stdout), service=self._cpu_of_service() - before)

    def restore(self, number: int) -> Used:
        self.pod.mkdir()
        return self._measured(self._sidecar("restore", restore=number))

    @contextmanager
    def keeper(self) -> Iterator[Callable[[str], Used]]:
        """Takes checkpoints; what one of them has taken."""
        argv = self._sidecar("keep", interval=0)
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, cwd=self.scratch, stdin=pipe, stdout=pipe) as process:

            def take(command: str) -> Used:
                assert process.stdin
                assert process.stdout
                began, cpu, before = time.monotonic(), cpu_of(process.pid), self._cpu_of_service()
                process.stdin.write(f"{command} ses_1\n".encode())
                process.stdin.flush()
                line = json.loads(process.stdout.readline())
                if line["error"]:
                    raise RuntimeError(line["error"])
                after = cpu_of(process.pid) if command.startswith("step") else cpu
                seconds, service = time.monotonic() - began, self._cpu_of_service() - before
                return Used(seconds, after - cpu, service, rss_of(process.pid), line["bytes"])

            yield take

    def tar(self) -> Used:
        """The same folder, packed and unpacked elsewhere."""
        into = self.scratch / "tar"
        into.mkdir()
        return self._measured(["sh", "-c", f"tar -C {self.folder} -c . | tar -C {into} -x"])

    def _measured(self, argv: Sequence[str]) -> Used:
        before, began, rss = self._cpu_of_service(), time.monotonic(), 0.0
        process = subprocess.Popen(argv, cwd=self.scratch, stdout=subprocess.DEVNULL)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            rss = max(rss, rss_of(process.pid))
            time.sleep(POLL)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        if process.returncode:
            raise RuntimeError(f"{argv[0]} exited with {process.returncode}")
        cpu = ended[2].ru_utime + ended[2].ru_stime
        return Used(time.monotonic() - began, cpu, self._cpu_of_service() - before, rss)

    def _sidecar(self, command: str, **more: Any) -> list[str]:
        (self.scratch / "sidecar.pyz").write_bytes(sidecar_archive())
        token = Tokens.load(self.scratch / "key.json").mint_workspace(self.key, timedelta(hours=1))
        config = self.scratch / f"{command}.json"
        config.write_text(json.dumps({"url": self.url, "token": token, "roots": {"workspace": str(self.pod)}} | more))
        return [sys.executable, "-I", "-S", str(self.scratch / "sidecar.pyz"), command, str(config)]

    def _cpu_of_service(self) -> float:
        return cpu_of(self.service)


def cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def rss_of(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def make(folder: Path, size: int, files: int) -> None:
    """So many files of the same size: text that a compressor halves, as source code does not quite."""
    random = Random(size)
    words = [random.randbytes(random.randrange(2, 9)).hex() for _ in range(5000)]
    folder.mkdir()
    for number in range(files):
        path = folder / f"{number // FILES_IN_FOLDER}" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        length, text = size // files, " ".join(random.choices(words, k=4000)).encode()
        path.write_bytes((b"%d " % number + text * (length // len(text) + 1))[:length])


def measure(scratch: Path, size: int, files: int) -> Iterator[tuple[str, Used]]:
    argv = [sys.executable, "-m", "bench.carry", SERVE, str(scratch)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as service:
        assert service.stdout
        url = service.stdout.readline().decode().strip()
        run = RunKey(agent_id=str(uuid.uuid4()), company_id=str(uuid.uuid4()), run_id=str(uuid.uuid4()))
        bench = Bench(scratch, url, service.pid, AttemptKey(run=run, attempt=1))
        make(bench.folder, size, files)
        yield "`tar`", bench.tar()
        yield "out: plugin", bench.plugin("out")
        yield "out: pod", bench.restore(1)
        with bench.keeper() as take:
            yield "first checkpoint", take("step 1")
            one = next(bench.pod.rglob("*.txt"))
            one.write_bytes(one.read_bytes()[:-1] + b"!")
            yield "one file changed", take("step 2")
            yield "nothing changed", take("step 3")
            for each in bench.pod.rglob("*.txt"):
                each.write_bytes(each.read_bytes()[::-1])
            yield "all changed", take("step 4")
            take("end 5")
        yield "back: all changed", bench.plugin("back")
        assert service.stdin
        service.stdin.close()


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    print("| MiB, files | what | s | of `tar` | CPU s | service's CPU s | MiB of memory | bytes sent |")
    print("|---|---|---|---|---|---|---|---|")
    for wanted in sys.argv[1:] or SIZES:
        mib, files = map(int, wanted.split(":"))
        with tempfile.TemporaryDirectory() as scratch:
            bare = 0.0
            for what, used in measure(Path(scratch), mib * 1024 * 1024, files):
                bare = bare or used.seconds
                sent = "" if used.sent is None else f"{used.sent:,}"
                print(
                    f"| {mib:,}, {files:,} | {what} | {used.seconds:.2f} | {used.seconds / bare:.1f} | {used.cpu:.2f} "
                    f"| {used.service:.2f} | {used.rss:.0f} | {sent} |",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        asyncio.run(serve(Path(sys.argv[2])))
    else:
        main()
