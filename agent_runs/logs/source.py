"""What the follower of a log needs of the cluster, and the commands in the containers of an agent's pod."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Final, Protocol

from agent_runs.contracts.messages import JobRef
from agent_runs.contracts.pod import CONTROL_DIRECTORY, OUTPUT_DIRECTORY, RUNNER_FILE, SIDECAR_FILE
from agent_runs.kube.objects import Job, Pod

SIDECAR_COMMAND: Final = ("python3", "-I", "-S", SIDECAR_FILE)
REPLAY_COMMAND: Final = (*SIDECAR_COMMAND, "replay", CONTROL_DIRECTORY)
"""Repeats frames, in the sidecar's container; the numbers of the first and the last one are appended."""
ACKNOWLEDGE_COMMAND: Final = (*SIDECAR_COMMAND, "acknowledge", CONTROL_DIRECTORY)
"""Ends the sidecar, in its container, once its last frame is written."""
WORK_COMMAND: Final = ("sh", RUNNER_FILE, "--out", OUTPUT_DIRECTORY, "--work")
"""Lists the agent's processes, in the agent's container; see `agent_runs.logs.work`."""


class Source(Protocol):
    """What a follower needs of the `Cluster` port."""

    def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | timedelta | None,
        idle_timeout: timedelta | None,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Do the same as `Cluster.open_log`, with timestamps."""
        ...

    def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle_timeout: timedelta
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    async def read_pod(self, namespace: str, name: str) -> Pod | None: ...

    def watch_pods(self, job: JobRef) -> AbstractAsyncContextManager[AsyncIterator[list[Pod]]]: ...

    async def read_job(self, namespace: str, name: str) -> Job | None: ...
