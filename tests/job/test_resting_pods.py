"""The claim of a pod that rests, whatever is cut in between: no prompt may go to two pods within one attempt."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from agent_runs.contracts.errors import ClusterForbidden, PodLost
from agent_runs.contracts.messages import CreateJob, JobRef
from agent_runs.contracts.pod import AGENT_CONTAINER
from agent_runs.contracts.request import RunConfig
from agent_runs.job import resting_pods
from agent_runs.job.agent_pod import ApiProxy
from agent_runs.job.attempt_plan import keep_warm_sec
from agent_runs.job.manifest import JobPlan
from agent_runs.job.resting_pods import CLAIM_COMMAND, ROTATE_COMMAND, NotAsked, RestingPods
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Job, Pod, decode
from agent_runs.kube.ownership import CLAIMED_BY, RESTS_SINCE, job_ref
from agent_runs.pod.sidecar import commands
from tests.job.inputs import create_job_input
from tests.support.cases import case

INPUT = create_job_input()
CLAIM = {"pod": "digest", "turn": {"model": "fake/text"}, "tokens": {"token": "t"}}
PLAN = JobPlan(job={"spec": {"ttlSecondsAfterFinished": 300}}, run_secret={}, claim=CLAIM)
ACCEPTED = b'{"accepted": true, "first": 12, "at": 1700000000.5}'
REFUSED = b'{"accepted": false, "reason": "the pod does not rest"}'
NOT_OPENED, CUT = ExecFailed("no upgrade", status=500), ExecFailed("cut")
NOT_REACHED = ExecFailed("it ended", exit_code=commands.NOT_REACHED)
NO_CONTAINER = ExecFailed("no container", status=404)


def job(**annotations: str) -> Job:
    metadata = {"name": "job", "namespace": "agents", "uid": "u", "resourceVersion": "7", "annotations": annotations}
    return decode(msgspec.json.encode({"metadata": metadata}), Job)


def pod(*, agent_ended: bool = False, **metadata: Any) -> Pod:
    agent = {"name": AGENT_CONTAINER, "state": {"terminated": {"exitCode": 0}} if agent_ended else {"running": {}}}
    body = {
        "metadata": {"name": "pod", "namespace": "agents", "uid": "p", **metadata},
        "status": {"containerStatuses": [{"name": "sidecar", "state": {"running": {}}}, agent]},
    }
    return decode(msgspec.json.encode(body), Pod)


@dataclass
class FakeCluster:
    """A cluster with one Job of the agent, whose sidecar answers these, one after the other; then its pod is gone."""

    jobs: list[Job]
    answers: list[bytes | Exception] = field(default_factory=list)
    loses: bool = False
    agent_ended: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def jobs_of_agent(self, *_: object) -> list[Job]:
        return self.jobs

    async def annotate_job(self, *arguments: Any, spec: dict[str, int | None]) -> Job | None:
        assert spec == {"ttlSecondsAfterFinished": 300}  # as that of a Job of its own: 0 while it rested
        assert arguments[3:] == ("7", {CLAIMED_BY: INPUT.attempt.transcript, RESTS_SINCE: None})
        return None if self.loses else job(**{CLAIMED_BY: INPUT.attempt.transcript})

    async def pods_of(self, _job: JobRef) -> list[Pod]:
        return [pod(agent_ended=self.agent_ended)] if self.answers else [pod(deletionTimestamp="2026-01-01T00:00:00Z")]

    async def exec_input(
        self, _namespace: str, _pod: str, _container: str, argv: Sequence[str], stdin: bytes, **_: object
    ) -> bytes:
        assert argv in (CLAIM_COMMAND, ROTATE_COMMAND)
        self.requests.append(json.loads(stdin))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


RESTING = job(**{RESTS_SINCE: "2026-01-01T00:00:00Z"})
OURS = job(**{CLAIMED_BY: INPUT.attempt.transcript})


async def prompt(_input: CreateJob) -> str:
    return "Do it."


async def plan() -> JobPlan:
    return PLAN


def pods(cluster: FakeCluster) -> RestingPods:
    return RestingPods(cast("Cluster", cluster), prompt)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting_pods, "RETRY_PAUSE", resting_pods.RETRY_PAUSE * 0)
    monkeypatch.setattr(resting_pods, "NODE_PAUSE", resting_pods.NODE_PAUSE * 0)


async def test_a_claim_hands_over_prompt_and_tokens_and_says_where_the_output_begins() -> None:
    cluster = FakeCluster([RESTING], [ACCEPTED])
    claimed = await pods(cluster).claim(INPUT, PLAN)
    assert claimed is not None
    assert claimed.claimed is not None
    assert (claimed.name, claimed.claimed.first) == ("job", 12)
    assert cluster.requests == [
        {
            "id": INPUT.attempt.transcript,
            "pod": "digest",
            "turn": {"model": "fake/text", "text": "Do it."},
            "tokens": {"token": "t"},
        }
    ]


@pytest.mark.parametrize(
    "cluster",
    [
        FakeCluster([]),
        FakeCluster([OURS]),
        FakeCluster([RESTING], loses=True),
        FakeCluster([RESTING], [REFUSED]),
    ],
    ids=["no Job", "none rests", "another was first", "refused"],
)
async def test_without_a_pod_that_takes_the_prompt_the_attempt_has_a_job_of_its_own(cluster: FakeCluster) -> None:
    assert await pods(cluster).claim(INPUT, PLAN) is None


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([NO_CONTAINER] * resting_pods.TRIES + [ACCEPTED], "its container does not answer, no container"),
        ([NOT_REACHED], "its sidecar does not answer, it ended"),
        ([ClusterForbidden("may not")], "may not"),
        ([], "it has ended"),
    ],
    ids=["no container", "sidecar ended", "exec forbidden", "pod gone"],
)
async def test_why_a_pod_that_rests_has_certainly_not_got_the_prompt_is_said(
    answers: list[bytes | Exception], reason: str
) -> None:
    with pytest.raises(NotAsked, match=f"^the pod of Job job rested, and was not used: {reason}$"):
        await pods(FakeCluster([RESTING], answers)).claim(INPUT, PLAN)


async def test_a_pod_whose_agent_has_ended_is_not_asked() -> None:
    cluster = FakeCluster([RESTING], [ACCEPTED], agent_ended=True)
    with pytest.raises(NotAsked, match="was not used: it has ended"):
        await pods(cluster).claim(INPUT, PLAN)
    assert cluster.requests == []


async def test_only_a_first_attempt_that_may_rest_claims() -> None:
    second = create_job_input(attempt=2)
    assert await pods(FakeCluster([RESTING], [ACCEPTED])).claim(second, PLAN) is None
    assert await pods(FakeCluster([RESTING], [ACCEPTED])).claim(INPUT, JobPlan(job={}, run_secret={})) is None


async def test_a_cut_is_repeated_with_the_same_claim() -> None:
    cluster = FakeCluster([RESTING], [CUT, b"nonsense", ACCEPTED])
    assert await pods(cluster).claim(INPUT, PLAN) is not None
    assert [request["id"] for request in cluster.requests] == [INPUT.attempt.transcript] * 3


@pytest.mark.parametrize("failure", [CUT, ExecFailed("it ended", exit_code=1, status=500)], ids=["cut", "ended"])
@pytest.mark.parametrize("then", [[], [ClusterForbidden("may not")]], ids=["gone", "forbidden"])
async def test_a_pod_that_may_have_got_the_prompt_and_is_lost_ends_the_attempt(
    failure: Exception, then: list[bytes | Exception]
) -> None:
    with pytest.raises(PodLost, match="rested, and was lost"):
        await pods(FakeCluster([RESTING], [failure, *then])).claim(INPUT, PLAN)


async def test_a_node_that_is_away_is_waited_for() -> None:
    away = [NOT_OPENED] * (resting_pods.TRIES * 3)
    assert await pods(FakeCluster([RESTING], [*away, ACCEPTED])).claim(INPUT, PLAN) is not None
    assert await pods(FakeCluster([RESTING], [CUT, *away, CUT, ACCEPTED])).claim(INPUT, PLAN) is not None
    assert await pods(FakeCluster([OURS], [*away, ACCEPTED])).again(INPUT, plan) is not None
    cluster = cast("Cluster", FakeCluster([OURS], [*away, b'{"accepted": true}']))
    assert await resting_pods.rotate(cluster, job_ref(OURS), INPUT.attempt.transcript, {})


async def test_a_node_that_stays_away_ends_the_attempt_only_if_its_pod_may_have_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NODE_RESTART", "NODE_TIMEOUT"):
        monkeypatch.setattr(resting_pods, name, getattr(resting_pods, name) * 0)
    away = [NOT_OPENED] * resting_pods.TRIES
    with pytest.raises(PodLost, match="rested, and was lost"):
        await pods(FakeCluster([RESTING], [CUT, *away])).claim(INPUT, PLAN)
    with pytest.raises(NotAsked, match="was not used: its node does not answer, no upgrade"):
        await pods(FakeCluster([RESTING], [*away, ACCEPTED])).claim(INPUT, PLAN)


async def test_a_later_activity_attempt_continues_the_claim() -> None:
    assert await pods(FakeCluster([OURS], [ACCEPTED])).again(INPUT, plan) is not None
    assert await pods(FakeCluster([OURS], [ACCEPTED], agent_ended=True)).again(INPUT, plan) is not None
    assert await pods(FakeCluster([OURS], [REFUSED])).again(INPUT, plan) is None
    assert await pods(FakeCluster([RESTING])).again(INPUT, plan) is None


@pytest.mark.parametrize(
    "answers", [[], [NO_CONTAINER], [NOT_REACHED]], ids=["pod gone", "no container", "sidecar ended"]
)
async def test_a_later_activity_attempt_that_learns_nothing_ends_the_attempt(answers: list[bytes | Exception]) -> None:
    with pytest.raises(PodLost, match="rested, and was lost"):
        await pods(FakeCluster([OURS], answers)).again(INPUT, plan)


def test_a_pod_whose_server_runs_programs_that_cannot_change_to_another_run_does_not_rest() -> None:
    proxy = ApiProxy("http://paperclip.example", "run-1", "token")
    plain = RunConfig.model_validate({"model": "fake/model", "keepWarmSec": 60})
    language_servers = RunConfig.model_validate({"model": "fake/model", "keepWarmSec": 60, "opencodeFeatures": ["lsp"]})
    assert keep_warm_sec(plain, {"mcp": {"far": {"type": "remote"}}}, proxy) == 60
    for config, opencode, through in (
        (plain, {"mcp": {"near": {"type": "local"}}}, proxy),
        (plain, {"plugin": ["one"]}, proxy),
        (plain, {"shell": "fish"}, proxy),
        (plain, {}, None),
        (language_servers, {}, proxy),
    ):
        with case(config.opencode_features, opencode, through):
            assert keep_warm_sec(config, opencode, through) == 0
