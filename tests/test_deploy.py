"""What deploy/ sets, the worker knows; what the worker does, deploy/ grants."""

import re
from pathlib import Path

from client.settings import WorkerSettings

DEPLOY = Path(__file__).parents[1] / "deploy"
MANIFEST = (DEPLOY / "base" / "worker.yaml").read_text()


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
