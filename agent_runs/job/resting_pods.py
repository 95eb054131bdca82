"""Pods that rest after a run, and the claim of one for the agent's next run.

A claim has two halves. An annotation of the Job names the claimer, and of several that write it for the same version of
the Job one succeeds. Then the pod's sidecar gets the turn by `exec`, with the prompt and the tokens on standard input;
it takes one turn at a time, answers a repeated claim as before, and refuses one for another pod than it is. So whatever
is cut or killed in between, a claim either was never answered with yes, or is repeated by the same attempt, or ends the
attempt as a lost pod: no prompt goes to two pods within one attempt. Only the sidecar knows whether it has a prompt
whose answer was cut, so a node that is away then is waited for.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from agent_runs.contracts.errors import ClusterForbidden, PodLost
from agent_runs.contracts.messages import Claimed, CreateJob, JobRef
from agent_runs.contracts.pod import AGENT_CONTAINER, CONTROL_DIRECTORY, SIDECAR_CONTAINER, SIDECAR_FILE
from agent_runs.job.manifest import JobPlan
from agent_runs.kube.client import Cluster
from agent_runs.kube.exec import MAX_STDIN_BYTES
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Job, Pod, container_ended
from agent_runs.kube.ownership import CLAIMED_BY, RESTS_SINCE, TTL, job_ref
from agent_runs.pod.sidecar.commands import NOT_REACHED

CLAIM_COMMAND: Final = ("python3", "-I", "-S", SIDECAR_FILE, "claim", CONTROL_DIRECTORY)
TELL_COMMAND: Final = (*CLAIM_COMMAND[:4], "tell", CONTROL_DIRECTORY)
ROTATE_COMMAND: Final = (*CLAIM_COMMAND[:4], "rotate", CONTROL_DIRECTORY)
MAX_ANSWER: Final = 64 * 1024
ANSWER_TIMEOUT: Final = timedelta(seconds=10)
TRIES: Final = 5
NODE_RESTART: Final = timedelta(seconds=30)
"""How long a node may be away. A kubelet needs 6 s or more to start, and without it no pod of the agent ends, for which
a new Job would have to wait."""
NODE_TIMEOUT: Final = timedelta(minutes=2)
"""The same for one whose pod may have got a request."""
NODE_PAUSE: Final = timedelta(seconds=1)
"""Between tries while it is away."""
LOST: Final = "the pod of Job {} rested, and was lost when it was given this run"
NOT_ASKED: Final = "the pod of Job {} rested, and was not used: {}"
RELEASED_BY: Final = "{}: released"
"""Written as the claimer of a pod that ends to make place: no attempt's claim looks like it."""
RETRY_PAUSE: Final = timedelta(milliseconds=300)


class NotAsked(Exception):
    """The pod has certainly not got a request. The message is for people."""


class Answer(BaseModel):
    """What the sidecar says to a request.

    Attributes:
        first: number of the first frame of the turn.
        at: seconds since 1970, by the node's clock.
        delivered: the agent has the message.
        reason: why it refuses.
    """

    accepted: bool
    first: int = 0
    at: float = 0
    delivered: bool = False
    reason: str = ""


def rests(job: Job) -> bool:
    """Whether the Job's pod may rest: it has, when it was last seen, and nobody has claimed it since."""
    ended = job.success is not None or job.failure is not None
    return RESTS_SINCE in job.metadata.annotations and not ended and job.metadata.deletion_timestamp is None


def claimed_by(jobs: Iterable[Job], attempt: str) -> Job | None:
    """The Job whose pod this attempt has claimed."""
    return next((job for job in jobs if job.metadata.annotations.get(CLAIMED_BY) == attempt), None)


@dataclass(frozen=True)
class RestingPods:
    """Claims pods that rest.

    Attributes:
        prompt: composes the prompt of an attempt.
    """

    cluster: Cluster
    prompt: Callable[[CreateJob], Awaitable[str]]

    async def claim(self, input: CreateJob, plan: JobPlan) -> JobRef | None:
        """The Job of a pod that rested and now works for this attempt; None: there is none that can.

        Raises:
            NotAsked: there is one, and it could not be asked.
            PodLost: the claim may have reached a pod that is lost now; nothing else may be created for this attempt.
            ClusterUnavailable: the API server refused or timed out; `again` continues.
        """
        if plan.claim is None or input.attempt.attempt > 1:
            return None
        jobs = await self.cluster.jobs_of_agent(input.prompt.namespace, input.attempt.run.agent_id)
        for job in filter(rests, jobs):
            changes = {CLAIMED_BY: input.attempt.transcript, RESTS_SINCE: None}
            meta = job.metadata
            place = (meta.namespace, meta.name, meta.uid, meta.resource_version)
            taken = await self.cluster.annotate_job(*place, changes, spec={TTL: plan.job["spec"].get(TTL)})
            if taken is not None:
                return await self._hand_over(input, plan, taken)
        return None

    async def again(self, input: CreateJob, plan: Callable[[], Awaitable[JobPlan]]) -> JobRef | None:
        """The same after an earlier activity attempt, which may have stopped anywhere. None: it has claimed nothing."""
        jobs = await self.cluster.jobs_of_agent(input.prompt.namespace, input.attempt.run.agent_id)
        job = claimed_by(jobs, input.attempt.transcript)
        return await self._hand_over(input, await plan(), job, repeated=True) if job is not None else None

    async def _hand_over(self, input: CreateJob, plan: JobPlan, job: Job, *, repeated: bool = False) -> JobRef | None:
        """Gives the turn to the pod's sidecar; None if it refuses, and has not taken it when it was asked before.

        Raises:
            NotAsked: it has certainly not taken it.
            PodLost: nobody knows.
        """
        ref = job_ref(job)
        request = {"id": input.attempt.transcript, **(plan.claim or {})}
        request["turn"] = {**request["turn"], "text": await self.prompt(input)}
        answer = await ask(self.cluster, ref, CLAIM_COMMAND, request, delivered=repeated, rests=not repeated)
        if not answer.accepted:
            return None
        at = datetime.fromtimestamp(answer.at, UTC)
        return ref.model_copy(update={"claimed": Claimed(first=answer.first, at=at), "warnings": plan.warnings})


