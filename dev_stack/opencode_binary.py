"""The real OpenCode binary for demos and tests: found, or installed once through npm into a cache folder.

npm's package `opencode-ai` is a launcher that picks one of several platform packages; the platform package holds the
binary itself and is all that is needed, so it is installed directly and without its scripts. OpenCode 2 has such
packages, too, with other names.
"""

import functools
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dev_stack.npm import OPTIONS, NpmFailed, ensure_installed, npm, run, summary
from dev_stack.plan import cache_folder

VERSION: Final = "1.18.33"
VERSION_2: Final = "2.0.15"
NEWEST: Final = {1: VERSION, 2: VERSION_2}
"""Those that are tested, by their first number."""
OVERRIDE: Final = "AGENT_RUNS_OPENCODE"
_SYSTEMS: Final = {"Linux": "linux", "Darwin": "darwin"}
_MACHINES: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


class OpenCodeUnavailable(Exception):
    """OpenCode is not available. The message states what failed and the remedy."""

    def __init__(self, failed: str, remedy: str) -> None:
        super().__init__(f"{failed}\n{remedy}, or set {OVERRIDE}=/path/to/opencode (version {VERSION}).")


async def ensure_opencode(cache: Path | None = None, version: str = VERSION) -> Path:
    """The path of OpenCode's binary: what AGENT_RUNS_OPENCODE names, else `cache/<version>/…`, installed if missing.

    Args:
        cache: None: `opencode` in the cache of all downloads.
        version: of any other than `VERSION`, AGENT_RUNS_OPENCODE is not read.

    Raises:
        OpenCodeUnavailable: no npm, no network, no such version, no binary for this machine, no writable cache.
    """
    if version == VERSION and (override := os.environ.get(OVERRIDE)):
        return _checked_override(Path(override))
    cache = cache or cache_folder() / "opencode"
    package = package_name(Machine.this(), version)
    home = cache.resolve() / version
    binary = _binary(home, package)
    install = functools.partial(_install, package, version)
    try:
        await ensure_installed(home, functools.partial(_executable, binary), install)
    except NpmFailed as error:
        raise OpenCodeUnavailable(error.failed, error.remedy) from error
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


def package_name(machine: Machine, version: str = VERSION) -> str:
    """The npm package with the binary for a machine. Of OpenCode 2 it is the build that needs no AVX2.

    Raises:
        OpenCodeUnavailable: none is published for it, or none that we can run.

    Source: `optionalDependencies` of opencode-ai 1.18.33; the registry, for 2.0.15.
    """
    system = _SYSTEMS.get(machine.system)
    cpu = _MACHINES.get(machine.machine.lower())
    if system is None or cpu is None:
        raise OpenCodeUnavailable(
            f"There is no OpenCode for {machine.system} on {machine.machine}.", "Use Linux or macOS on x64 or arm64"
        )
    second = version.startswith("2.")
    baseline = ["baseline"] if cpu == "x64" and (second or not machine.avx2) else []
    musl = ["musl"] if machine.musl else []
    return "-".join(["@opencode/cli" if second else "opencode", system, cpu, *baseline, *musl])


def _binary(home: Path, package: str) -> Path:
    return home / "node_modules" / package / "bin" / "opencode"


def _checked_override(binary: Path) -> Path:
    if not _executable(binary):
        raise OpenCodeUnavailable(f"{OVERRIDE} names {binary}, which is no executable file.", "Correct or unset it")
    return binary.resolve()


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


async def _install(package: str, version: str, folder: Path) -> None:
    wanted = f"{package}@{version}"
    await npm(["install", "--prefix", str(folder), "--no-save", "--no-package-lock", *OPTIONS, wanted], wanted)
    await _check_binary(_binary(folder, package), version)


async def _check_binary(binary: Path, version: str) -> None:
    """Run it once. OpenCode makes folders in HOME and TMPDIR at every start, so it gets temporary ones."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        code, output = await run(
            [str(binary), "--version"], {"PATH": os.defpath, "HOME": scratch, "TMPDIR": scratch, "PWD": scratch}
        )
    if code != 0 or output.split()[-1:] not in ([version], [f"v{version}"]):
        raise OpenCodeUnavailable(
            f"The installed OpenCode does not run here: `opencode --version` ended with {code}: {summary(output)}",
            "Report the machine and this message",
        )
