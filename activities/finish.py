"""Deletes the Job, pods and Secrets of an attempt, after its output is parsed."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Final

from temporalio import activity

from agent_runs.contracts.errors import ClusterForbidden
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.messages import EndJob, EndUnreportedJob, Finish, Finished, FinishProgress, JobRef, KeepJob
from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.contracts.pod import SIDECAR_CONTAINER
from agent_runs.job.resting_pods import claimed_by
from agent_runs.job.secrets import TOKEN_KEYS
from agent_runs.kube.client import Cluster
from agent_runs.kube.diagnosis import ContainerEnded, diagnose, termination_cause
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Pod, container_ended, container_started, has_ended, work_ended
from agent_runs.kube.ownership import CLAIMED_BY, RESTS_SINCE, TTL, belongs_to, job_ref
from agent_runs.kube.watch import snapshots
from agent_runs.logs.source import ACKNOWLEDGE_COMMAND

ENDING_HEARTBEAT_INTERVAL: Final = timedelta(seconds=2)
"""Between heartbeats while pods end."""
SIDECAR_GRACE: Final = timedelta(seconds=10)
"""How long a pod's other containers may take to end by themselves after the agent has ended."""
STATUS_TIMEOUT: Final = timedelta(seconds=10)
"""How long the status of a container whose process has ended may take: kubelets report an end a second or more late."""
UNREPORTED_END_TIMEOUT: Final = timedelta(seconds=30)
"""How long after the grace of a stopped pod its containers' ends may take to be reported. A lost node never does."""
REASON_LIMIT: Final = 100
"""Characters of Kubernetes' reason for an end."""
UNKNOWN_ENDS: Final = frozenset({None, "Unknown", "ContainerStatusUnknown"})
"""Reasons that say nothing about an end."""
MAX_ANNOTATION_TRIES: Final = 5
"""The Job's controller may change it between a read and a patch."""
EXEC_IDLE_TIMEOUT: Final = timedelta(seconds=5)
EXEC_LIMIT: Final = 1024
"""Bytes of what an acknowledgement may print."""


