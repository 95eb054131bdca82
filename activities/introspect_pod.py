"""What an agent's pod inherits from the worker's own: image, pull secrets, DNS, data volume, Secrets, references."""

from dataclasses import dataclass

from temporalio import activity

from cluster.introspection import profile
from cluster.port import Cluster
from contracts.errors import PodIntrospectionFailed
from contracts.messages import IntrospectPod, PodProfile


@dataclass(frozen=True)
class PodOverrides:
    """What settings say instead of the worker's own pod; all that there is when the worker runs outside a pod."""

    image: str | None = None
    namespace: str | None = None
    data_claim: str | None = None


@dataclass(frozen=True)
class PodIntrospection:
    """Reads the worker's own pod, freshly for every run: a new image needs no restart of the worker."""

    cluster: Cluster
    overrides: PodOverrides

    @activity.defn
    async def introspect_pod(self, order: IntrospectPod) -> PodProfile:
        """What this run's pod inherits.

        Raises:
            PodIntrospectionFailed: outside a pod, and neither settings nor the agent name an image.
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
            ClusterForbidden: the ServiceAccount may not read its own pod.
        """
        own = await self.cluster.own_pod()
        found = profile(own) if own else self._without_pod(order)
        wanted = {
            "namespace": order.config.namespace or self.overrides.namespace,
            "image": order.config.image or self.overrides.image,
            "data_claim": self.overrides.data_claim,
        }
        return found.model_copy(update={name: value for name, value in wanted.items() if value})

    def _without_pod(self, order: IntrospectPod) -> PodProfile:
        image = order.config.image or self.overrides.image
        if not image:
            raise PodIntrospectionFailed(
                "the worker runs outside a pod and no image is set: set AGENT_RUNS_IMAGE, or `image` of this agent"
            )
        return PodProfile(namespace=self.overrides.namespace or self.cluster.namespace, image=image)
