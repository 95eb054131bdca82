"""What an agent's pod inherits from the worker's own: image, pull secrets, DNS, data volume, Secrets, references."""

from dataclasses import dataclass

from temporalio import activity

from agent_runs.contracts.errors import PodIntrospectionFailed
from agent_runs.contracts.messages import IntrospectPod, PodProfile
from agent_runs.job.pod_profile import Inheritance, pod_profile
from agent_runs.kube.port import Cluster


@dataclass(frozen=True)
class PodOverrides:
    """Settings that override the worker's own pod; the only source when the worker runs outside a pod."""

    image: str | None = None
    namespace: str | None = None
    data_claim: str | None = None


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
        profile = pod_profile(own, self.inheritance) if own else self._profile_outside_pod(input)
        overrides = {
            "namespace": input.config.namespace or self.overrides.namespace,
            "image": input.config.image or self.overrides.image,
            "data_claim": self.overrides.data_claim,
        }
        return profile.model_copy(update={name: value for name, value in overrides.items() if value})

    def _profile_outside_pod(self, input: IntrospectPod) -> PodProfile:
        image = input.config.image or self.overrides.image
        if not image:
            raise PodIntrospectionFailed(
                "the worker runs outside a pod and no image is set: set AGENT_RUNS_IMAGE or the agent's `image`"
            )
        return PodProfile(namespace=self.overrides.namespace or self.cluster.namespace, image=image)
