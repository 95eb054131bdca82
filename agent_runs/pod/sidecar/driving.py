"""Has an agent driven in its container: starts the driver's process, replaces it if it dies, decides what follows.

The driver is one of `drivers`. What its process knows is in a folder that only the sidecar's container mounts, so the
next one continues where it was killed, and the agent cannot write there. Commands go to the agent's container through a
FIFO, in order: `end CODE`; `rest WORD LIMIT`; those of `acp.sh`.

A pod whose turn ended well may rest: it stays for a while, without tokens and without a run. All other processes of the
run are ended first; before that, nothing of the next run is in the pod. A claim gives it the next turn, of another run
of the same agent. When nobody claims it in time, it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

from agent_runs.pod.sidecar import shared
from agent_runs.pod.sidecar.drivers import Driver, inbox
from agent_runs.pod.sidecar.drivers.acp import AcpAgent
from agent_runs.pod.sidecar.drivers.folder import (
    ABORTED_CODE,
    END,
    EVENTS,
    MAX_PROMPT,
    PROMPT,
    TURN,
    has_ended,
    read_json,
)
from agent_runs.pod.sidecar.drivers.opencode_server import OpenCodeServer
from agent_runs.pod.sidecar.output import Stream
from agent_runs.pod.sidecar.tokens import write_tokens

WORKING, ENVIRONMENT, IDLE = "turn", "environment", "idle"
"""Names in the folder that both containers share: a file while the agent works, the variables of its run, and the word
of the last order to rest, once nothing of the run is left running."""
RESTART_SECONDS = 0.5
"""Before a driver that failed ends, so that it is not replaced all the time. One that was killed is, at once."""
MAX_DRIVERS = 100
"""After so many that ended without a result the turn is lost: the driver has a bug."""
MAX_TURNS = 100
"""Of one server; its memory grows slowly with them."""
IDLE_SECONDS, LOOK_SECONDS = 4.0, 0.01
"""For the agent's container to end what the run before has left; and between looks."""
DETAIL_LIMIT = 300
"""Characters of why a turn ended otherwise."""


