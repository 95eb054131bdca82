"""The images of the agents that speak ACP, as `./dev images` builds them, on a base of Debian's packages.

The stage `packages` of deploy/acp.Dockerfile is replaced by what `dev_stack.agent_programs` has installed by the same
lock file, so npm's registry is asked once for all tests. Every other step is the recipe's own.
"""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from deploy.images import agent_images, build_command
from dev_stack.agent_programs import PROGRAMS, ProgramUnavailable, ensure_program
from tests.real_cluster.installed_images import NPM_BASE, ROOT, call, make_bases
from tests.real_cluster.requirements import cluster_tool

REGISTRY = "localhost/agent-runs-test"
"""No registry: a name that nothing is pulled by."""


async def load_image(name: str, folder: Path) -> str:
    """The agent's image, which the cluster's tool has imported; skips the test where the agent cannot be installed.

    Args:
        folder: where it may need 2 GB meanwhile.
    """
    try:
        installed = await ensure_program(name)
    except ProgramUnavailable as error:
        pytest.skip(str(error))
    reference, archive = await asyncio.to_thread(build, name, installed, folder)
    try:
        await cluster_tool("image", "load", str(archive))
    finally:
        archive.unlink()
    return reference


def build(name: str, installed: Path, folder: Path) -> tuple[str, Path]:
    """Build the image; returns its name and its archive."""
    make_bases(folder)
    image = next(image for image in agent_images() if image.name == name)
    reference, archive = f"{REGISTRY}/{image.repository}:{image.tag}", folder / f"{name}.tar"
    packages = stage_of_packages(name, installed, folder / "packages")
    *command, context = build_command("buildah", image, reference, [f"NPM_IMAGE={NPM_BASE}"])
    replaced = ("--quiet", "--layers", "--build-context", f"packages={packages}")  # all agents share apt's layer
    call("env", "-C", str(ROOT), *command, *replaced, context, SOURCE_DATE_EPOCH="0")
    shutil.rmtree(packages)
    call("buildah", "push", "--quiet", reference, f"docker-archive:{archive}:{reference}")
    return reference, archive


def stage_of_packages(name: str, installed: Path, root: Path) -> Path:
    """What that stage has: the packages in /opt/agent."""
    target = root / "opt" / "agent"
    target.mkdir(parents=True)
    shutil.copytree(installed / "node_modules", target / "node_modules", symlinks=True, copy_function=_link)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(PROGRAMS[name].manifest / file, target)
    return root


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target)
