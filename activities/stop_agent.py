"""Asks the agent to end: SIGTERM by its kubelet, so that log, exit code and session are kept."""

from dataclasses import dataclass

from temporalio import activity

from agent_runs.contracts.messages import StopAgent
from agent_runs.kube.client import Cluster


@dataclass(frozen=True)
class StopAgentActivity:
    """Only asks. `stream_logs` shows when the agent has ended, and `finish` makes sure of it."""

    cluster: Cluster

    @activity.defn
    async def stop_agent(self, input: StopAgent) -> bool:
        """Lets the kubelet end the pod within the pod's own grace. False when the pod is already deleted.

        Raises:
            ClusterUnavailable: the API server refused or timed out; retried until the grace is over.
        """
        pod = input.pod
        return await self.cluster.stop_pod(pod.namespace, pod.name, pod.uid)