class Driving:
    """An agent and its turn.

    Args:
        output: the folder shared with the agent's container.
        own: the sidecar's own folder.
        turn: a JSON file, the driver's `turn.json` but for what is only known here. `driver` in it is `acp`, or absent
            for OpenCode's server. `prompt` names a file that the agent can exchange once it works, so it is copied. If
            the pod may rest, it also has `keep_warm` and `max_age`, in seconds, `max_memory`, the bytes that a server
            may use while it rests, `pod`, a digest of what the pod is made of, and `variables`, the names of those that
            are about one run.
        address: of the API proxy.
        container_has_ended: whether the agent's container has.

    Attributes:
        events: what the driver of this turn writes.
        rests_until: by the monotonic clock; None while it works.
    """

    def __init__(self, output: str, own: str, turn: str, address: str, container_has_ended: Callable[[], bool]) -> None:
        self._output, self._own, self._address = output, own, address
        self._container_has_ended = container_has_ended
        with open(turn) as file:
            known = json.load(file)
        self._keep_warm, max_age = float(known.pop("keep_warm", 0)), float(known.pop("max_age", 0))
        self._rests_before = time.monotonic() + max_age - self._keep_warm
        self._pod, self._variables = known.pop("pod", None), known.pop("variables", [])
        self._driver = self._choose(known.pop("driver", None), int(known.pop("max_memory", 0)))
        shared.make_fifo(output, shared.ORDERS)
        self._orders = shared.open_fifo(output, shared.ORDERS, os.O_RDWR)
        self._process = self._processes = self._turns = 0
        self._end: dict[str, Any] = {}
        self._aborted = False
        self._claim: dict[str, Any] = {}  # the answer to the last one
        self._messages: list[str] = []  # ids of the messages of this turn
        self._read_to: dict[Any, Any] = {}  # by the session, the `seq` of the newest event that a turn has read
        self.rests_until: float | None = None
        self._idle_word = b""
        self.events = self._new_turn(known)

    def _choose(self, name: str | None, max_memory: int) -> Driver:
        if name == "acp":
            return AcpAgent(self._output, self._address, self._order, self._keep_warm)
        return OpenCodeServer(self._output, max_memory, may_rest=self._keep_warm > 0)

    def _new_turn(self, known: dict[str, Any]) -> Stream:
        """Make the driver's folder; the one before is no longer needed."""
        if self._turns:
            self.events.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        self._turns += 1
        self._processes, self._end, self.rests_until, self._messages = 0, {}, None, []
        os.mkdir(self._folder, 0o700)
        shared.write(self._folder, PROMPT, known.pop("text") if "text" in known else _text_in(known.pop("prompt")))
        read_to = self._read_to.get(known.get("session"), -1)
        shared.write(self._folder, TURN, json.dumps({**known, "read_to": read_to, **self._driver.reached}))
        return Stream(self._folder, b"o", EVENTS, report_as="stdout")

    @property
    def ready(self) -> tuple[str, ...]:
        """Words for the agent's container."""
        return self._driver.ready

    @property
    def _folder(self) -> str:
        return f"{self._own}/turn-{self._turns}"

    # the driver

    @property
    def is_driving(self) -> bool:
        """Whether the turn is not over."""
        return bool(self._process)

    def begin(self) -> None:
        """Start the driver, which waits for the server."""
        with contextlib.suppress(OSError):
            shared.write(self._output, WORKING, f"{self._turns}\n")
        self._start()

    def _start(self) -> None:
        self._processes += 1
        # a stop waits for the driver's own handler (`Waiter`): this process's would take it from the driver
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._process = os.fork()
        if not self._process:
            self._drive()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _drive(self) -> None:
        try:
            signal.set_wakeup_fd(-1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the frames are the forwarder's
            self._driver.load()(self._folder)
        finally:
            time.sleep(0 if has_ended(self._folder) else RESTART_SECONDS)
            os._exit(0)

    def has_ended(self, process: int) -> bool:
        """Whether this process, which has ended, was the driver, and the turn is over. Otherwise another continues."""
        if process != self._process:
            return False
        self._process = 0
        try:
            self._end = read_json(self._folder, END)
        except (OSError, ValueError):
            if self._processes < MAX_DRIVERS and not self._aborted:  # another driver would not know of the abort
                self._start()
                return False
            self._end = {"code": 1, "reason": "driver_failed"}
        self._settle()
        return True

    def _settle(self) -> None:
        """Let the server rest, or order what follows."""
        with contextlib.suppress(OSError):
            shared.remove(self._output, WORKING)
        code, seq = self._end["code"], self._end.get("seq")
        if seq is not None:
            self._read_to[self._end["session"]] = seq
        if (code, self._end["reason"]) == (0, None) and self._may_rest:
            self._rest()
        else:
            self._order(f"end {ABORTED_CODE if self._aborted else code}")

    def tell(self, message: dict[str, Any]) -> dict[str, Any]:
        """Give the agent a message in its turn. The same request later returns what has come of it, once that is known.

        Args:
            message: `id`, `by`, `text`.
        """
        known = message["id"] in self._messages
        if known and (answer := inbox.answer_to(self._folder, self._messages.index(message["id"]) + 1)):
            return {"accepted": answer["delivered"], "delivered": answer["delivered"], "reason": answer["reason"]}
        if not self._process or self._aborted:
            return {"accepted": False, "reason": "its turn had ended"}
        if not known:
            inbox.put(self._folder, len(self._messages) + 1, message)
            self._messages.append(message["id"])
        return {"accepted": True}

    def abort(self) -> None:
        """End the turn; the driver tells the server, and writes what came of it."""
        if self._process and not self._aborted:
            self._aborted = True
            os.kill(self._process, signal.SIGTERM)
        elif self.rests_until is not None:
            self.end_rest()

    def kill(self) -> None:
        """End a driver that does not notice that its agent is gone."""
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0
            self._end = {"code": 1, "reason": self._driver.lost}

    def judged(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Return the last frame with what the driver knows: how the turn was made, and how it was lost."""
        reason, detail = self._end.get("reason"), str(self._end.get("detail") or "")[:DETAIL_LIMIT]
        lost = reason if reason not in (None, "aborted") else None
        if lost and not frame["error"]:
            frame = {**frame, "error": lost, "detail": detail}
        return frame if self.rests_until is None else {**frame, "exit_code": 0, "rests": True}

    def _order(self, order: str) -> None:
        with contextlib.suppress(BlockingIOError):  # the agent has filled the FIFO, and only harms itself
            os.write(self._orders, order.encode() + b"\n")

    # rest, and the next turn

    @property
    def _may_rest(self) -> bool:
        young = time.monotonic() < self._rests_before
        return self._keep_warm > 0 and young and self._turns < MAX_TURNS and not self._aborted

    def _rest(self) -> None:
        self._driver.load()  # the next process is forked from this one
        self.rests_until = time.monotonic() + self._keep_warm
        self._forget_run()
        word = os.urandom(16).hex()
        self._idle_word = word.encode()
        self._order(f"rest {word} {self._driver.rest_limit}")

    def _forget_run(self) -> None:
        write_tokens(self._own, {})
        with contextlib.suppress(OSError):
            shared.remove(self._output, ENVIRONMENT)

    def _is_idle(self) -> bool:
        """Whether the agent's container has ended all that the run before has left running."""
        return shared.read(self._output, IDLE, len(self._idle_word)) == self._idle_word

    def end_rest(self) -> None:
        """End a server that rests."""
        self._order("end 0")
        self._keep_warm, self.rests_until = 0, None

    def repeated(self, claim: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to the same claim before; nothing if it is another one."""
        return self._claim if self._claim and self._claim["id"] == claim["id"] else {}

    def claimed(self, claim: dict[str, Any], first: int) -> dict[str, Any]:
        """Take the next turn, unless there is a reason against it; the answer has that.

        Args:
            claim: `id`, `pod`, `turn` (the driver's, with `text` for the prompt), `environment`, `paths` (variables
                whose values follow the address of the API proxy) and `tokens`.
            first: number of its first frame.
        """
        if self.rests_until is None:
            return {"accepted": False, "reason": "the pod does not rest"}
        if claim["pod"] != self._pod:
            return {"accepted": False, "reason": "the pod is made for another configuration"}
        given = {**claim["environment"], **{name: self._address + path for name, path in claim["paths"].items()}}
        if not self._takes({**dict.fromkeys(self._variables), **given}):
            self._forget_run()
            self.end_rest()
            return {"accepted": False, "reason": "the agent's container does not answer"}
        write_tokens(self._own, claim["tokens"])
        self.events = self._new_turn(claim["turn"])
        self._claim = {"id": claim["id"], "accepted": True, "first": first, "at": time.time()}
        return self._claim

    def _takes(self, variables: dict[str, str | None]) -> bool:
        """Give the agent's container the variables of the next run; whether it is ready for that run."""
        if not self._within(IDLE_SECONDS, self._is_idle):
            return False
        try:
            shared.write(self._output, ENVIRONMENT, _exports(variables))
            return self._driver.take(self._within)
        except OSError:  # the agent has put something else in their place
            return False

    def _within(self, seconds: float, true: Callable[[], bool]) -> bool:
        """Whether it is true within that time, while the agent's container runs."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end or self._container_has_ended():
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def rotate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the tokens of the run that has claimed the server."""
        if self.rests_until is not None or not self._claim or self._claim["id"] != request["id"]:
            return {"accepted": False, "reason": "the pod is not this run's"}
        write_tokens(self._own, request["tokens"])
        return {"accepted": True}


def _text_in(path: str) -> str:
    """What is in a file, which the agent may have exchanged."""
    folder, _, name = path.rpartition("/")
    return shared.read(folder, name, MAX_PROMPT).decode("utf-8", "replace")


def _exports(variables: dict[str, str | None]) -> str:
    """Return shell commands that set these variables, and unset those without a value."""
    return "".join(
        f"unset {name}\n" if value is None else f"export {name}={shlex.quote(value)}\n"
        for name, value in variables.items()
    )
