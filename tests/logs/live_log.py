"""A sidecar's log that grows while it is followed, and its pod, which runs until it is ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

from agent_runs.contracts.messages import JobRef
from agent_runs.kube.objects import Job, Pod
from agent_runs.logs.frames import Frame
from tests.kube.pods import job
from tests.logs.frame_encoding import encode_frame, split_frames
from tests.logs.scripted_log import JOB, POD, RUNNING

BEGIN = datetime(2026, 11, 22, tzinfo=UTC)


class LiveLog:
    """A source with one pod. Any number of followers may read its log, one after the other."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._next = 1
        self._changed = asyncio.Condition()

    async def write(self, *lines: bytes, stream: str = "stdout") -> int:
        """The agent writes these lines; returns the sequence of the last one."""
        frames = [] if self._next > 1 else [Frame(1, "hello", ".", b'{"format":1}')]
        first = self._next + len(frames)
        for line in lines:
            frames += split_frames("stderr" if stream == "stderr" else "stdout", line + b"\n", first)
            first = frames[-1].seq + 1
        self._next = first
        async with self._changed:
            self._lines += map(self._stamped, frames)
            self._changed.notify_all()
        return self._next - 1

    def _stamped(self, frame: Frame) -> bytes:
        written = BEGIN + timedelta(milliseconds=frame.seq)
        return written.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode() + encode_frame(frame)

    @asynccontextmanager
    async def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | timedelta | None,
        idle_timeout: timedelta | None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod, container, follow) == ("n", POD.name, "sidecar", True)
        assert idle_timeout is not None
        assert not isinstance(since, timedelta)
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        read = 0
        while True:
            async with self._changed:
                while len(self._lines) <= read:
                    await self._changed.wait()
                text, read = b"".join(self._lines[read:]), len(self._lines)
            yield text

    def exec_output(self, *_: object, **_options: object) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError("nothing is missing in this log")

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        assert (namespace, name) == ("n", POD.name)
        return RUNNING

    async def read_job(self, *_: str) -> Job | None:
        return job()

    def watch_refusal(self, _namespace: str) -> str | None:
        return None

    @asynccontextmanager
    async def watch_pods(self, job: JobRef) -> AsyncIterator[AsyncIterator[list[Pod]]]:
        assert job == JOB
        yield self._states()

    async def _states(self) -> AsyncIterator[list[Pod]]:
        await asyncio.Event().wait()
        yield []
