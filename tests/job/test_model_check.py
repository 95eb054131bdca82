"""The Job that asks OpenCode for its models: placed and secured as a run's, with nothing of the run in it."""

import json
from collections.abc import Mapping
from typing import Any

from agent_runs.job.manifest import JobPlan
from agent_runs.job.model_check import listed, question
from tests.job.inputs import AGENT, RUN, create_job_input, job_plan, main_container, pod_spec

INPUT = create_job_input(config={"serviceAccountName": "deployer", "nodeSelector": {"disk": "ssd"}})


def asked() -> tuple[Mapping[str, Any], JobPlan]:
    """The Job that asks, and the run's own plan."""
    plan = job_plan(INPUT, environment={"KEY": "secret"})
    return question(plan, INPUT.attempt, "anthropic"), plan


def test_it_has_no_volume_variable_token_or_label_of_the_run() -> None:
    asking, _ = asked()
    pod = asking["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "home", "emptyDir": {}}]
    assert pod["automountServiceAccountToken"] is False
    assert "initContainers" not in pod
    [container] = pod["containers"]
    assert container["command"] == ["opencode", "models", "anthropic"]
    text = json.dumps(asking)
    for of_the_run in ("secretKeyRef", "secretName", "persistentVolumeClaim", AGENT, RUN, "PAPERCLIP"):
        assert of_the_run not in text


def test_it_is_placed_and_secured_as_the_runs() -> None:
    job, plan = asked()
    asking, runs, agent = job["spec"]["template"]["spec"], pod_spec(plan), main_container(plan)
    for key in ("securityContext", "nodeSelector", "serviceAccountName", "restartPolicy"):
        assert asking[key] == runs[key], key
    for key in ("name", "image", "securityContext", "resources"):
        assert asking["containers"][0][key] == agent[key], key


def test_only_a_list_or_opencodes_own_refusal_is_an_answer() -> None:
    assert listed("warning\nanthropic/a\nanthropic/b\nopenai/c\n", "anthropic") == frozenset(
        {"anthropic/a", "anthropic/b"}
    )
    assert listed("Error: Provider not found: anthropic", "anthropic") == frozenset()
    assert listed("", "anthropic") is None
    assert listed("sh: opencode: not found", "anthropic") is None