@dataclass(frozen=True)
class FinishActivity:
    """Deletes what one attempt created. Every deletion may be repeated."""

    cluster: Cluster

    @activity.defn
    async def finish(self, input: Finish) -> Finished:
        """Deletes Job, pods and Secrets, and waits until no pod runs.

        The Job owns its Secrets, so Kubernetes deletes them with it; a claimed Job does not own the prompt. One that
        `create_job` has not reported is found by the attempt's name and labels, and so are its Secrets.

        A retained Job keeps its log; its agent is stopped, and the Secrets with its environment and token are deleted.
        If the end of its containers is never reported, it is deleted: only then is it known that none runs.

        Nothing is deleted of a Job whose pod rests: it only forgets the run's tokens.

        Raises:
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        attempt = input.attempt
        if isinstance(input, EndUnreportedJob):
            namespace = input.namespace or self.cluster.namespace
            job = await self._unreported_job(attempt, namespace)
            owned_by_nobody = {attempt.run_secret_name, attempt.prompt_secret_name}
        else:
            if isinstance(input, KeepJob) and await self._keep(input.job, retain=input.retain):
                return Finished(agent_started=True, kept=True)
            job = input.job
            namespace = job.namespace
            owned_by_nobody = {attempt.prompt_secret_name} if job.claimed is not None else set()
        ended = await self._end_job(job, input) if job else Finished()
        deleted = ended.deleted
        for name in owned_by_nobody | ({attempt.run_secret_name} if input.retain else set()):
            deleted |= await self.cluster.delete_secret(namespace, name)
        return ended.model_copy(update={"deleted": deleted})

    async def _unreported_job(self, attempt: AttemptKey, namespace: str) -> JobRef | None:
        """This attempt's Job, if `create_job` failed or was cancelled after it had created or claimed one."""
        job = await self.cluster.read_job(namespace, attempt.job_name)
        if job is not None and belongs_to(job.metadata, attempt):
            return job_ref(job)
        jobs = await self.cluster.jobs_of_agent(namespace, attempt.run.agent_id)
        claimed = claimed_by(jobs, attempt.transcript)
        return job_ref(claimed) if claimed is not None else None

    async def _keep(self, job: JobRef, *, retain: bool) -> bool:
        """Keeps a Job whose pod rests; False: it does not any more, so it is to be deleted.

        Its sidecar ends by itself when nobody claims it, and Kubernetes deletes the Job at once, however that comes,
        unless it is retained.
        """
        pods = [pod for pod in await self.cluster.pods_of(job) if not has_ended(pod)]
        if len(pods) != 1:
            return False
        try:
            await self._exec_acknowledge(pods[0], job.namespace)
        except (ExecFailed, ClusterForbidden) as refusal:
            activity.logger.info("the pod cannot be kept: %s", refusal)
            return False
        await self.cluster.change_secret(job.namespace, f"{job.name}-run", dict.fromkeys(TOKEN_KEYS, b""))
        for _ in range(MAX_ANNOTATION_TRIES):
            now = await self.cluster.read_job(job.namespace, job.name)
            if now is None or now.metadata.uid != job.uid:
                return False
            marks = {RESTS_SINCE: datetime.now(UTC).isoformat(timespec="seconds"), CLAIMED_BY: None}
            meta = now.metadata
            place = (job.namespace, job.name, job.uid, meta.resource_version)
            if await self.cluster.annotate_job(*place, marks, spec=None if retain else {TTL: 0}):
                return True
        return False

    async def _end_job(self, job: JobRef, input: Finish) -> Finished:
        """Deletes the Job and waits until no pod of it runs: an agent never runs twice at a time.

        Its pods are read first, because those that have ended vanish with the Job, and with them whether the agent had
        started.
        """
        stopped: dict[str, float] = {}
        acknowledged: set[str] = set()
        seen = _seen_before()
        async with (
            self.cluster.watch_pods(job) as states,
            aclosing(snapshots(states, ENDING_HEARTBEAT_INTERVAL)) as repeated,
        ):
            pods = await anext(repeated)
            if isinstance(input, EndJob) and input.confirm:
                pods = await _until_reported(pods, repeated, job.container, seen)
                contradiction = seen.contradiction or _contradiction(pods or (), job)
                seen = seen.model_copy(update={"contradiction": contradiction})
            seen = _with_start(seen, pods, job.container)
            activity.heartbeat(seen)
            deleted = False if input.retain else await self.cluster.delete_job(job.namespace, job.name, job.uid)
            began = monotonic()
            while (active := [pod for pod in pods or () if not has_ended(pod)]) or pods is None:
                if input.retain and not deleted and _is_unreported(stopped.values(), input.grace):
                    activity.logger.warning("the end of its containers is not reported, so it is deleted: %s", job.name)
                    deleted = await self.cluster.delete_job(job.namespace, job.name, job.uid)
                may_end_itself = monotonic() - began < SIDECAR_GRACE.total_seconds()
                for pod in active:
                    uid = pod.metadata.uid
                    if uid in stopped:
                        continue
                    if may_end_itself and container_ended(pod, job.container) and not work_ended(pod):
                        if input.retain and uid not in acknowledged and await self._acknowledge(pod, job.namespace):
                            acknowledged.add(uid)
                        continue
                    await self._stop_pod(pod, job.namespace, input)
                    stopped[uid] = monotonic()
                if pods and all(pod.metadata.uid in stopped and work_ended(pod) for pod in active):
                    break  # Kubernetes ends what was injected
                activity.heartbeat(seen.model_copy(update={"waits_for": f"the end of {len(active)} pod(s)"}))
                pods = await anext(repeated)
                seen = _with_start(seen, pods, job.container)
        return Finished(deleted=deleted, agent_started=seen.agent_started, contradiction=seen.contradiction)

    async def _acknowledge(self, pod: Pod, namespace: str) -> bool:
        """Lets the sidecar of a retained pod end by itself, so that its Job completes. False: another try may help."""
        try:
            await self._exec_acknowledge(pod, namespace)
        except ExecFailed as failure:  # it has ended by now, or the pod is stopped after its grace
            activity.logger.info("the end was not acknowledged to the sidecar: %s", failure)
            return False
        except ClusterForbidden:  # the pod is stopped after its grace
            pass
        return True

    async def _exec_acknowledge(self, pod: Pod, namespace: str) -> None:
        async with self.cluster.exec_output(
            namespace,
            pod.metadata.name,
            SIDECAR_CONTAINER,
            ACKNOWLEDGE_COMMAND,
            limit=EXEC_LIMIT,
            idle_timeout=EXEC_IDLE_TIMEOUT,
        ) as pieces:
            async for _ in pieces:
                pass

    async def _stop_pod(self, pod: Pod, namespace: str, input: Finish) -> None:
        """SIGTERM and the grace; a retained pod keeps its log, unless it has been shown to ignore SIGTERM."""
        if input.retain and input.grace:
            await self.cluster.stop_pod(namespace, pod.metadata.name, pod.metadata.uid)
        else:
            await self.cluster.delete_pod(namespace, pod.metadata.name, pod.metadata.uid, input.grace)


