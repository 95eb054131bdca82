"""The program of the container `sidecar`.

    python3 -I -S sidecar.pyz run [--workspace CONFIG] OUTPUT CONTROL TOKENS MAX_UNREAD [TURN]
                                                                            forwards an agent's output
    python3 -I -S sidecar.pyz restore CONFIG                                makes the folders of a carried workspace
    python3 -I -S sidecar.pyz keep CONFIG                                   sends them (the process that `run` starts)
    python3 -I -S sidecar.pyz replay CONTROL FIRST LAST                     repeats frames that a reader missed
    python3 -I -S sidecar.pyz acknowledge CONTROL                           reports that all frames are stored
    python3 -I -S sidecar.pyz claim CONTROL                                 gives a server that rests its next turn
    python3 -I -S sidecar.pyz rotate CONTROL                                changes the tokens of that turn
    python3 -I -S sidecar.pyz tell CONTROL                                  gives an agent at work a message

OUTPUT is the folder shared with the agent's container: the files `stdout` and `stderr`, the FIFO `agent`, and `ready`,
which is there once the runner may start; it holds the address of the API proxy, or `none`. CONTROL is the sidecar's own
folder; TOKENS is that of the Secret with the token. With the variable PAPERCLIP_UPSTREAM_URL it is the agent's API
proxy. With TURN, a JSON file, it also drives OpenCode's server (`driving`), and forwards what that writes of it instead
of the agent's standard output. Claim, rotate and tell read JSON from standard input, its length in a first line.
With CONFIG, a JSON file that the pod of a carried workspace has, checkpoints are taken (`workspace`), the last one once
the agent has ended, and the last frame tells how that went.

It ends last. When the runner has ended, in whatever way, it forwards the rest, writes the last frame, and waits until
the pod is deleted (SIGTERM), all is acknowledged, or MAX_UNREAD seconds are over: until then its files can be read.
SIGTERM does not end it earlier, because the agent may still work in its grace.

Nothing but frames is written to stdout. API proxy and driver are processes of their own, and are replaced if they die.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any

from agent_runs.pod.sidecar import shared
from agent_runs.pod.sidecar.control import Control
from agent_runs.pod.sidecar.driving import Driving
from agent_runs.pod.sidecar.output import Output
from agent_runs.pod.sidecar.runner import Runner
from agent_runs.pod.sidecar.upstream import UPSTREAM, Upstream
from agent_runs.pod.sidecar.watching import Watch
from agent_runs.pod.sidecar.workspace.keeping import CUT_OFF, TOO_SLOW, Keeping

READY, NO_ADDRESS = "ready", "none"
NOT_DRIVEN = "the command line of OpenCode takes no message while it works"
LOOPBACK = "127.0.0.1"
BACKLOG = 48
SETTLE_SECONDS, MAX_SETTLE_SECONDS = 0.1, 2.0
"""How long a killed agent's files must stay as they are before they count as complete, and at most: the kernel ends the
processes of a container one after the other, and the runner may be the first."""
MAX_TURN_END_SECONDS = 5.0
"""For the driver to notice that its server is gone, and to write what it knows."""
RESTED_SECONDS = 5.0
"""For which claims are still refused once a pod that rested has ended: the end of this container would cut one off, and
nobody would know whether it was taken."""
RESTART_SECONDS = 1.0
"""Before an API proxy that failed ends, so that it is not replaced all the time. One that was killed is, at once."""
STOPPED_SECONDS, LOOK_SECONDS = 6.0, 1.0
"""For the last checkpoint of a pod that is to end: Kubernetes gives it 10 s after the agent's grace; and between looks
at a keeper that has had no room for the word that the agent has ended."""


class Sidecar:
    """Forwards until the runner has ended, then waits."""

    def __init__(
        self, output: str, own: str, tokens: str, turn: str | None = None, workspace: str | None = None
    ) -> None:
        self._stop_requested = False
        self._wake_reading = self._take_signals()
        self._runner = Runner(output)
        self._upstream = Upstream.read(os.environ[UPSTREAM]) if UPSTREAM in os.environ else None
        self._listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG) if self._upstream else None
        self._driving = Driving(output, own, turn, self.address, self._runner.has_ended) if turn else None
        self._has_claim = False
        self._keeping = Keeping(workspace) if workspace and os.path.exists(workspace) else None
        self._output = Output(
            output,
            _write,
            driven=self._driving.events if self._driving else None,
            seen=self._keeping.saw if self._keeping else None,
        )
        self._control = Control(own, self._output.repeat, self._answer)
        self._own = own
        self._poll = select.poll()
        self._watch = Watch(self._output.files)
        kept = self._keeping.file if self._keeping else None
        for file in (self._runner.file, self._control.file, self._wake_reading, self._watch.file, kept):
            if file is not None:
                self._poll.register(file, select.POLLIN)
        self._tokens = tokens
        self._proxy = 0

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self._listener.getsockname()[1]}" if self._listener else NO_ADDRESS

    def _take_signals(self) -> int:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return reading

    def _request_stop(self, *_: object) -> None:
        self._stop_requested = True

    @property
    def ready(self) -> tuple[str, ...]:
        """Return what the runner needs to know: where the agent reaches Paperclip, and what is for its server."""
        return (self.address, *(self._driving.ready if self._driving else ()))

    def run(self, max_unread: float) -> None:
        self._start_proxy()
        if self._keeping:
            self._keeping.begin()
        if self._driving:
            self._driving.begin()
        self._output.begin()
        if self._forward():
            self._poll.unregister(self._runner.file)
            rested = self._output.has_ended
            if not rested:
                self._end_turn()
                self._settle()
                self._end_workspace()
                self._output.end(self._last_frame)
            self._stop_proxy()
            self._await_reader(max_unread, RESTED_SECONDS if rested else 0)
        self._stop_proxy()
        if self._keeping:
            self._keeping.kill()

    def _forward(self) -> bool:
        """Forward until the runner has ended; False if it never started and the pod is to end."""
        grown = False
        while not self._runner.has_ended():
            if self._stop_requested and not self._runner.has_started:
                return False
            if self._driving and self._stop_requested:
                self._driving.abort()
            self._wait(self._next_look(grown=grown))
            grown = not self._output.has_ended and self._output.forward()
            if self._driving and self._rests and self._rest_left <= 0:
                self._driving.end_rest()
        return True

    # a server that rests

    @property
    def _rests(self) -> bool:
        return self._driving is not None and self._driving.rests_until is not None

    @property
    def _rest_left(self) -> float:
        """Seconds until nobody may claim the server any more."""
        until = self._driving.rests_until if self._driving else None
        return max(until - time.monotonic(), 0.0) if until is not None else 0.0

    def _answer(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        if kind == "tell":
            return self._driving.tell(request) if self._driving else {"accepted": False, "reason": NOT_DRIVEN}
        if self._driving and kind != "rotate" and (earlier := self._driving.repeated(request)):
            return earlier
        if self._driving is None or self._stop_requested or self._runner.has_ended():
            return {"accepted": False, "reason": "the agent's container has ended"}
        if kind == "rotate":
            return self._driving.rotate(request)
        first = self._output.number + 1
        answer = self._driving.claimed(request, first)
        if answer["accepted"]:
            self._control.acknowledged = False
            self._output.begin_turn(self._driving.events)
            self._watch_again()
            self._has_claim = True
        return answer

    def _begin_claimed_turn(self) -> None:
        """Start the driver once the claim is answered: a process that has its connection keeps it open."""
        if self._driving and self._has_claim:
            self._has_claim = False
            self._driving.begin()

    def _watch_again(self) -> None:
        """Watch the files of this turn instead of the last one's."""
        if self._watch.file is not None:
            self._poll.unregister(self._watch.file)
        self._watch.close()
        self._watch = Watch(self._output.files)
        if self._watch.file is not None:
            self._poll.register(self._watch.file, select.POLLIN)

    def _end_turn(self) -> None:
        """Wait a moment for what the driver still finds out about a server whose container has ended."""
        end = time.monotonic() + MAX_TURN_END_SECONDS
        while self._driving and self._driving.is_driving and (left := end - time.monotonic()) > 0:
            self._wait(left)
            self._output.forward()
        if self._driving:
            self._driving.kill()

    def _next_look(self, *, grown: bool) -> float | None:
        if self._rests:
            return self._rest_left
        limits = [limit for limit in (self._watch.timeout(grown=grown), self._output.due_in) if limit is not None]
        return min(limits) if limits else None

    def _wait(self, seconds: float | None) -> None:
        """Wait for an event, and see to everything that is not output."""
        self._poll.poll(None if seconds is None else int(seconds * 1000) + bool(seconds))
        self._watch.drain()
        if self._keeping:
            self._keeping.take()
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_reading, 1024):
                pass
        self._control.serve()
        self._begin_claimed_turn()
        self._collect_children()

    def _collect_children(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                ended, status = os.waitpid(-1, os.WNOHANG)
                if not ended:
                    break
                if self._keeping:
                    self._keeping.collect(ended, status)
                if ended == self._proxy:
                    self._start_proxy()
                elif self._driving and self._driving.has_ended(ended):
                    self._turn_has_ended()

    def _turn_has_ended(self) -> None:
        if self._driving and self._rests and (self._output.truncated or self._output.disk_is_full):
            self._driving.end_rest()  # only its container's status can say how such a run ended
        elif self._rests:
            self._output.end(self._last_frame)

    def _settle(self) -> None:
        """Forward what a killed agent's last processes still write."""
        while self._output.forward():
            pass
        if self._runner.result.exit_code is not None:
            return
        now = time.monotonic()
        end, quiet_at = now + MAX_SETTLE_SECONDS, now + SETTLE_SECONDS
        while time.monotonic() < min(quiet_at, end):
            time.sleep(SETTLE_SECONDS / 10)
            if self._output.forward():
                quiet_at = time.monotonic() + SETTLE_SECONDS

    def _end_workspace(self) -> None:
        """Have the last checkpoint taken. Who waits for the pod's end does not wait longer than Kubernetes does."""
        if self._keeping is None:
            return
        self._keeping.end()
        end, error, stopped = time.monotonic() + self._keeping.last_seconds, TOO_SLOW, False
        while not self._keeping.has_ended:
            if self._stop_requested and not stopped:
                end, error, stopped = min(end, time.monotonic() + STOPPED_SECONDS), CUT_OFF, True
            if (left := end - time.monotonic()) <= 0:
                self._keeping.kill(error)
                break
            self._wait(min(left, LOOK_SECONDS))

    def _last_frame(self) -> bytes:
        result = self._runner.result
        error = result.error
        if error is None and self._output.disk_is_full:
            error = "disk_full"
        elif error is None and self._output.truncated:
            error = "output_truncated"
        frame = {**result.frame(), "error": error}
        if self._driving:
            frame = self._driving.judged(frame)
        kept = {"workspace": self._keeping.last} if self._keeping else {}
        return json.dumps({**frame, "disk": self._output.disk_bytes, **self._output.totals(), **kept}).encode()

    def _await_reader(self, max_unread: float, at_least: float) -> None:
        began = time.monotonic()
        while not self._stop_requested:
            limit = at_least if self._control.acknowledged else max(max_unread, at_least)
            if (left := began + limit - time.monotonic()) <= 0:
                break
            self._wait(left)
        self._control.close()

    # the API proxy

    def _start_proxy(self) -> None:
        if self._listener is None or self._upstream is None:
            return
        self._proxy = os.fork()
        if not self._proxy:
            self._serve(self._listener, self._upstream)

    def _serve(self, listener: socket.socket, upstream: Upstream) -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the frames are the forwarder's
            # not above: what it needs is large, and the forwarder is to start at once and to stay small
            from agent_runs.pod.sidecar import api_proxy  # noqa: PLC0415

            api_proxy.serve(listener, upstream, self._tokens, self._own)
        finally:
            time.sleep(RESTART_SECONDS)
            os._exit(1)

    def _stop_proxy(self) -> None:
        if self._proxy:
            ended, self._proxy = self._proxy, 0
            with contextlib.suppress(ProcessLookupError):
                os.kill(ended, signal.SIGKILL)


def _write(text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(1, left) :]


def _publish(folder: str, *words: str) -> None:
    """Let the runner start."""
    shared.write(folder, READY + ".new", " ".join(words) + "\n")
    os.replace(f"{folder}/{READY}.new", f"{folder}/{READY}")


def main(*arguments: str) -> None:
    """Be the sidecar.

    Raises:
        OSError: a folder cannot be used.
        ValueError: Paperclip's address or an argument is unusable.
    """
    workspace = arguments[1] if arguments[0] == "--workspace" else None
    output, own, tokens, max_unread, *turn = arguments[2 if workspace else 0 :]
    limit = float(max_unread)
    sidecar = Sidecar(output, own, tokens, turn[0] if turn else None, workspace)
    _publish(output, *sidecar.ready)
    sidecar.run(limit)
