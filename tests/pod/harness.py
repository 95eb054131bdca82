"""Starts the runner under a shell of this machine beside a sidecar, and checks what every run promises."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_runs.logs.frames import (
    FRAME_LIMIT,
    Frame,
    FrameReader,
    LastFrame,
    LineAssembler,
    Output,
    Stream,
    Totals,
)
from agent_runs.pod.archive import sidecar_archive
from agent_runs.transcript.lines import Line
from tests.support.lines import checksum_of

SCRIPT = Path(__file__).parents[2] / "agent_runs" / "pod" / "runner.sh"
LAST = re.compile(rb"[0-9]+x\. ")
RUN_TIMEOUT = 600  # seconds after which a hanging run fails its test

_CANDIDATES = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
SHELLS = {name: command for name, command in _CANDIDATES.items() if shutil.which(command[0])}


@dataclass
class Ended:
    """A finished run, read back."""

    code: int
    log: bytes
    frames: list[Frame]
    lines: list[Line]
    last: LastFrame

    def text(self, stream: Output) -> list[bytes]:
        return [line.data for line in self.lines if line.stream == stream]

    def raw(self, stream: Output) -> bytes:
        return b"".join(line.raw for line in self.lines if line.stream == stream)


@dataclass
class Running:
    """A run whose runner has not ended, and its sidecar."""

    process: subprocess.Popen[bytes]
    sidecar: subprocess.Popen[bytes]
    out: Path
    log: bytes = b""
    is_stopped: bool = False

    def stop(self) -> None:
        """As the deletion of the pod does: SIGTERM to both containers."""
        self.is_stopped = True
        self.sidecar.terminate()
        self.process.terminate()

    def frame(self) -> Frame:
        """The next frame, as soon as it comes."""
        assert self.sidecar.stdout
        line = self.sidecar.stdout.readline()
        assert line, "the log ended before the awaited frame"
        self.log += line
        (frame,) = FrameReader().feed(line)
        assert isinstance(frame, Frame), "only frames are ever written"
        return frame

    def await_line(self, stream: Stream) -> bytes:
        """The next frame of `stream` with a payload, as soon as it comes."""
        while (frame := self.frame()).stream != stream or not frame.payload:
            pass
        return frame.payload

    def end(self) -> Ended:
        """Read to the last frame, end the sidecar, and check what every run promises."""
        ended = self.read_to_end()
        for stream in ("stdout", "stderr"):
            file = (self.out / stream).read_bytes()
            totals = getattr(ended.last, stream)
            assert ended.raw(stream) == file
            assert totals == Totals(file.count(b"\n"), len(file), checksum_of(file))
        return ended

    def read_to_end(self) -> Ended:
        """Read to the last frame, end the sidecar as the deletion of its pod does, and read all frames back."""
        assert self.sidecar.stdout
        lines = [self.log]
        for line in self.sidecar.stdout:
            lines.append(line)
            if LAST.match(line):
                break
        else:
            self.process.kill()
        self.log = b"".join(lines)
        if not self.is_stopped:
            self.sidecar.terminate()
        rest, stderr = self.sidecar.communicate(timeout=RUN_TIMEOUT)
        assert (stderr, rest, self.sidecar.returncode) == (b"", b"", 0)
        return read_back(self.log, self.process.wait(timeout=RUN_TIMEOUT))


def read_frames(log: bytes) -> list[Frame]:
    items = FrameReader().feed(log)
    frames = [item for item in items if isinstance(item, Frame)]
    assert frames == items, "only frames are ever written"
    return frames


def read_back(log: bytes, code: int) -> Ended:
    frames = read_frames(log)
    assert log.endswith(b"\n")
    assert max(map(len, log.split(b"\n"))) < FRAME_LIMIT
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[0].stream == "hello"
    assert frames[0].payload == b'{"format":1}'
    assert [frame.stream for frame in frames].index("last") == len(frames) - 1
    return Ended(code, log, frames, LineAssembler().feed(frames), LastFrame.parse(frames[-1].payload))


@dataclass
class Sidecar:
    """How the sidecar is started, with folders of its own."""

    home: Path
    max_unread: int = RUN_TIMEOUT
    wrapper: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    turn: Path | None = None
    workspace: Path | None = None

    @property
    def out(self) -> Path:
        return self.home / "out"

    @property
    def control(self) -> Path:
        return self.home / "control"

    @property
    def tokens(self) -> Path:
        return self.home / "tokens"

    def start(self, *, new: bool = True) -> subprocess.Popen[bytes]:
        for folder in (self.out, self.control, self.tokens):
            if new:
                shutil.rmtree(folder, ignore_errors=True)  # a pod's folders are new
            folder.mkdir(exist_ok=True)
        carried = ["--workspace", self.workspace] if self.workspace else []
        turn = [self.turn] if self.turn else []
        arguments = map(str, ("run", *carried, self.out, self.control, self.tokens, self.max_unread, *turn))
        return subprocess.Popen(
            [*self.wrapper, *self.argv(*arguments)], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def argv(self, *arguments: str) -> list[str]:
        archive = self.home / "sidecar.pyz"
        if not archive.exists():
            archive.write_bytes(sidecar_archive())
        return [sys.executable, "-I", "-S", str(archive), *arguments]

    def command(self, name: str, *arguments: str) -> bytes:
        """What one of the worker's commands prints."""
        argv = self.argv(name, str(self.control), *arguments)
        done = subprocess.run(argv, capture_output=True, timeout=RUN_TIMEOUT)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    def ask(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command that has its request on standard input."""
        content = json.dumps(request).encode()
        argv = self.argv(name, str(self.control))
        done = subprocess.run(
            argv, input=b"%d\n%s" % (len(content), content), capture_output=True, timeout=RUN_TIMEOUT, check=True
        )
        return dict(json.loads(done.stdout))

    def replay(self, first: int, last: int) -> bytes:
        return self.command("replay", str(first), str(last))

    def acknowledge(self) -> None:
        """Report that all frames are stored."""
        self.command("acknowledge")


@dataclass
class Runner:
    """The runner under one shell, beside a sidecar."""

    shell: list[str]
    home: Path
    grace: int = 1
    options: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    wrapper: list[str] = field(default_factory=list)
    script: Path = SCRIPT
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sidecar = Sidecar(self.home)

    @property
    def out(self) -> Path:
        return self.sidecar.out

    @property
    def work(self) -> Path:
        return self.home / "work"

    def argv(self, *command: str) -> list[str]:
        options = ["--out", self.out, "--dir", self.work, "--stdin", self.home / "prompt", "--grace", self.grace]
        return [*self.wrapper, *self.shell, str(self.script), *map(str, options), *self.options, "--", *command]

    def start(
        self,
        *command: str,
        stdin: bytes | None = b"",
        session: bool = False,
        sidecar: subprocess.Popen[bytes] | None = None,
    ) -> Running:
        if stdin is not None:
            (self.home / "prompt").write_bytes(stdin)
        sidecar = sidecar or self.sidecar.start()
        process = subprocess.Popen(
            self.argv(*command), env=os.environ | self.env, stderr=subprocess.DEVNULL, start_new_session=session
        )
        self.started += [process, sidecar]
        return Running(process, sidecar, self.out)

    def clean_up(self) -> None:
        """End what a failed test has left running."""
        for process in self.started:
            with process:
                process.terminate()
                try:
                    process.wait(timeout=RUN_TIMEOUT)
                except subprocess.TimeoutExpired:
                    process.kill()

    def run(self, *command: str, stdin: bytes | None = b"") -> Ended:
        return self.start(*command, stdin=stdin).end()

    def sh(self, script: str) -> Ended:
        return self.run("sh", "-c", script)


def slowed(script: Path, line: str, folder: Path) -> Path:
    """A copy of the script, with those that it sources, that waits for a second before the line: the busy machine."""
    text = script.read_text()
    assert text.count(f"\n{line}") == 1
    for source in script.parent.glob("*.sh"):
        shutil.copy(source, folder)
    copy = folder / script.name
    copy.write_text(text.replace(f"\n{line}", f"\nsleep 1\n{line}"))
    return copy


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started in a session of its own, and what it has left running there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
