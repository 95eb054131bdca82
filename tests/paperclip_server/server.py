"""One Paperclip server with its PostgreSQL: start, readiness, termination, kill, restart."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Final

import aiohttp

from dev_stack.plan import ROOT
from dev_stack.subprocesses import Child, Program
from tests.paperclip_server.installation import node_home, unprivileged
from tests.paperclip_server.sandbox import Sandbox
from tests.support.ports import free_port

BOOT_TIMEOUT: Final = timedelta(minutes=8)
"""Long enough for 278 migrations on two busy cores."""
HEALTH_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
NODE, PROGRAM, PLUGIN, KEYS = "/paperclip-node", "/paperclip-program", "/paperclip-plugin", "/paperclip-keys"
"""Paths inside the sandbox of Node, the server, the plugin, and the keys that it shares with the worker."""


@dataclass
class Server:
    """A Paperclip with a home of its own on the data volume.

    Attributes:
        name: also the folder of its home on the volume.
        volume: this machine's folder that the server sees at `at`; at /paperclip pods see it, too.
        mounts: see `Sandbox.mounts`.
        environment: additional variables; changes take effect with the next start.
    """

    name: str
    volume: Path
    folder: Path
    mounts: Mapping[str, str]
    environment: dict[str, str] = field(default_factory=dict)
    at: str = "/paperclip"
    port: int = field(default_factory=free_port)
    starts: int = 0
    _child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def home(self) -> str:
        """PAPERCLIP_HOME, as the server sees it."""
        return f"{self.at}/{self.name}"

    @property
    def log(self) -> Path:
        """The output of the current start of the server."""
        return self.folder / f"{self.name}-{self.starts}.log"

    def local_path(self, path: str) -> Path:
        """The path on this machine of a path on the volume."""
        return self.volume / path.removeprefix(f"{self.at}/")

    def prepare(self) -> None:
        """Creates its home, with the configuration that `paperclipai onboard` would write."""
        instance = f"{self.home}/instances/default"
        config = self.local_path(f"{instance}/config.json")
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps(_configuration(instance, self.port)))
        if (user := unprivileged()) is not None:
            for path in (self.local_path(self.home), *self.local_path(self.home).rglob("*")):
                os.chown(path, *user)

    async def start(self) -> None:
        """Starts it and waits until it is ready, recovery included.

        Raises:
            StackError: it ended, or was not ready in time; with the end of its log.
        """
        self.starts += 1
        root = self.folder / f"{self.name}-root"
        root.mkdir(exist_ok=True)
        settings = self.folder / f"{self.name}.json"
        Sandbox(
            command=[
                *(f"{NODE}/bin/node", f"{PROGRAM}/node_modules/paperclipai/dist/index.js"),
                *("run", "-d", self.home),
            ],
            environment=self._environment(),
            workdir=self.home,
            mounts={self.at: str(self.volume), **self.mounts},
            root=str(root),
            user=unprivileged(),
            # Process ids start from 1 each time: the id of a lost PostgreSQL may name another process.
            stale=[f"{self.home}/instances/default/db/postmaster.pid"],
        ).write(settings)
        program = Program(
            name=f"Paperclip {self.name}",
            command=[sys.executable, "-m", "tests.paperclip_server.sandbox", str(settings)],
            log=self.log,
            remedy="Read its log.",
            env={"PYTHONPATH": str(ROOT)},
        )
        self._child = await Child.start(program)
        await self._child.ready(self._is_ready, BOOT_TIMEOUT)

    async def terminate(self) -> None:
        """Sends SIGTERM, as an operator does; returns when all its processes have ended."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kills the server and its PostgreSQL, as a lost container; returns when all its processes have ended."""
        await self._end(signal.SIGUSR1)

    async def _end(self, number: signal.Signals) -> None:
        if self._child is None or self._child.ended.done():
            return
        os.kill(self._child._process.pid, number)
        await self._child.ended

    async def _is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=HEALTH_TIMEOUT) as session,
                session.get(f"{self.url}/api/health") as answer,
            ):
                health = await answer.json()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
        return isinstance(health, dict) and (health.get("startupRecovery") or {}).get("phase") == "ready"

    def _environment(self) -> dict[str, str]:
        trust = "/etc/ssl/certs/ca-certificates.crt"
        return {
            "PATH": f"{NODE}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": f"{self.home}",
            "PAPERCLIP_HOME": self.home,
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "PAPERCLIP_TELEMETRY_DISABLED": "1",
            "DO_NOT_TRACK": "1",
            "PAPERCLIP_ANNOUNCEMENTS_ENABLED": "false",
            "PAPERCLIP_OPEN_ON_LISTEN": "false",
            "PAPERCLIP_MIGRATION_AUTO_APPLY": "true",
            "PAPERCLIP_MIGRATION_PROMPT": "never",
            "PAPERCLIP_DB_BACKUP_ENABLED": "false",
            "HEARTBEAT_SCHEDULER_INTERVAL_MS": "10000",
            "NO_COLOR": "1",
            "CI": "1",
            **({"NODE_EXTRA_CA_CERTS": trust} if Path(trust).exists() else {}),
            **self.environment,
        }


@asynccontextmanager
async def run_server(server: Server) -> AsyncIterator[Server]:
    """Starts the server, and kills it at the end."""
    server.prepare()
    try:
        await server.start()
        yield server
    finally:
        await server.kill()


def _configuration(instance: str, port: int) -> dict[str, Any]:
    backups = {"enabled": False, "intervalMinutes": 60, "retentionDays": 30, "dir": f"{instance}/data/backups"}
    storage = {
        "provider": "local_disk",
        "localDisk": {"baseDir": f"{instance}/data/storage"},
        "s3": {"bucket": "paperclip", "region": "us-east-1", "prefix": "", "forcePathStyle": False},
    }
    return {
        "$meta": {"version": 1, "updatedAt": "2026-01-01T00:00:00.000Z", "source": "onboard"},
        "database": {
            "mode": "embedded-postgres",
            "embeddedPostgresDataDir": f"{instance}/db",
            "embeddedPostgresPort": free_port(),
            "backup": backups,
        },
        "logging": {"mode": "file", "logDir": f"{instance}/logs"},
        "server": {
            "deploymentMode": "local_trusted",
            "exposure": "private",
            "bind": "loopback",
            "host": "127.0.0.1",
            "port": port,
            "allowedHostnames": [],
            "serveUi": True,
        },
        "telemetry": {"enabled": False},
        "updates": {"checkEnabled": False},
        "auth": {"baseUrlMode": "auto", "disableSignUp": False},
        "storage": storage,
        "secrets": {
            "provider": "local_encrypted",
            "strictMode": False,
            "localEncrypted": {"keyFilePath": f"{instance}/secrets/master.key"},
        },
    }


async def main(folder: Path, program: Path) -> None:
    """Boots a server in `folder`, and prints how long each kind of end and restart takes."""
    mounts = {NODE: str(node_home()), PROGRAM: str(program)}
    volume = folder / "volume"
    volume.mkdir(parents=True)
    async with run_server(Server("solo", volume, folder, mounts)) as server:
        for end in (server.terminate, server.kill):
            began = monotonic()
            await end()
            ended = monotonic()
            await server.start()
            sys.stdout.write(f"{end.__name__} {ended - began:.1f} s, start {monotonic() - ended:.1f} s\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
