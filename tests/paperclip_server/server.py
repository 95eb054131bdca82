"""One Paperclip server with its PostgreSQL: started, asked until it is ready, terminated, killed, started again."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Final

import aiohttp

from local.children import Child, Program, tail_of
from local.plan import ROOT
from tests.paperclip_server.house import House
from tests.paperclip_server.installation import node_home, unprivileged

BOOT: Final = timedelta(seconds=150)
"""With 278 migrations on two busy cores."""
ASKING: Final = aiohttp.ClientTimeout(total=5)
NODE, PROGRAM, PLUGIN, KEYS = "/paperclip-node", "/paperclip-program", "/paperclip-plugin", "/paperclip-keys"
"""Where the server sees Node, itself, the plugin, and the keys it shares with the worker."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """Paperclip with a home of its own on the data volume.

    Attributes:
        name: also the folder of its home on the volume.
        volume: this machine's folder that the server and pods see at /paperclip.
        rooms: see `House.rooms`.
        environment: what it gets beside its own; changes take effect with the next start.
    """

    name: str
    volume: Path
    folder: Path
    rooms: Mapping[str, str]
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=_free_port)
    starts: int = 0
    _child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def home(self) -> str:
        """PAPERCLIP_HOME, as the server and pods see it."""
        return f"/paperclip/{self.name}"

    @property
    def log(self) -> Path:
        """What this start of the server writes."""
        return self.folder / f"{self.name}-{self.starts}.log"

    def here(self, path: str) -> Path:
        """Where this machine has a path of the volume."""
        return self.volume / path.removeprefix("/paperclip/")

    def prepare(self) -> None:
        """Its home, and what `paperclipai onboard` would have asked."""
        instance = f"{self.home}/instances/default"
        config = self.here(f"{instance}/config.json")
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps(_configuration(instance, self.port)))
        if (user := unprivileged()) is not None:
            for path in (self.here(self.home), *self.here(self.home).rglob("*")):
                os.chown(path, *user)

    async def start(self) -> None:
        """Up and ready, recovery included.

        Raises:
            StackError: it ended, or was not ready in time; with the end of its log.
        """
        self.starts += 1
        root = self.folder / f"{self.name}-root"
        root.mkdir(exist_ok=True)
        told = self.folder / f"{self.name}.json"
        House(
            command=[
                *(f"{NODE}/bin/node", f"{PROGRAM}/node_modules/paperclipai/dist/index.js"),
                *("run", "-d", self.home),
            ],
            environment=self._environment(),
            workdir=self.home,
            rooms={"/paperclip": str(self.volume), **self.rooms},
            root=str(root),
            user=unprivileged(),
            # Process ids begin anew with each start: a lost PostgreSQL's would name another process.
            stale=[f"{self.home}/instances/default/db/postmaster.pid"],
        ).write(told)
        program = Program(
            name=f"Paperclip {self.name}",
            command=[sys.executable, "-m", "tests.paperclip_server.house", str(told)],
            log=self.log,
            remedy="Its log tells.",
            env={"PYTHONPATH": str(ROOT)},
        )
        self._child = await Child.start(program)
        await self._child.ready(self._is_ready, BOOT)

    async def terminate(self) -> None:
        """SIGTERM, as an operator stops it; returns when nothing of it is left."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL for the server and its PostgreSQL, as a lost container; returns when nothing of it is left."""
        await self._end(signal.SIGUSR1)

    async def _end(self, number: signal.Signals) -> None:
        if self._child is None or self._child.ended.done():
            return
        os.kill(self._child._process.pid, number)
        await self._child.ended

    async def _is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=ASKING) as session,
                session.get(f"{self.url}/api/health") as answer,
            ):
                said = await answer.json()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
        return isinstance(said, dict) and (said.get("startupRecovery") or {}).get("phase") == "ready"

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

    def last_words(self) -> str:
        return tail_of(self.log)


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[Server]:
    """Started, and gone at the end."""
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
            "embeddedPostgresPort": _free_port(),
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
    """Try it out: boots a server in `folder`, tells how long that took, and how long each kind of end and restart."""
    rooms = {NODE: str(node_home()), PROGRAM: str(program)}
    volume = folder / "volume"
    volume.mkdir(parents=True)
    async with running(Server("solo", volume, folder, rooms)) as server:
        for end in (server.terminate, server.kill):
            began = monotonic()
            await end()
            ended = monotonic()
            await server.start()
            sys.stdout.write(f"{end.__name__} {ended - began:.1f} s, start {monotonic() - ended:.1f} s\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
