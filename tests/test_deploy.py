"""The worker knows the settings in deploy/, and deploy/ grants the permissions that the worker needs."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

import worker
from agent_runs.service.health import CHECK_TIMEOUT
from agent_runs.service.permissions import REQUIRED_VERBS
from agent_runs.service.polling import SilenceLimits
from agent_runs.service.settings import WorkerSettings
from agent_runs.web.transcripts import DRAIN_TIMEOUT

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
    shipped = re.search(r"only-include = \[(.*)\]", wheel)
    assert shipped
    packages = [name for name in re.findall(r'"([\w.]+)"', shipped[1]) if name != "worker.py"]
    dockerfile = (DEPLOY / "worker.Dockerfile").read_text()
    assert "workflows" in packages
    assert [package for package in packages if f"COPY {package} {package}" not in dockerfile] == []


def test_the_image_installs_only_files_whose_hash_is_known_in_the_versions_that_are_tested() -> None:
    root = DEPLOY.parent
    pinned = re.findall(r"^(\S+==\S+)", (root / "requirements.lock").read_text(), re.MULTILINE)
    requirements = re.split(r"\n(?=\S)", (root / "requirements-worker.lock").read_text().strip())
    assert len(requirements) >= 40
    assert [each for each in requirements if "--hash=sha256:" not in each or each.split()[0] not in pinned] == []
    assert (
        "pip install --no-cache-dir --require-hashes -r requirements-worker.lock"
        in (DEPLOY / "worker.Dockerfile").read_text()
    )


def test_a_rolling_update_leaves_time_for_the_graceful_shutdown() -> None:
    before = timedelta(seconds=int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][-1]))
    needed = before + worker.GRACEFUL_SHUTDOWN_TIMEOUT + DRAIN_TIMEOUT
    assert timedelta(seconds=POD["terminationGracePeriodSeconds"]) >= needed + timedelta(seconds=10)


def test_probes_use_the_health_port_and_wait_longer_than_a_check() -> None:
    listens = {env["name"]: env["value"] for env in CONTAINER["env"] if env["name"].endswith("_LISTEN")}
    port = next(port["containerPort"] for port in CONTAINER["ports"] if port["name"] == "health")
    assert listens["AGENT_RUNS_HEALTH_LISTEN"].endswith(f":{port}")
    for probe, path in (("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        assert CONTAINER[probe]["httpGet"] == {"path": path, "port": "health"}
        assert timedelta(seconds=CONTAINER[probe]["timeoutSeconds"]) > CHECK_TIMEOUT
    assert SilenceLimits().live > SilenceLimits().ready


def test_the_worker_checks_exactly_the_permissions_that_it_is_granted() -> None:
    role = next(it for it in yaml.safe_load_all((DEPLOY / "base" / "rbac.yaml").read_text()) if it["kind"] == "Role")
    granted = {
        f"{resource}.{group}" if group else resource: set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == {resource: set(verbs) for resource, verbs in REQUIRED_VERBS.items()}
