"""Asks the agent to end: SIGTERM by its kubelet, so that its log, its exit code and its session stay."""

from dataclasses import dataclass

from temporalio import activity

from cluster.port import Cluster
from contracts.messages import StopAgent


@dataclass(frozen=True)
class Stopping:
    """Only asks. Whether the agent has ended is told by its stream, and made sure of by `finish`."""

    cluster: Cluster

    @activity.defn
    async def stop_agent(self, order: StopAgent) -> bool:
        """Lets the kubelet end the pod within the pod's own grace. False when the pod is gone already.

        Raises:
            ClusterUnavailable: the API server refused or timed out; Temporal tries again until the grace is over.
        """
        pod = order.pod
        return await self.cluster.stop_pod(pod.namespace, pod.name, pod.uid)
