"""Orders for attempts, and what Kubernetes demands of the objects made from them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.manifest import Plan, plan
from contracts.identity import AttemptKey, RunKey
from contracts.messages import CreateJob, PodProfile, PromptBundle
from contracts.request import RunConfig

AGENT = "b1677834-f306-4a0e-9c14-97a6dc937575"
RUN = "7d6733a4-a207-4bf9-87db-cf32e87a5407"


def order(*, config: Mapping[str, Any] | None = None, agent: str = AGENT, run: str = RUN, **fields: Any) -> CreateJob:
    """An order with everything it needs; `config` is in Paperclip's spelling."""
    attempt = AttemptKey(run=RunKey(agent_id=agent, company_id="co-1", run_id=run), attempt=fields.pop("attempt", 1))
    given: dict[str, Any] = {
        "attempt": attempt,
        "agent_name": "Ada",
        "config": RunConfig.model_validate({"model": "fake/text", **(config or {})}),
        "profile": PodProfile(namespace="agents", image="registry.example/agent:1", data_claim="data"),
        "prompt": PromptBundle(namespace="agents", secret_name=attempt.prompt_secret_name, sha256="0" * 64, size=1),
    }
    return CreateJob(**{**given, **fields})


def planned(an_order: CreateJob | None = None, **given: Any) -> Plan:
    """The plan for an order, with an agent that says hello."""
    chosen: dict[str, Any] = {
        "argv": ["opencode", "run"],
        "environment": {},
        "opencode_config": "{}",
        "runner": "exit 0",
    }
    return plan(an_order or order(), **{**chosen, **given})


def pod_spec(made: Plan) -> dict[str, Any]:
    spec: dict[str, Any] = made.job["spec"]["template"]["spec"]
    return spec


def main_container(made: Plan) -> dict[str, Any]:
    container: dict[str, Any] = pod_spec(made)["containers"][0]
    return container


def environment(made: Plan) -> dict[str, Any]:
    """Variables of the agent container: text for a literal, the source otherwise."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in main_container(made)["env"]}


def volumes(made: Plan) -> dict[str, Any]:
    return {each["name"]: each for each in pod_spec(made)["volumes"]}


def mounts(made: Plan) -> dict[str, Any]:
    return {each["mountPath"]: each for each in main_container(made)["volumeMounts"]}


LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def objections(made: Plan) -> Iterator[str]:
    """What an API server would refuse, as far as names, labels and references go."""
    spec = pod_spec(made)
    if not NAME.fullmatch(made.job["metadata"]["name"]):
        yield "name"
    for labels in (made.job["metadata"]["labels"], made.job["spec"]["template"]["metadata"]["labels"]):
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
        yield from (mount["name"] for mount in container["volumeMounts"] if mount["name"] not in names)
        variables = [variable["name"] for variable in container.get("env", [])]
        if len(set(variables)) != len(variables):
            yield "variables twice"
    for variable in spec["containers"][0]["env"]:
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference and reference["name"] == made.run_secret["metadata"]["name"]:
            yield from [f"key {reference['key']}"] * (reference["key"] not in made.run_secret["data"])
    yield from (key for key in made.run_secret["data"] if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key))
    json.dumps(made.job, allow_nan=False)
