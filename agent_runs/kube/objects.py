"""What we read of Kubernetes' objects, as small models of our own.

The official client's generated models are strict about replies and slow to build, so replies are decoded straight
from JSON into these. Everything has a default, unknown fields are ignored, and a JSON null counts as absent: an API
server, a proxy or an old version may leave out anything. Whoever decides checks what the decision needs.

Source of the shapes: kubernetes.io API reference, core/v1 and batch/v1.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeVar

import msgspec

from agent_runs.contracts.pod import AGENT_CONTAINER, SIDECAR_CONTAINER

Manifest = Mapping[str, Any]
"""An object as it is created."""

_SCALE: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")


class ApiObject(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of all models here: camelCase on the wire, snake_case in Python."""


class OwnerReference(ApiObject, frozen=True):
    """The owner of an object, with which the garbage collector deletes it."""

    name: str = ""
    uid: str = ""


class Metadata(ApiObject, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class Waiting(ApiObject, frozen=True):
    reason: str = ""
    message: str = ""


class Running(ApiObject, frozen=True):
    started_at: datetime | None = None


class Terminated(ApiObject, frozen=True):
    """A container that ended. `exit_code` None means that the status has none, which is never a success."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    container_id: str = msgspec.field(name="containerID", default="")


class ContainerState(ApiObject, frozen=True):
    """At most one of the three is set; none means that the kubelet has not reported yet."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(ApiObject, frozen=True):
    """One container as its kubelet last reported it."""

    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    ready: bool = False
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class Condition(ApiObject, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None

    @property
    def holds(self) -> bool:
        """Whether the condition is true; `Unknown` is not."""
        return self.status == "True"


class Resources(ApiObject, frozen=True):
    """What a container may use at most: quantities by resource."""

    limits: dict[str, str] = {}


class Container(ApiObject, frozen=True):
    """One container as its pod declares it, with what a LimitRange has added."""

    name: str = ""
    resources: Resources = Resources()


class PodSpec(ApiObject, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()


class PodStatus(ApiObject, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiObject, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def container(self, name: str) -> ContainerStatus | None:
        """Return the status of one of its main containers, None while there is none."""
        return next((each for each in self.status.container_statuses if each.name == name), None)

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type, None while there is none."""
        return next((each for each in self.status.conditions if each.type == kind), None)


class JobStatus(ApiObject, frozen=True):
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class JobSpec(ApiObject, frozen=True):
    """What a Job is to do; `suspend` is an admission controller's, for we never set it."""

    suspend: bool = False


class Job(ApiObject, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def success(self) -> Condition | None:
        """`SuccessCriteriaMet` since Kubernetes 1.31; `Complete` follows it once no pod runs or terminates."""
        return self.condition("Complete") or self.condition("SuccessCriteriaMet")

    @property
    def failure(self) -> Condition | None:
        """`FailureTarget` since Kubernetes 1.31; `Failed` follows it once no pod runs or terminates."""
        return self.condition("Failed") or self.condition("FailureTarget")

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type if it holds, else None."""
        return next((each for each in self.status.conditions if each.type == kind and each.holds), None)


class JobList(ApiObject, frozen=True):
    items: tuple[Job, ...] = ()


class DeploymentSpec(ApiObject, frozen=True):
    replicas: int = 1


class DeploymentStatus(ApiObject, frozen=True):
    ready_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(ApiObject, frozen=True):
    metadata: Metadata = Metadata()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type if it holds, else None."""
        return next((each for each in self.status.conditions if each.type == kind and each.holds), None)


class DeploymentList(ApiObject, frozen=True):
    items: tuple[Deployment, ...] = ()


class InvolvedObject(ApiObject, frozen=True):
    uid: str = ""


class Event(ApiObject, frozen=True):
    """One event. Some failures (mounts, quota, admission) are reported nowhere else."""

    metadata: Metadata = Metadata()
    reason: str = ""
    message: str = ""
    involved_object: InvolvedObject = InvolvedObject()
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def when(self) -> datetime | None:
        """The time of the last occurrence, by the reporter's clock."""
        return self.last_timestamp or self.event_time or self.first_timestamp or self.metadata.creation_timestamp


class PartialObjectMetadata(ApiObject, frozen=True):
    """The metadata of any object (a Secret, a claim): never its content."""

    metadata: Metadata = Metadata()


class ClaimSpec(ApiObject, frozen=True):
    """What of a claim decides where its pods may run."""

    access_modes: tuple[str, ...] = ()


class Claim(ApiObject, frozen=True):
    metadata: Metadata = Metadata()
    spec: ClaimSpec = ClaimSpec()


class ListMetadata(ApiObject, frozen=True):
    """The version from which a watch continues."""

    resource_version: str = ""


class PodList(ApiObject, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[Pod, ...] = ()


class RawList(ApiObject, frozen=True):
    """A page of any kind, its items still to be decoded one by one."""

    metadata: ListMetadata = ListMetadata()
    items: tuple[msgspec.Raw, ...] = ()


class EventList(ApiObject, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[Event, ...] = ()


class Status(ApiObject, frozen=True):
    """The API server's answer when it refuses. Only `reason` and `message` ever leave the client."""

    reason: str = ""
    message: str = ""
    code: int = 0


class WatchEvent(ApiObject, frozen=True):
    """One line of a watch. `object` is decoded by its type."""

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class AccessStatus(ApiObject, frozen=True):
    allowed: bool = False


class AccessReview(ApiObject, frozen=True):
    status: AccessStatus = AccessStatus()


class Version(ApiObject, frozen=True):
    git_version: str = ""


Model = TypeVar("Model", bound=ApiObject)


class InvalidReply(ValueError):
    """A reply is not the JSON object it should be."""


def decode(reply: bytes, model: type[Model]) -> Model:
    """Decode `reply` as `model`.

    Nulls are rare, so they are dropped only when the strict decoding fails.

    Raises:
        InvalidReply: not JSON, or a field of another type than Kubernetes documents. Does not quote the reply.
    """
    try:
        return msgspec.json.decode(reply, type=model)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("the reply is not JSON") from None
    try:
        return msgspec.json.decode(msgspec.json.encode(_without_nulls(msgspec.json.decode(reply))), type=model)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidReply(f"the reply is not a {model.__name__}: {str(error)[:200]}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value if each is not None]
    return value


def container_started(pod: Pod, container: str) -> bool:
    """Return whether this container runs or has run."""
    status = pod.container(container)
    return status is not None and (status.state.running is not None or status.state.terminated is not None)


def container_ended(pod: Pod, container: str) -> bool:
    """Return whether this container has ended; others of the pod may still run."""
    status = pod.container(container)
    return status is not None and status.state.terminated is not None


def work_ended(pod: Pod) -> bool:
    """Return whether agent and sidecar have ended. A container that an admission controller has injected may run on."""
    ours = [status for status in pod.status.container_statuses if status.name in {AGENT_CONTAINER, SIDECAR_CONTAINER}]
    return has_ended(pod) or (bool(ours) and all(status.state.terminated is not None for status in ours))


def has_ended(pod: Pod) -> bool:
    """Return whether every container has ended, or an init container has failed for good.

    The phase shows the first a second late, when the sandbox has ended. Only the phase shows the second: an init
    container that restarts also fails, while the pod works. Source: 1.37, observed; kubernetes.io, Sidecar Containers.
    """
    ends = [status.state.terminated for status in pod.status.container_statuses]
    inits = [status.state.terminated for status in pod.status.init_container_statuses]
    init_failed = pod.status.phase == "Failed" and any(end is not None and end.exit_code != 0 for end in inits)
    return init_failed or (bool(ends) and None not in ends)


def amount(quantity: str) -> Decimal:
    """Return the number that a quantity stands for: cores, or bytes.

    Raises:
        ValueError: not a quantity.

    Source: kubernetes.io, resource.Quantity.
    """
    match = _QUANTITY.fullmatch(quantity.strip())
    if match is None or match[2] not in _SCALE:
        raise ValueError("not a Kubernetes quantity")
    return Decimal(match[1]) * _SCALE[match[2]]
