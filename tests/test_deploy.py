"""What deploy/ sets, the worker knows; what the worker does, deploy/ grants."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with the Kubernetes client, without types

import worker
from client.permissions import NEEDED
from client.polling import Patience
from client.settings import WorkerSettings
from transcripts.service import DRAIN
from web.health import PATIENCE

DEPLOY = Path(__file__).parents[1] / "deploy"
MANIFEST = (DEPLOY / "base" / "worker.yaml").read_text()
POD: dict[str, Any] = yaml.safe_load(MANIFEST)["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]


def test_every_variable_of_the_deployment_is_a_setting_with_a_usable_value() -> None:
    variables = dict(re.findall(r"- name: (AGENT_RUNS_\w+)\n\s+value: (\S+)", MANIFEST))
    assert len(variables) >= 7
    WorkerSettings.read(variables)


def test_every_package_of_the_wheel_is_in_the_worker_image() -> None:
    wheel = (DEPLOY.parent / "pyproject.toml").read_text()
    packages = re.findall(r'"(\w+)"', wheel[wheel.index("only-include") : wheel.index('"worker.py"')])
    dockerfile = (DEPLOY / "worker.Dockerfile").read_text()
    assert "workflows" in packages
    assert [package for package in packages if f"COPY {package} {package}" not in dockerfile] == []


def test_a_roll_leaves_time_for_the_hand_over() -> None:
    before = timedelta(seconds=int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][-1]))
    needed = before + worker.HAND_OVER + DRAIN
    assert timedelta(seconds=POD["terminationGracePeriodSeconds"]) >= needed + timedelta(seconds=10)


def test_probes_ask_where_the_worker_answers_and_wait_longer_than_it_does() -> None:
    listens = {env["name"]: env["value"] for env in CONTAINER["env"] if env["name"].endswith("_LISTEN")}
    port = next(port["containerPort"] for port in CONTAINER["ports"] if port["name"] == "health")
    assert listens["AGENT_RUNS_HEALTH_LISTEN"].endswith(f":{port}")
    for probe, path in (("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        assert CONTAINER[probe]["httpGet"] == {"path": path, "port": "health"}
        assert timedelta(seconds=CONTAINER[probe]["timeoutSeconds"]) > PATIENCE
    assert Patience().lost > Patience().recent


def test_the_worker_asks_for_exactly_the_rights_that_it_is_given() -> None:
    role = next(it for it in yaml.safe_load_all((DEPLOY / "base" / "rbac.yaml").read_text()) if it["kind"] == "Role")
    granted = {
        f"{resource}.{group}" if group else resource: set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == {resource: set(verbs) for resource, verbs in NEEDED.items()}
