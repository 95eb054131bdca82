"""Starts `agent_runs/pod/runner.sh` under a shell of this machine and checks what every run promises."""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from agent_runs.logs.frames import (
    FRAME_LIMIT,
    Frame,
    FrameReader,
    LastFrame,
    LineAssembler,
    LogLine,
    Output,
    Totals,
)

SCRIPT = Path(__file__).parents[2] / "agent_runs" / "pod" / "runner.sh"
RUN_TIMEOUT = 240  # seconds after which a hanging run fails its test

_CANDIDATES = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
SHELLS = {name: command for name, command in _CANDIDATES.items() if shutil.which(command[0])}


@dataclass
class Ended:
    """A finished run, read back."""

    code: int
    log: bytes
    frames: list[Frame]
    lines: list[LogLine]
    last: LastFrame

    def text(self, stream: Output) -> list[bytes]:
        return [line.data for line in self.lines if line.stream == stream]

    def raw(self, stream: Output) -> bytes:
        return b"".join(line.raw for line in self.lines if line.stream == stream)


@dataclass
class Running:
    """A run whose runner has not ended."""

    process: subprocess.Popen[bytes]
    out: Path
    log: bytes = b""

    def await_line(self, stream: Output) -> bytes:
        """The next frame of `stream`, as soon as it comes."""
        assert self.process.stdout
        while True:
            line = self.process.stdout.readline()
            assert line, "the log ended before the awaited line"
            self.log += line
            (frame,) = FrameReader().feed(line)
            if isinstance(frame, Frame) and frame.stream == stream and frame.payload:
                return frame.payload

    def end(self) -> Ended:
        """Read to the end and check what every run promises."""
        rest, stderr = self.process.communicate(timeout=RUN_TIMEOUT)
        assert stderr == b""
        ended = read_back(self.log + rest, self.process.returncode)
        for stream in ("stdout", "stderr"):
            file = (self.out / stream).read_bytes()
            totals = getattr(ended.last, stream)
            assert ended.raw(stream) == file
            assert totals == Totals(file.count(b"\n"), len(file), hashlib.sha256(file).hexdigest())
        return ended


def read_back(log: bytes, code: int) -> Ended:
    items = FrameReader().feed(log)
    frames = [item for item in items if isinstance(item, Frame)]
    assert frames == items, "only frames are ever written"
    assert log.endswith(b"\n")
    assert max(map(len, log.split(b"\n"))) < FRAME_LIMIT
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[0].stream == "hello"
    assert frames[0].payload == b'{"format":1}'
    assert [frame.stream for frame in frames].index("last") == len(frames) - 1
    return Ended(code, log, frames, LineAssembler().feed(frames), LastFrame.parse(frames[-1].payload))


@dataclass
class Runner:
    """The runner under one shell, with folders of its own."""

    shell: list[str]
    home: Path
    grace: int = 1
    options: list[str] = field(default_factory=lambda: ["--acknowledge-timeout", "0"])
    env: dict[str, str] = field(default_factory=dict)
    wrapper: list[str] = field(default_factory=list)
    script: Path = SCRIPT
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.home / "out"

    @property
    def work(self) -> Path:
        return self.home / "work"

    def argv(self, *command: str) -> list[str]:
        options = ["--out", self.out, "--dir", self.work, "--stdin", self.home / "prompt", "--grace", self.grace]
        return [*self.wrapper, *self.shell, str(self.script), *map(str, options), *self.options, "--", *command]

    def start(self, *command: str, stdin: bytes = b"") -> Running:
        (self.home / "prompt").write_bytes(stdin)
        process = subprocess.Popen(
            self.argv(*command), env=os.environ | self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.started.append(process)
        return Running(process, self.out)

    def clean_up(self) -> None:
        """End what a failed test has left running."""
        for process in self.started:
            with process:
                process.terminate()
                try:
                    process.wait(timeout=RUN_TIMEOUT)
                except subprocess.TimeoutExpired:
                    process.kill()

    def run(self, *command: str, stdin: bytes = b"") -> Ended:
        return self.start(*command, stdin=stdin).end()

    def sh(self, script: str) -> Ended:
        return self.run("sh", "-c", script)

    def replay(self, first: int, last: int) -> bytes:
        return self._command("--replay", str(first), str(last))

    def acknowledge(self) -> None:
        """Report to the run that all its frames are stored."""
        self._command("--acknowledge")

    def _command(self, *arguments: str) -> bytes:
        command = [*self.shell, str(SCRIPT), "--out", str(self.out), *arguments]
        done = subprocess.run(command, capture_output=True, timeout=RUN_TIMEOUT)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie that nobody has collected yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def children(pid: int) -> list[int]:
    """The processes whose parent this one is."""
    pids = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"\nPPid:\t{pid}\n" in text:
            pids.append(int(status.parent.name))
    return pids
