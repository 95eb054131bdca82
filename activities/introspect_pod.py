"""What an agent's pod inherits: image, pull secrets, DNS, data volume, Secrets, references.

It comes from the worker's own pod, or from Paperclip's Deployment.
"""

from dataclasses import dataclass

from temporalio import activity

from agent_runs.contracts.messages import IntrospectPod, PodProfile
from agent_runs.job.pod_profile import Inheritance, PodOverrides
from agent_runs.job.pod_source import read_profile
from agent_runs.kube.client import Cluster


@dataclass(frozen=True)
class IntrospectPodActivity:
    """Reads the pod or Deployment anew for every run, so that a change of it needs no restart of the worker."""

    cluster: Cluster
    overrides: PodOverrides
    inheritance: Inheritance

    @activity.defn
    async def introspect_pod(self, input: IntrospectPod) -> PodProfile:
        """Returns what this run's pod inherits.

        Raises:
            InvalidRequest: neither settings nor agent name an image for an agent other than OpenCode.
            PodIntrospectionFailed: the worker runs outside a pod, and neither settings nor agent name an image; or its
                pod has several containers, none of which is called `worker`; or the settings match not one Deployment,
                or a Secret that it refers to is not in the namespace of the Job.
            ClusterUnavailable: the API server refused or timed out; retried.
            ClusterForbidden: the ServiceAccount may not read its own pod, or list Deployments.
        """
        return await read_profile(self.cluster, input.config, self.overrides, self.inheritance)