async def release_resting_pod(cluster: Cluster, namespace: str, attempt: str) -> str | None:
    """End the pod that has rested longest, whoever's it is: its place is needed.

    Of this and a claim, one succeeds. Returns the name of its Job; None: no pod rests.

    Args:
        attempt: the one that needs a place.

    Raises:
        ClusterForbidden: the worker may not list or patch Jobs.
        ClusterUnavailable: the API server refused or timed out.
    """
    marks = {RESTS_SINCE: None, CLAIMED_BY: RELEASED_BY.format(attempt)}
    jobs = filter(rests, await cluster.jobs_of_all_agents(namespace))
    for job in sorted(jobs, key=lambda job: job.metadata.annotations[RESTS_SINCE]):
        meta = job.metadata
        if await cluster.annotate_job(namespace, meta.name, meta.uid, meta.resource_version, marks):
            await cluster.delete_job(namespace, meta.name, meta.uid)
            return meta.name
    return None


async def rotate(cluster: Cluster, job: JobRef, attempt: str, tokens: dict[str, Any]) -> bool:
    """Give the pod's sidecar other tokens for the turn that this attempt has claimed; False: it did not take them.

    Raises:
        PodLost: it does not answer.
        ClusterUnavailable: the API server refused or timed out.
    """
    try:
        return (await ask(cluster, job, ROTATE_COMMAND, {"id": attempt, "tokens": tokens})).accepted
    except NotAsked:
        return False


async def ask(
    cluster: Cluster,
    job: JobRef,
    command: tuple[str, ...],
    request: dict[str, Any],
    *,
    delivered: bool = False,
    rests: bool = False,
) -> Answer:
    """Return the sidecar's answer.

    A node that is away is waited for: its containers work on meanwhile.

    Args:
        delivered: the pod may have got the request before.
        rests: the pod's agent has to be there, too.

    Raises:
        NotAsked: the pod has certainly not got the request.
        PodLost: it may have, and does not answer.
    """
    content = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogateescape")
    if len(content) > MAX_STDIN_BYTES:  # a larger prompt gets a Job of its own
        raise NotAsked(NOT_ASKED.format(job.name, f"the request has {len(content)} bytes"))
    tries, began, why = 0, monotonic(), "it has ended"
    while tries < TRIES and (pod := await _pod(cluster, job)) is not None:
        if rests and not delivered and container_ended(pod, AGENT_CONTAINER):
            break
        try:
            return await _answer(cluster, pod, command, content)
        except (ExecFailed, ValidationError) as failure:
            refusal = failure.status if isinstance(failure, ExecFailed) and failure.exit_code is None else 0
            unread = isinstance(failure, ExecFailed) and failure.exit_code == NOT_REACHED
            is_away = refusal >= 500
            who = "its node" if is_away else "its container" if refusal else "its sidecar"
            why = f"{who} does not answer, {failure}"
        except ClusterForbidden as forbidden:
            why = forbidden.message
            break
        delivered = delivered or not (refusal or unread)
        if is_away and monotonic() - began >= (NODE_TIMEOUT if delivered else NODE_RESTART).total_seconds():
            break
        tries += not is_away
        await asyncio.sleep((NODE_PAUSE if is_away else RETRY_PAUSE).total_seconds())
    if delivered:
        raise PodLost(LOST.format(job.name))
    raise NotAsked(NOT_ASKED.format(job.name, why))


async def _answer(cluster: Cluster, pod: Pod, command: tuple[str, ...], content: bytes) -> Answer:
    """One try.

    Raises:
        ExecFailed: with another status than 0 and without an exit code the sidecar has not got the content.
        ValidationError: what came back is no answer.
    """
    text = await cluster.exec_input(
        pod.metadata.namespace,
        pod.metadata.name,
        SIDECAR_CONTAINER,
        command,
        content,
        limit=MAX_ANSWER,
        idle_timeout=ANSWER_TIMEOUT,
    )
    return Answer.model_validate_json(text)


async def _pod(cluster: Cluster, job: JobRef) -> Pod | None:
    """Return the pod whose sidecar can answer, also after the end of its agent: it knows what it has taken."""
    pods = [pod for pod in await cluster.pods_of(job) if pod.metadata.deletion_timestamp is None]
    running = [
        pod
        for pod in pods
        if (status := pod.container(SIDECAR_CONTAINER)) is not None and status.state.running is not None
    ]
    return running[-1] if running else None