def _seen_before() -> FinishProgress:
    """What an earlier activity attempt has seen of pods that may be gone."""
    with suppress(ValueError, IndexError):
        return FinishProgress.model_validate(activity.info().heartbeat_details[0])
    return FinishProgress()


def _with_start(seen: FinishProgress, pods: list[Pod] | None, container: str) -> FinishProgress:
    """What was seen, with whether an agent of these pods has started."""
    started = seen.agent_started or any(container_started(pod, container) for pod in pods or ())
    return seen.model_copy(update={"agent_started": started})


def _is_unreported(stopped: Iterable[float], grace: timedelta) -> bool:
    """Whether a pod was stopped so long ago that its containers have ended, although no status says so."""
    return any(monotonic() - at > (grace + UNREPORTED_END_TIMEOUT).total_seconds() for at in stopped)


# what the container's status says of an agent whose process has ended


async def _until_reported(
    pods: list[Pod] | None, repeated: AsyncIterator[list[Pod] | None], container: str, seen: FinishProgress
) -> list[Pod] | None:
    """The pods once the status of each shows how its agent ended, or none is left, or the time for that is over."""
    last_look = monotonic() + (STATUS_TIMEOUT - ENDING_HEARTBEAT_INTERVAL).total_seconds()
    while (pods is None or not all(container_ended(pod, container) for pod in pods)) and monotonic() <= last_look:
        activity.heartbeat(seen.model_copy(update={"waits_for": "the status of the agent's container"}))
        pods = await anext(repeated)
    return pods


def _contradiction(pods: Sequence[Pod], job: JobRef) -> str | None:
    """What a status says, if that is not an end with exit code 0. It has Kubernetes' own words only."""
    ends = [(pod, end) for pod in pods if (end := _known_end(pod, job.container)) is not None]
    if not ends:
        activity.logger.warning("the status of the agent's container was not seen before its deletion: %s", job.name)
    for pod, end in ends:
        if end.exit_code != 0 or termination_cause(end) is not None:
            said = f"{_exit_code(pod, job.container)}, {(end.reason or 'no reason')[:REASON_LIMIT]}"
            return f"the container's status says: {said}, although its process had ended with exit code 0"
    return None


def _known_end(pod: Pod, container: str) -> ContainerEnd | None:
    """How the agent's container ended; None also when its kubelet has lost sight of that."""
    status = diagnose(pod, None, container=container, job_was_read=False)
    if not isinstance(status, ContainerEnded) or (status.end.exit_code is None and status.end.reason in UNKNOWN_ENDS):
        return None
    return status.end


def _exit_code(pod: Pod, container: str) -> str:
    """As the status has it; a diagnosis leaves out one that cannot be trusted, such as 0 with `OOMKilled`."""
    status = pod.container(container)
    ended = status.state.terminated if status is not None else None
    return "no exit code" if ended is None or ended.exit_code is None else f"exit code {ended.exit_code}"
