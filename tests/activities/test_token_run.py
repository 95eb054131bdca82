"""Which run's token a new attempt starts with, and which image its API proxy has."""

from typing import Any, cast

import pytest

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.messages import JoinedRun
from agent_runs.contracts.request import AgentRef, RunConfig, RunRequest, Secrets
from agent_runs.contracts.start import Binding, SealedJoin
from agent_runs.job.agent_pod import AgentPodSettings, own_image
from agent_runs.job.attempt_plan import attempt_plan, replace_tokens
from agent_runs.job.manifest import JobPlan
from agent_runs.job.redactions import Redactions, WorkerValues
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.proxy_env import TOOLS_TOKEN
from tests.activities.fake_preparations import FakePreparations
from tests.job.inputs import create_job_input, pod_spec

URL = "http://paperclip:3100"
FIRST = Secrets(
    run_id="run-1",
    auth_token="token-1",
    env={"A": "a"},
    paperclip_env={"PAPERCLIP_RUNTIME_TOOLS_TOKEN": "tools-1", "PAPERCLIP_X": "x"},
)


def later(token: str | None) -> SealedJoin:
    binding = Binding(purpose="join", workflow_id="agent-run:ada", company_id="acme", run_id="run-2")
    return SealedJoin(binding=binding, auth_token=token, tools_token="tools-2")


def plan_with(secrets: Secrets, **settings: Any) -> JobPlan:
    request = RunRequest(
        run_id="run-1",
        agent=AgentRef(id="ada", company_id="acme"),
        config=RunConfig(model="fake/text"),
    )
    pods = AgentPodSettings(**{"paperclip_api_url": URL, **settings})
    return attempt_plan(create_job_input(request=request), secrets, {}, {}, pods)


def is_proxied(plan: JobPlan) -> bool:
    assert [container["name"] for container in pod_spec(plan)["containers"]] == ["sidecar", "opencode"]
    return "token" in plan.run_secret["data"]


def test_only_the_tokens_of_the_later_run_count() -> None:
    assert replace_tokens(FIRST, "run-2", later("token-2")) == FIRST.model_copy(
        update={
            "run_id": "run-2",
            "auth_token": "token-2",
            "paperclip_env": {"PAPERCLIP_RUNTIME_TOOLS_TOKEN": "tools-2", "PAPERCLIP_X": "x"},
        }
    )


def test_a_later_run_without_a_token_changes_nothing() -> None:
    assert replace_tokens(FIRST, "run-2", later(None)) == FIRST


def test_the_tokens_of_both_runs_are_kept_out_of_the_output() -> None:
    own = Secrets(run_id="run-1", auth_token="token-of-run-1", paperclip_env={TOOLS_TOKEN: "tools-of-run-1"})
    joined = WorkerValues().redaction(own, later("token-of-run-2"))
    written = b"token-of-run-1 tools-of-run-1 token-of-run-2"
    redacted = joined.redact(written)
    assert (
        redacted == b"[[secret:PAPERCLIP_API_KEY]] [[secret:%b]] [[secret:PAPERCLIP_API_KEY.2]]" % TOOLS_TOKEN.encode()
    )


async def test_without_the_tokens_of_the_later_run_nothing_is_stored() -> None:
    joined = JoinedRun(run_id="run-2", sealed="sealed with a key of another worker")
    with pytest.raises(TranscriptsUnavailable, match="cannot be kept out"):
        await Redactions(cast("Cluster", None), FakePreparations()).current(joined)


@pytest.mark.parametrize(
    ("settings", "token"),
    [
        ({}, None),
        ({"paperclip_api_url": None}, "token-1"),
        ({"paperclip_api_url": "paperclip:3100"}, "token-1"),
        ({"paperclip_api_url": "http://ada:pw@paperclip"}, "token-1"),
    ],
)
def test_there_is_no_proxy_without_address_and_token(settings: dict[str, Any], token: str | None) -> None:
    assert is_proxied(plan_with(FIRST, **settings)) == (token is None)
    assert not is_proxied(plan_with(Secrets(run_id="run-1"), **settings))


@pytest.mark.parametrize(
    ("containers", "image"),
    [
        ([{"name": "any", "image": "one:1"}], "one:1"),
        ([{"name": "paperclip", "image": "one:1"}, {"name": "worker", "image": "two:2"}], "two:2"),
        ([{"name": "worker"}], None),
    ],
)
def test_the_workers_own_image_has_python(containers: list[dict[str, Any]], image: str | None) -> None:
    assert own_image({"spec": {"containers": containers}}) == image
    assert own_image(None) is None
