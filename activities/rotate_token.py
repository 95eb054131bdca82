"""Replaces the Paperclip token that the API proxy in a running agent's pod uses by that of a later run."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio import activity

from agent_runs.contracts.errors import ClusterForbidden, SealedFieldUnreadable
from agent_runs.contracts.messages import JobRef, RotateToken
from agent_runs.contracts.pod import SIDECAR_CONTAINER, TOKEN_DIRECTORY
from agent_runs.job import resting_pods
from agent_runs.job.secrets import token_files
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Pod
from agent_runs.kube.ownership import TOKEN_RUN_ID
from agent_runs.paperclip.sealing import Opener
from agent_runs.pod.sidecar.tokens import RUN_ID_FILE

MAX_CHECKS: Final = 60
CHECK_INTERVAL: Final = timedelta(seconds=1)
"""Between checks whether the kubelet has updated the token in the pod. A busy one needed more than ten seconds."""
EXEC_IDLE_TIMEOUT: Final = timedelta(seconds=5)
READ_RUN_ID: Final = (
    "python3",
    "-I",
    "-c",
    "import sys; print(open(sys.argv[1]).read())",
    f"{TOKEN_DIRECTORY}/{RUN_ID_FILE}",
)
"""Prints the run id of the token in the pod. The sidecar's image certainly has Python, and may have no `cat`."""
MAX_RUN_ID: Final = 1024
"""Bytes."""


@dataclass(frozen=True)
class RotateTokenActivity:
    """Opens the sealed tokens of a later run, as `create_job` does; they go straight into a Secret."""

    cluster: Cluster
    opener: Opener

    @activity.defn
    async def rotate_token(self, input: RotateToken) -> bool:
        """Writes the token of the run that has joined into the pod's Secret. May be repeated.

        The kubelet updates a changed Secret in the pod within a minute or two, and at once when an annotation of the
        pod changes. True when the new token was seen in the pod, or no agent is left to use it; False when it is not
        known to have arrived.

        Raises:
            SealedFieldUnreadable: sealed for another use or with another key, or without a token.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        joined, job = input.joined, input.job
        tokens = await asyncio.to_thread(self.opener.tokens, joined, input.attempt.run)
        if not tokens.auth_token:
            raise SealedFieldUnreadable("there is no token in the sealed text")
        if job.claimed is not None:
            given = {"token": tokens.auth_token, "run_id": joined.run_id, "tools_token": tokens.tools_token}
            return await resting_pods.rotate(self.cluster, job, input.attempt.transcript, given)
        files = token_files(joined.run_id, tokens.auth_token, tokens.tools_token)
        if not await self.cluster.change_secret(job.namespace, input.attempt.run_secret_name, files):
            return True  # the Job is deleted, and its Secrets with it
        for check in range(MAX_CHECKS):
            pod = await self._agent_pod(job)
            if pod is None or not pod.spec.node_name:
                return True
            await self.cluster.annotate_pod(
                job.namespace, pod.metadata.name, pod.metadata.uid, {TOKEN_RUN_ID: f"{joined.run_id}/{check}"}
            )
            try:
                if await self._run_id_in(pod) == joined.run_id:
                    return True
            except ExecFailed as failure:
                activity.logger.info("the run id in the pod was not read: %s", failure)
            except ClusterForbidden:
                return False
            await asyncio.sleep(CHECK_INTERVAL.total_seconds())
        return False

    async def _agent_pod(self, job: JobRef) -> Pod | None:
        """The Job's pod, unless its agent has ended."""
        pods = await self.cluster.pods_of(job)
        agents = [(pod, pod.container(job.container)) for pod in pods]
        running = [pod for pod, status in agents if status is None or status.state.terminated is None]
        return running[-1] if running else None

    async def _run_id_in(self, pod: Pod) -> str:
        """The run whose token is in the pod."""
        text = b""
        async with self.cluster.exec_output(
            pod.metadata.namespace,
            pod.metadata.name,
            SIDECAR_CONTAINER,
            READ_RUN_ID,
            limit=MAX_RUN_ID,
            idle_timeout=EXEC_IDLE_TIMEOUT,
        ) as pieces:
            async for piece in pieces:
                text += piece
        return text.decode(errors="replace").strip()
