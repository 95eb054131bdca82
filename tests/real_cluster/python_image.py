"""An image with Python and nothing else, made of this machine's own, for a test cluster without a registry."""

import asyncio
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from tests.real_cluster.requirements import cluster_tool

OWN_IMAGE = "agent-runs-python:test"
EXCLUDED = ("__pycache__", "site-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3", "config-*")
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


async def make_python_image(folder: Path) -> None:
    """Let the cluster's tool make `OWN_IMAGE`, which has python3."""
    await asyncio.to_thread(fill_root, folder)
    await cluster_tool("image", "build", OWN_IMAGE, str(folder), "--user", "1000:1000", "--env", "PATH=/usr/local/bin")


def fill_root(root: Path) -> None:
    """Fill the root directory with this process's interpreter, its library and the shared libraries of both."""
    for name in ("dev", "proc", "sys", "tmp", "usr/local/bin", "usr/local/lib"):
        (root / name).mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python, library = root / "usr/local/bin/python3", root / "usr/local/lib" / version
    shutil.copy(Path(sys.base_prefix, "bin", version).resolve(), python)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*EXCLUDED))
    for shared in shared_libraries([python, *library.glob("lib-dynload/*.so")]):
        target = root / str(shared).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shared.resolve(), target)
    for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        directory.chmod(0o755)


def shared_libraries(programs: Iterable[Path]) -> set[Path]:
    """The shared libraries of these programs, at the paths where the loader finds them."""
    outputs = [
        subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for program in programs
    ]
    return {Path(match[1]) for text in outputs for match in _LIBRARY.finditer(text)}
