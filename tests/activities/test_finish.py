"""`finish` compares the status of an agent's container with how its process ended, before it deletes anything."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest
from temporalio.testing import ActivityEnvironment

from activities import finish
from activities.finish import FinishActivity
from agent_runs.contracts.errors import ClusterForbidden
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import Claimed, EndJob, Finished, FinishProgress, JobRef, KeepJob
from agent_runs.contracts.pod import SIDECAR_CONTAINER
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Job, Pod, decode
from agent_runs.logs.source import ACKNOWLEDGE_COMMAND

ATTEMPT = AttemptKey(run=RunKey(agent_id=str(uuid.uuid4()), company_id="co", run_id="run-1"))
JOB = JobRef(namespace="default", name=ATTEMPT.job_name, uid="job-uid")
RUNS: dict[str, Any] = {"running": {}}


def ended(code: int | None = 0, reason: str = "Completed") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


def pod(agent: dict[str, Any], sidecar: dict[str, Any] = RUNS, **status: Any) -> Pod:
    """A pod whose containers are in these states."""
    states = {JOB.container: agent, SIDECAR_CONTAINER: sidecar}
    containers = [{"name": name, "state": state} for name, state in states.items()]
    body = {
        "metadata": {"name": "pod", "namespace": "default", "uid": "pod-uid", "resourceVersion": str(uuid.uuid4())},
        "spec": {"nodeName": "node"},
        "status": {"phase": "Running", "containerStatuses": containers, **status},
    }
    return decode(msgspec.json.encode(body), Pod)


@dataclass
class FakeCluster:
    """A cluster whose pods are what the test says; a deletion or an acknowledgement ends what still runs.

    Attributes:
        states: of the Job's pods, one after the other; the last one stays.
        refusals: what the acknowledgements raise, one after the other.
        calls: what was changed, in order.
        reports_ends: False for a kubelet that never reports the end of a stopped pod's containers.
        conflicts: whether the next patches of the Job come too late, the last one first.
        secrets: that were deleted.
        stays: whether what is deleted or stopped does not end.
    """

    states: list[list[Pod]]
    refusals: list[Exception] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    heartbeats: list[FinishProgress] = field(default_factory=list)
    namespace: str = "default"
    reports_ends: bool = True
    conflicts: list[bool] = field(default_factory=lambda: [False])
    secrets: list[str] = field(default_factory=list)
    stays: bool = False
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def watch_pods(self, _job: JobRef) -> AsyncIterator[AsyncIterator[list[Pod]]]:
        yield self._watch()

    async def _watch(self) -> AsyncIterator[list[Pod]]:
        for state in self.states:
            yield state
            await asyncio.sleep(0.01)
        await self._over.wait()
        yield []
        await asyncio.Event().wait()

    async def delete_job(self, *_: object) -> bool:
        self._end("delete_job")
        return True

    async def stop_pod(self, *_: object) -> bool:
        self.calls.append("stop_pod")
        if self.reports_ends and not self.stays:
            self._over.set()
        return True

    async def delete_pod(self, *_: object) -> bool:
        self._end("delete_pod")
        return True

    async def delete_secret(self, _namespace: str, name: str) -> bool:
        self.secrets.append(name)
        return True

    async def pods_of(self, _job: JobRef) -> list[Pod]:
        return self.states[0]

    async def change_secret(self, _namespace: str, name: str, content: Mapping[str, bytes]) -> bool:
        self.calls.append(f"empty {name}" if not any(content.values()) else "change")
        return True

    async def read_job(self, *_: object) -> Job:
        metadata = {"name": JOB.name, "uid": JOB.uid, "resourceVersion": str(len(self.calls))}
        return decode(msgspec.json.encode({"metadata": metadata}), Job)

    async def annotate_job(self, *_: object, spec: Mapping[str, int | None] | None) -> Job | None:
        self.calls.append(f"annotate {spec}")
        return None if self.conflicts.pop() else await self.read_job()

    @asynccontextmanager
    async def exec_output(
        self, _namespace: str, _pod: str, container: str, argv: Sequence[str], **_: object
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (container, argv) == (SIDECAR_CONTAINER, ACKNOWLEDGE_COMMAND)
        self.calls.append("acknowledge")
        if self.refusals:
            raise self.refusals.pop(0)
        yield self._acknowledged()

    async def _acknowledged(self) -> AsyncIterator[bytes]:
        self._over.set()
        yield b"{}"

    def _end(self, call: str) -> None:
        self.calls.append(call)
        if not self.stays:
            self._over.set()


async def run(
    cluster: FakeCluster,
    kind: type[EndJob | KeepJob] = EndJob,
    *,
    earlier: FinishProgress | None = None,
    **input: Any,
) -> Finished:
    """Runs the activity; `earlier` is the last heartbeat of an activity attempt before it."""
    environment = ActivityEnvironment()
    details = [earlier.model_dump(mode="json")] if earlier else []
    environment.info = replace(environment.info, heartbeat_details=details)

    def note(progress: FinishProgress) -> None:
        cluster.heartbeats.append(progress)
        if progress.waits_for and not cluster.calls:
            cluster.calls.append("heartbeat")

    environment.on_heartbeat = note
    activity = FinishActivity(cast("Cluster", cluster)).finish
    async with asyncio.timeout(60):
        finished: Finished = await environment.run(activity, kind(attempt=ATTEMPT, **{"job": JOB, **input}))
    return finished


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "ENDING_HEARTBEAT_INTERVAL", timedelta(seconds=0.05))
    monkeypatch.setattr(finish, "STATUS_TIMEOUT", timedelta(seconds=0.4))
    monkeypatch.setattr(finish, "SIDECAR_GRACE", timedelta(seconds=0.5))


CLAIM = ", although its process had ended with exit code 0"


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (pod(ended()), None),
        (pod(ended(0, "")), None),
        (pod(ended(0, "Completed"), reason="Evicted"), None),
        (pod(ended(137, "OOMKilled")), "exit code 137, OOMKilled"),
        (pod(ended(0, "OOMKilled")), "exit code 0, OOMKilled"),
        (pod(ended(1, "Error")), "exit code 1, Error"),
        (pod(ended(0, "Error")), "exit code 0, Error"),
        (pod(ended(143, "Error"), reason="Evicted", message="low on token-secret"), "exit code 143, Evicted"),
        (pod(ended(2, "E" * 500)), f"exit code 2, {'E' * 100}"),
        (pod(ended(None, "Error")), "no exit code, Error"),
        (pod(ended(137, "ContainerStatusUnknown")), None),
    ],
    ids=[
        *("success", "no reason", "evicted later", "oom", "oom at 0", "exit 1", "error at 0", "evicted"),
        *("long reason", "no code", "unknown"),
    ],
)
async def test_a_status_that_says_otherwise_is_named(last: Pod, says: str | None) -> None:
    cluster = FakeCluster([[pod(RUNS)], [last]])
    finished = await run(cluster, confirm=True)
    assert finished.contradiction == (says and f"the container's status says: {says}{CLAIM}")
    assert finished.deleted
    assert finished.agent_started
    assert cluster.calls == ["heartbeat", "delete_job"]


@pytest.mark.parametrize("states", [[[pod(RUNS)]], [[pod(RUNS)], []], []], ids=["late", "pod gone", "nothing seen"])
async def test_a_status_that_does_not_come_holds_nothing_up_for_long(
    states: list[list[Pod]], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster(states)
    began = asyncio.get_running_loop().time()
    finished = await run(cluster, confirm=True)
    assert finished.contradiction is None
    assert "delete_job" in cluster.calls
    assert asyncio.get_running_loop().time() - began < 3
    assert "was not seen" in caplog.text


async def test_what_was_seen_before_a_worker_died_is_in_the_result_of_the_next_activity_attempt() -> None:
    first = FakeCluster([[pod(RUNS)], [pod(ended(137, "OOMKilled"))]])
    finished = await run(first, confirm=True)
    next_attempt = FakeCluster([[]])
    assert await run(next_attempt, confirm=True, earlier=first.heartbeats[-1]) == finished


async def test_what_was_seen_before_two_workers_died_is_in_every_heartbeat() -> None:
    seen = FinishProgress(agent_started=True, contradiction="of a pod that is gone")
    second = FakeCluster([[pod(RUNS)]])
    await run(second, confirm=True, earlier=seen)
    reported = [each.model_copy(update={"waits_for": ""}) for each in second.heartbeats]
    assert reported == [seen] * len(second.heartbeats)
    assert any("status" in each.waits_for for each in second.heartbeats)


async def test_an_end_that_is_known_already_is_not_waited_for() -> None:
    cluster = FakeCluster([[pod(ended(137, "OOMKilled"))]])
    finished = await run(cluster)
    assert finished.contradiction is None
    assert cluster.calls == ["delete_job"]


async def test_a_retained_pod_is_compared_and_its_sidecar_ends_by_itself() -> None:
    cluster = FakeCluster([[pod(RUNS)], [pod(ended(1, "Error"))]])
    finished = await run(cluster, confirm=True, retain=True)
    assert (finished.contradiction or "").startswith("the container's status says: exit code 1")
    assert cluster.calls == ["heartbeat", "acknowledge"]


async def test_an_acknowledgement_that_fails_is_repeated_and_one_that_is_forbidden_is_not() -> None:
    failing = FakeCluster([[pod(ended())]], [ExecFailed("cut"), ExecFailed("cut")])
    await run(failing, confirm=True, retain=True)
    assert failing.calls == ["acknowledge"] * 3
    forbidden = FakeCluster([[pod(ended())]], [ClusterForbidden("may not create pods/exec")])
    await run(forbidden, confirm=True, retain=True)
    assert forbidden.calls == ["acknowledge", "stop_pod"]


async def test_a_retained_agent_that_still_runs_is_stopped_and_not_acknowledged() -> None:
    cluster = FakeCluster([[pod(RUNS)]])
    await run(cluster, retain=True)
    assert cluster.calls == ["stop_pod"]


async def test_a_retained_pod_whose_end_is_never_reported_is_deleted_after_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finish, "UNREPORTED_END_TIMEOUT", timedelta(milliseconds=50))
    at_deadline = pod(RUNS, phase="Failed", reason="DeadlineExceeded")
    cluster = FakeCluster([[pod(RUNS)], [at_deadline]], reports_ends=False)
    finished = await run(cluster, retain=True, grace=timedelta(milliseconds=50))
    assert cluster.calls == ["stop_pod", "delete_job"]
    assert finished.deleted


@pytest.mark.parametrize(("retain", "calls"), [(False, ["delete_job", "delete_pod"]), (True, ["stop_pod"])])
async def test_an_injected_container_that_never_ends_delays_nothing(retain: bool, calls: list[str]) -> None:
    injected = {"name": "istio-proxy", "state": RUNS}
    both = [{"name": name, "state": ended()} for name in (JOB.container, SIDECAR_CONTAINER)]
    cluster = FakeCluster([[pod(ended(), containerStatuses=[*both, injected])]], stays=True)
    await run(cluster, retain=retain)
    assert cluster.calls == calls


@pytest.mark.parametrize(("retain", "spec"), [(False, {"ttlSecondsAfterFinished": 0}), (True, None)])
async def test_a_pod_that_rests_is_kept_without_its_tokens_and_no_longer_than_it_rests(
    retain: bool, spec: dict[str, int] | None
) -> None:
    cluster = FakeCluster([[pod(RUNS)]], conflicts=[False, True])
    finished = await run(cluster, KeepJob, retain=retain)
    assert finished.kept
    assert cluster.calls == ["acknowledge", f"empty {JOB.name}-run", *[f"annotate {spec}"] * 2]


@pytest.mark.parametrize("refusal", [ExecFailed("it has ended"), ClusterForbidden("may not create pods/exec")])
async def test_a_pod_that_cannot_be_reached_is_not_kept(refusal: Exception) -> None:
    cluster = FakeCluster([[pod(RUNS)]], [refusal])
    finished = await run(cluster, KeepJob)
    assert (finished.kept, cluster.calls[:2]) == (False, ["acknowledge", "delete_job"])


async def test_the_prompt_of_a_run_that_claimed_a_pod_is_deleted_with_it() -> None:
    cluster = FakeCluster([[pod(RUNS)]])
    claimed = JOB.model_copy(update={"claimed": Claimed(first=9, at=datetime.now(UTC))})
    await run(cluster, job=claimed)
    assert cluster.secrets == [ATTEMPT.prompt_secret_name]
