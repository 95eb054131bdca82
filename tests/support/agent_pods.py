"""A Job whose pod has our runner and our sidecar, and nothing else of an agent run."""

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_runs.contracts.pod import CONTROL_DIRECTORY, OUTPUT_DIRECTORY, SIDECAR_FILE
from agent_runs.job.agent_pod import PYTHON_IMAGE, literal
from agent_runs.job.secrets import SCRIPT_KEYS, script
from agent_runs.pod.archive import sidecar_archive

SIDECAR_IMAGE = "AGENT_RUNS_SIDECAR_IMAGE"
"""The variable that names an image with python3, where the cluster is real."""


def agent_pod(
    name: str,
    namespace: str,
    command: Sequence[str],
    *,
    max_unread: int = 60,
    env: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Secret and Job, laid out as those of agent runs."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": {
            **{name: base64.b64encode(script(name)).decode() for name in SCRIPT_KEYS},
            "sidecar.pyz": base64.b64encode(sidecar_archive()).decode(),
        },
    }
    output = {"name": "output", "mountPath": OUTPUT_DIRECTORY}
    sidecar = {
        "name": "sidecar",
        "image": os.environ.get(SIDECAR_IMAGE, PYTHON_IMAGE),
        "command": ["python3", "-I", "-S", SIDECAR_FILE],
        "args": ["run", OUTPUT_DIRECTORY, CONTROL_DIRECTORY, "/no-token", str(max_unread)],
        "volumeMounts": [
            output,
            {"name": "control", "mountPath": CONTROL_DIRECTORY},
            {"name": "secret", "mountPath": str(Path(SIDECAR_FILE).parent), "readOnly": True},
        ],
    }
    options = ["--stdin", "/dev/null", "--out", OUTPUT_DIRECTORY, "--dir", "/tmp", "--grace", "2", "--"]
    agent = {
        "name": "opencode",
        "image": "busybox:1.36",
        "command": ["sh", "/agent-run/secret/runner.sh", *options, *map(literal, command)],
        "env": [{"name": key, "value": literal(value)} for key, value in env.items()],
        "volumeMounts": [output, {"name": "secret", "mountPath": "/agent-run/secret", "readOnly": True}],
    }
    volumes = [
        {"name": "secret", "secret": {"secretName": name}},
        {"name": "output", "emptyDir": {}},
        {"name": "control", "emptyDir": {}},
    ]
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 7, "volumes": volumes}
    return secret, {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backoffLimit": 0, "template": {"metadata": {}, "spec": {**pod, "containers": [sidecar, agent]}}},
    }
