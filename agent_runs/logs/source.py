"""What the follower of a log needs of the cluster, and the runner's commands in the container."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Final, Protocol

from agent_runs.contracts.messages import JobRef
from agent_runs.job.manifest import RUN_DIRECTORY
from agent_runs.job.secrets import RUNNER_KEY
from agent_runs.kube.objects import Job, Pod

RUNNER_COMMAND: Final = ("sh", f"{RUN_DIRECTORY}/secret/{RUNNER_KEY}", "--out", f"{RUN_DIRECTORY}/output")
REPLAY_COMMAND: Final = (*RUNNER_COMMAND, "--replay")
"""Repeats frames from the runner's files; the numbers of the first and the last one are appended."""
ACKNOWLEDGE_COMMAND: Final = (*RUNNER_COMMAND, "--acknowledge")
"""Ends the runner's wait for a reader."""
PROCESSES_COMMAND: Final = (*RUNNER_COMMAND, "--processes")
"""Lists the names of the agent's processes."""


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
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Do the same as `Cluster.exec_output`."""
        ...

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Do the same as `Cluster.read_pod`."""
        ...

    def watch_pods(self, job: JobRef) -> AbstractAsyncContextManager[AsyncIterator[list[Pod]]]:
        """Do the same as `Cluster.watch_pods`."""
        ...

    async def read_job(self, namespace: str, name: str) -> Job | None:
        """Do the same as `Cluster.read_job`."""
        ...
