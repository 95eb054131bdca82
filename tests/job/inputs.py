"""Inputs of `create_job`, and what Kubernetes demands of the objects created from them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import CreateJob, PodProfile, PromptBundle
from agent_runs.contracts.request import AgentRef, RunConfig, RunRequest, Runtime, WakeContext, Workspace
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.manifest import JobPlan, plan_job

AGENT = "b1677834-f306-4a0e-9c14-97a6dc937575"
RUN = "7d6733a4-a207-4bf9-87db-cf32e87a5407"


def create_job_input(
    *, config: Mapping[str, Any] | None = None, agent: str = AGENT, run: str = RUN, **fields: Any
) -> CreateJob:
    """An input with everything it needs; `config` is in Paperclip's spelling."""
    attempt = AttemptKey(run=RunKey(agent_id=agent, company_id="co-1", run_id=run), attempt=fields.pop("attempt", 1))
    namespace = (config or {}).get("namespace") or "agents"
    wake = WakeContext(
        task_id=fields.pop("task_id", None),
        paperclip_workspace=fields.pop("workspace", Workspace()),
        paperclip_workspaces=fields.pop("workspaces", ()),
    )
    defaults: dict[str, Any] = {
        "attempt": attempt,
        "request": RunRequest(
            run_id=run,
            agent=AgentRef(id=agent, company_id="co-1", name=fields.pop("agent_name", "Ada")),
            runtime=Runtime(task_key=fields.pop("task_key", None)),
            config=RunConfig.model_validate({"model": "fake/text", **(config or {})}),
            context=wake,
        ),
        "profile": PodProfile(namespace=namespace, image="registry.example/agent:1", data_claim="data"),
        "prompt": PromptBundle(namespace=namespace, secret_name=attempt.prompt_secret_name, sha256="0" * 64, size=1),
    }
    return CreateJob(**{**defaults, **fields})


def job_plan(input: CreateJob | None = None, **arguments: Any) -> JobPlan:
    """The plan for an input, with an agent that does nothing."""
    defaults: dict[str, Any] = {
        "argv": ["opencode", "run"],
        "environment": {},
        "opencode_config": "{}",
        "settings": AgentPodSettings(),
    }
    return plan_job(input or create_job_input(), **{**defaults, **arguments})


def pod_spec(plan: JobPlan) -> dict[str, Any]:
    spec: dict[str, Any] = plan.job["spec"]["template"]["spec"]
    return spec


def main_container(plan: JobPlan) -> dict[str, Any]:
    container: dict[str, Any] = pod_spec(plan)["containers"][1]
    return container


def environment(plan: JobPlan) -> dict[str, Any]:
    """Variables of the agent container: text for a literal, the source otherwise."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in main_container(plan)["env"]}


def volumes(plan: JobPlan) -> dict[str, Any]:
    return {each["name"]: each for each in pod_spec(plan)["volumes"]}


def mounts(plan: JobPlan) -> dict[str, Any]:
    return {each["mountPath"]: each for each in main_container(plan)["volumeMounts"]}


LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def objections(plan: JobPlan) -> Iterator[str]:
    """What an API server would refuse, as far as names, labels and references go."""
    spec = pod_spec(plan)
    if not NAME.fullmatch(plan.job["metadata"]["name"]):
        yield "name"
    for labels in (plan.job["metadata"]["labels"], plan.job["spec"]["template"]["metadata"]["labels"]):
        yield from (key for key in labels if not LABEL_KEY.fullmatch(key))
        yield from (f"{key}={value}" for key, value in labels.items() if not LABEL_VALUE.fullmatch(value))
    names = [volume["name"] for volume in spec["volumes"]]
    if len(set(names)) != len(names):
        yield "volumes twice"
    yield from (f"volume {name}" for name in names if not NAME.fullmatch(name))
    for container in spec["initContainers"] + spec["containers"]:
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        if len(set(paths)) != len(paths):
            yield "mount paths twice"
        yield from (path for path in paths if ":" in path or not path.startswith("/"))
        sub_paths = [mount["subPath"] for mount in container["volumeMounts"] if "subPath" in mount]
        yield from (path for path in sub_paths if path.startswith("/") or {"", "..", "."} & set(path.split("/")))
        yield from (mount["name"] for mount in container["volumeMounts"] if mount["name"] not in names)
        variables = [variable["name"] for variable in container.get("env", [])]
        if len(set(variables)) != len(variables):
            yield "variables twice"
    for variable in spec["containers"][1]["env"]:
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference and reference["name"] == plan.run_secret["metadata"]["name"]:
            yield from [f"key {reference['key']}"] * (reference["key"] not in plan.run_secret["data"])
    yield from (key for key in plan.run_secret["data"] if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key))
    json.dumps(plan.job, allow_nan=False)
