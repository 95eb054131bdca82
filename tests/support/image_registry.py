"""A container registry on this machine (Debian's docker-registry), which knows no password and no TLS."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import HOST, free_port

CONFIGURATION = """\
version: 0.1
log: {{accesslog: {{disabled: true}}, level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: {address}}}
"""
PLAIN_HTTP = """\
[[registry]]
location = "{address}"
insecure = true
"""


def skip_without_programs(*names: str) -> None:
    """Skip the test by the names of the programs that this machine lacks."""
    if missing := [name for name in names if shutil.which(name) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")


@contextmanager
def image_registry(folder: Path) -> Iterator[str]:
    """Start a registry that keeps its images in this folder; yields its address.

    Programs that push to it find in the folder the file `registries.conf`, for CONTAINERS_REGISTRIES_CONF.
    """
    address = f"{HOST}:{free_port()}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "registries.conf").write_text(PLAIN_HTTP.format(address=address))
    (folder / "config.yml").write_text(CONFIGURATION.format(folder=folder / "images", address=address))
    with subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stderr=subprocess.DEVNULL) as process:
        try:
            while not answers(address):
                assert process.poll() is None, "docker-registry has ended"
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True
