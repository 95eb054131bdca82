"""Lets a running agent speak to Paperclip for a later run: exchanges the token that the proxy in its pod uses."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio import activity

from cluster.api_proxy import RUN_ID
from cluster.manifest import PROXY_CONTAINER, TOKENS
from cluster.objects import Pod
from cluster.ownership import SPEAKS_FOR
from cluster.port import Cluster, ExecFailed
from cluster.secrets import token_files
from contracts.errors import ClusterForbidden, SealedFieldUnreadable
from contracts.messages import JobRef, RotateToken
from paperclip.proxied import TOOLS_TOKEN
from paperclip.sealing import Opener

LOOKS: Final = 10
PAUSE: Final = timedelta(seconds=1)
"""Between looks whether the kubelet has brought the new token."""
IDLE: Final = timedelta(seconds=5)
SHOW: Final = ("python3", "-I", "-c", "import sys; print(open(sys.argv[1]).read())", f"{TOKENS}/{RUN_ID}")
"""What the proxy's image can do for certain; one with nothing but Python has no `cat`."""
SHOWN: Final = 1024
"""Bytes of a run id at the most."""


@dataclass(frozen=True)
class TokenRotation:
    """Opens sealed secrets, as `create_job` does; they go straight into a Secret."""

    cluster: Cluster
    opener: Opener

    @activity.defn
    async def rotate_token(self, order: RotateToken) -> bool:
        """Gives the pod's proxy the token of the run that has joined. May be repeated.

        The kubelet brings a changed Secret within a minute or two; a changed annotation of the pod makes it look at
        once. True when the new one was seen in the pod, or nobody is there to use it; False when that is not known.

        Raises:
            SealedFieldUnreadable: sealed for another run or with another key, or there is no token in it.
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        joined, job = order.joined, order.job
        secrets = self.opener.secrets(joined.sealed_secrets, joined.run_id)
        if not secrets.auth_token:
            raise SealedFieldUnreadable("agent-runs.secrets: there is no token in it")
        files = token_files(secrets.run_id, secrets.auth_token, secrets.paperclip_env.get(TOOLS_TOKEN))
        if not await self.cluster.change_secret(job.namespace, order.attempt.token_secret_name, files):
            return True  # the Job is gone, and its Secrets with it
        for look in range(LOOKS):
            activity.heartbeat()
            pod = await self._pod(job)
            if pod is None or not pod.spec.node_name:
                return True
            await self.cluster.annotate_pod(
                job.namespace, pod.metadata.name, pod.metadata.uid, {SPEAKS_FOR: f"{joined.run_id}/{look}"}
            )
            seen = await self._seen(pod)
            if seen is None or seen == joined.run_id:
                return seen is not None
            await asyncio.sleep(PAUSE.total_seconds())
        return False

    async def _pod(self, job: JobRef) -> Pod | None:
        """The Job's pod, unless its agent has ended."""
        pods = await self.cluster.pods_of(job)
        agents = [(pod, pod.container(job.container)) for pod in pods]
        live = [pod for pod, status in agents if status is None or status.state.terminated is None]
        return live[-1] if live else None

    async def _seen(self, pod: Pod) -> str | None:
        """The run whose token is in the pod; None when nobody can say."""
        shown = b""
        try:
            async with self.cluster.exec_output(
                pod.metadata.namespace,
                pod.metadata.name,
                PROXY_CONTAINER,
                SHOW,
                limit=SHOWN,
                idle=IDLE,
            ) as pieces:
                async for piece in pieces:
                    shown += piece
        except (ExecFailed, ClusterForbidden):
            return None
        return shown.decode(errors="replace").strip()
