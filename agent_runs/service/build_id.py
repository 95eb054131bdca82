"""The build id that a worker registers with Temporal and that histories name, and its Worker Deployment."""

import ast
import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

import workflows
from agent_runs.client.settings import SettingsError

SOURCES: Final = Path(workflows.__file__).parents[1]
ENTRY_POINT: Final = "workflows.agent_run"
OURS: Final = frozenset({"workflows", "agent_runs", "activities"})


DEPLOYMENT, VERSION = "TEMPORAL_DEPLOYMENT_NAME", "TEMPORAL_WORKER_BUILD_ID"
"""Variables that Temporal's Worker Controller sets. Source: its documentation of 2026-08."""


def build_id() -> str:
    """`BUILD_ID` from the environment (set by the image), else a digest of the code that runs inside the workflow."""
    return os.environ.get(VERSION) or os.environ.get("BUILD_ID") or _own_build_id()


def worker_deployment() -> WorkerDeploymentConfig | None:
    """The worker's version for Temporal's Worker Versioning; None: it is not versioned.

    Runs move on to the current version by themselves: they last for hours, and every worker can replay the histories of
    earlier ones.

    Raises:
        SettingsError: only one of the two variables is set.
    """
    name, version = os.environ.get(DEPLOYMENT), os.environ.get(VERSION)
    if not name and not version:
        return None
    if not (name and version):
        raise SettingsError(
            f"{VERSION if name else DEPLOYMENT}: set it, too, or unset {DEPLOYMENT if name else VERSION}"
        )
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=name, build_id=version),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


@cache
def _own_build_id() -> str:
    return f"dev-{workflow_code_digest(SOURCES)[:8]}"


def workflow_code_digest(sources: Path) -> str:
    """A digest of every module of ours that importing the workflow loads, whatever else the process has loaded."""
    digest = hashlib.sha256()
    for name, file in sorted(workflow_modules(sources).items()):
        content = file.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def workflow_modules(sources: Path) -> dict[str, Path]:
    """Names and files of those modules, read from their import statements: nothing is imported."""
    found: dict[str, Path] = {}
    pending = [ENTRY_POINT]
    while pending:
        name = pending.pop()
        file = _file_of(sources, name)
        if name in found or file is None:
            continue
        found[name] = file
        pending += [name.rpartition(".")[0], *_imports_of(file)]
    return found


def _file_of(sources: Path, name: str) -> Path | None:
    """The module's file; None if it is not ours, or the name of something inside a module."""
    if name.partition(".")[0] not in OURS:
        return None
    path = sources.joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def _imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
