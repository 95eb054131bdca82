"""A real S3 server for a test, started by the tool that the variable names."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.ports import free_port

TOOL = "TEST_S3_TOOL"
PORTS = 10
"""That the server takes, from its first one on."""


class S3Server:
    """One server with its data; its variables are those that clients of S3 read."""

    def __init__(self, root: str) -> None:
        self._environment = {**os.environ, "S3_ROOT": root, "S3_PORT": str(free_port(count=PORTS))}

    def __call__(self, *words: str) -> str:
        """Run the tool with these arguments; returns what it prints."""
        command = [os.environ[TOOL], *words]
        ran = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def up(self, *options: str) -> dict[str, str]:
        """Start it, and return the variables."""
        words = shlex.split(self("up", *options))
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server of its own; without the tool the test is skipped."""
    if TOOL not in os.environ:
        pytest.skip(f"{TOOL} not set")
    with tempfile.TemporaryDirectory() as root:
        server = S3Server(root)
        try:
            yield server
        finally:
            server("down")
