"""What an agent's pod inherits from the worker's own: image, pull secrets, DNS, data volume, Secrets, references."""

from dataclasses import dataclass

from temporalio import activity

from agent_runs.contracts.messages import IntrospectPod, PodProfile
from agent_runs.job.pod_profile import Inheritance, PodOverrides, agent_profile
from agent_runs.kube.port import Cluster


@dataclass(frozen=True)
class IntrospectPodActivity:
    """Reads the worker's own pod anew for every run, so that a changed pod needs no restart of the worker."""

    cluster: Cluster
    overrides: PodOverrides
    inheritance: Inheritance

    @activity.defn
    async def introspect_pod(self, input: IntrospectPod) -> PodProfile:
        """Returns what this run's pod inherits.

        Raises:
            PodIntrospectionFailed: the worker runs outside a pod, and neither settings nor agent name an image; or its
                pod has several containers, none of which is called `worker`.
            ClusterUnavailable: the API server refused or timed out; retried.
            ClusterForbidden: the ServiceAccount may not read its own pod.
        """
        own = await self.cluster.own_pod()
        return agent_profile(own, input.config, self.overrides, self.inheritance, home=self.cluster.namespace)
