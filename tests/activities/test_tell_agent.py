"""A message for an agent, seen from the cluster: what the pod's sidecar is asked, and what its answers mean."""

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.tell_agent import TellAgentActivity
from agent_runs.contracts.errors import ClusterUnavailable, MessageNotDelivered, SealedFieldUnreadable
from agent_runs.contracts.identity import AttemptKey, RunKey, workflow_id
from agent_runs.contracts.messages import JobRef, TellAgent
from agent_runs.contracts.start import MESSAGE_LIMIT, Binding, SealedMessage
from agent_runs.job.resting_pods import TELL_COMMAND
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Pod, decode
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey
from agent_runs.pod.sidecar.commands import NOT_REACHED
from dev_stack.cluster import EmbeddedCluster
from tests.support.cases import case

KEY = SealingKey.generate()


class Sidecar(Cluster):
    """Its pod runs, and its sidecar answers this, one after the other."""

    answers: list[dict[str, Any] | Exception]
    requests: list[dict[str, Any]]

    async def pods_of(self, job: JobRef) -> list[Pod]:
        sidecar = {"name": "sidecar", "state": {"running": {}}}
        meta = {"name": "pod", "namespace": job.namespace, "uid": "uid"}
        body = {"metadata": meta, "status": {"containerStatuses": [sidecar]}}
        return [decode(json.dumps(body).encode(), Pod)]

    async def exec_input(self, *about: Any, **_: object) -> bytes:
        argv, content = about[-2:]
        assert argv == TELL_COMMAND
        self.requests.append(json.loads(content))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sidecar]:
    async with (
        EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as embedded,
        await Sidecar.connect(str(embedded.kubeconfig_path)) as connected,
    ):
        yield connected


def input_of(**sealed_for: str) -> TellAgent:
    run = RunKey(agent_id=str(uuid.uuid4()), company_id="co", run_id="run-1")
    use = {"workflow_id": workflow_id(run.agent_id), "company_id": "co", "run_id": "run-1", "task": "m1"}
    binding = Binding.model_validate({"purpose": "message", **use, **sealed_for})
    return TellAgent(
        attempt=AttemptKey(run=run),
        job=JobRef(namespace="default", name="job", uid="uid"),
        message_id="m1",
        by="ada",
        sealed=Sealer(KEY.public).seal(SealedMessage(binding=binding, text="hello")),
    )


async def tell(cluster: Sidecar, answers: Sequence[dict[str, Any] | Exception], **sealed_for: str) -> None:
    cluster.answers, cluster.requests = list(answers), []
    await ActivityEnvironment().run(TellAgentActivity(cluster, Opener([KEY])).tell_agent, input_of(**sealed_for))


async def test_it_returns_when_the_agent_has_the_message(cluster: Sidecar) -> None:
    unread = ExecFailed("no sidecar", exit_code=NOT_REACHED)
    await tell(cluster, [unread, {"accepted": True}, {"accepted": True}, {"accepted": True, "delivered": True}])
    assert cluster.requests == [{"id": "m1", "by": "ada", "text": "hello"}] * 4


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([{"accepted": True}, {"accepted": False, "reason": "its turn had ended"}], "its turn had ended"),
        ([{"accepted": False, "reason": "pi takes no message while it works"}], "pi takes no message while it works"),
        ([ExecFailed("cut off")] * 5, "its pod does not answer: nobody knows whether it has the message"),
        ([ExecFailed("no sidecar", exit_code=NOT_REACHED)] * 5, "its pod cannot be reached"),
    ],
)
async def test_a_message_that_does_not_reach_the_agent_is_refused_with_the_reason(
    cluster: Sidecar, answers: Sequence[dict[str, Any] | Exception], why: str
) -> None:
    with pytest.raises(MessageNotDelivered) as refused:
        await tell(cluster, answers)
    assert why in refused.value.message


async def test_a_message_for_another_run_or_sealed_under_another_id_is_not_opened(cluster: Sidecar) -> None:
    for other in ({"run_id": "run-2"}, {"task": "m2"}, {"company_id": "another"}, {"purpose": "run"}):
        with pytest.raises(SealedFieldUnreadable):
            await tell(cluster, [], **other)
    assert cluster.requests == []


def answer_of(
    question: str | None = "1-per_1",
    sealed_for: str | None = "1-per_1",
    answers: tuple[tuple[str, ...], ...] = (("Allow once",),),
) -> TellAgent:
    """An answer to a question; `sealed_for` None: its rejection."""
    input = input_of()
    run = input.attempt.run
    content = SealedMessage(binding=Binding.of_message(run, "m1"), question=sealed_for, answers=answers)
    sealed = Sealer(KEY.public).seal(content) if sealed_for else None
    return input.model_copy(update={"question": question, "sealed": sealed})


async def deliver(cluster: Sidecar, input: TellAgent, *answers: dict[str, Any] | Exception) -> None:
    cluster.answers, cluster.requests = list(answers), []
    await ActivityEnvironment().run(TellAgentActivity(cluster, Opener([KEY])).tell_agent, input)


async def test_an_answer_names_the_agents_own_request_and_its_rejection_has_no_choice(cluster: Sidecar) -> None:
    delivered = {"accepted": True, "delivered": True}
    await deliver(cluster, answer_of(), delivered)
    content = {"id": "m1", "by": "ada", "text": "", "question": "per_1"}
    assert cluster.requests == [{**content, "answers": [["Allow once"]]}]
    await deliver(cluster, answer_of(sealed_for=None), delivered)
    assert cluster.requests == [{**content, "answers": []}]


async def test_an_answer_to_another_question_and_a_message_that_is_an_answer_do_not_reach_the_agent(
    cluster: Sidecar,
) -> None:
    for input in (answer_of(sealed_for="1-per_2"), answer_of(question=None)):
        with pytest.raises(MessageNotDelivered, match="sealed for another question"):
            await deliver(cluster, input)
    assert cluster.requests == []


@pytest.mark.parametrize(
    "lost", [ExecFailed("cut off"), ExecFailed("no sidecar", exit_code=NOT_REACHED)], ids=["cut off", "not reached"]
)
async def test_an_answer_is_kept_for_a_pod_that_does_not_answer(cluster: Sidecar, lost: ExecFailed) -> None:
    with pytest.raises(ClusterUnavailable):
        await deliver(cluster, answer_of(), *[lost] * 5)


async def test_an_answer_that_is_too_large_is_refused_and_keeps_nobody_from_answering(cluster: Sidecar) -> None:
    """Retried, it would hold its question until the run's end."""
    for answers in ((("x" * MESSAGE_LIMIT,), ("y",)), (("x" * 12_000_000,),), tuple(("",) for _ in range(20_000))):
        with case(str(answers)[:30]), pytest.raises(MessageNotDelivered, match="at most 16,384 characters"):
            await deliver(cluster, answer_of(answers=answers))
    assert cluster.requests == []
