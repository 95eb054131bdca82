"""An image with Python and nothing else, made of this machine's own, for a test cluster without a registry."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.real.test_output import TOOL, tool

GIVEN = "TEST_PROXY_IMAGE"
MADE = "agent-runs-python:test"
LEFT_OUT = ("__pycache__", "site-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3", "config-*")
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


async def python_image(folder: Path) -> str:
    """The name of an image with python3: that of TEST_PROXY_IMAGE, or one that the cluster's tool makes."""
    if given := os.environ.get(GIVEN):
        return given
    if TOOL not in os.environ:
        pytest.skip(f"neither {GIVEN} names an image with python3 nor {TOOL} a program that makes one")
    await asyncio.to_thread(furnish, folder)
    await tool("image", "build", MADE, str(folder), "--user", "1000:1000", "--env", "PATH=/usr/local/bin")
    return MADE


def furnish(root: Path) -> None:
    """The interpreter of this process, its library, and what the loader wants, where each looks for it."""
    for name in ("dev", "proc", "sys", "tmp", "usr/local/bin", "usr/local/lib"):
        (root / name).mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python, library = root / "usr/local/bin/python3", root / "usr/local/lib" / version
    shutil.copy(Path(sys.base_prefix, "bin", version).resolve(), python)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for shared in needed_by([python, *library.glob("lib-dynload/*.so")]):
        place = root / str(shared).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shared.resolve(), place)
    for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        directory.chmod(0o755)


def needed_by(programs: Iterable[Path]) -> set[Path]:
    """The shared libraries of these, at the paths by which they are asked for."""
    told = [
        subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for program in programs
    ]
    return {Path(found[1]) for text in told for found in _LIBRARY.finditer(text)}
