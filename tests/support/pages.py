"""The commands of a page of the documentation, executed as they stand there."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import IO, Final

from dev_stack.plan import ROOT

BASH: Final = ("bash", "-euo", "pipefail")
START_LIMIT: Final = 300
"""Seconds until what a block starts is up."""
_END: Final = "--- end of the block"
_BLOCK: Final = re.compile(r"(.*?)^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_UP: Final = re.compile(r"up at `([^`]+)`")


def fenced(page: str, section: str = "") -> list[tuple[str, str]]:
    """The fenced blocks of shell commands of a page, or of one of its sections, each with the text before it."""
    text = (ROOT / "docs" / page).read_text()
    if section:
        _, found, text = text.partition(f"\n## {section}\n")
        assert found, f"{page} has no section {section}"
        text = text.partition("\n## ")[0]
    return [(before, commands) for before, commands in _BLOCK.findall(text)]


async def run_block(commands: str, **variables: str) -> str:
    """Runs one block, which ends at the first command that fails; returns the output."""
    process = await asyncio.create_subprocess_exec(
        *(*BASH, "-c", commands), env={**os.environ, **variables}, cwd=ROOT, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def execute(page: str, section: str) -> None:
    """Executes a section as a reader does, and prints the output of all blocks but servers.

    A block of which the text says that something is up at some words gets a terminal of its own, and writes these words
    before the next block begins. All others go into one shell."""
    shell = subprocess.Popen(BASH, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True)
    assert shell.stdin is not None
    assert shell.stdout is not None
    for before, commands in fenced(page, section):
        if up := _UP.search(before):
            _start(commands, up[1])
            continue
        shell.stdin.write(f"{commands}\necho '{_END}'\n")
        shell.stdin.flush()
        _copy(shell.stdout, commands)


def _start(commands: str, words: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".log", delete=False) as log:
        server = subprocess.Popen((*BASH, "-c", commands), cwd=ROOT, stdout=log, stderr=STDOUT)
    limit = time.monotonic() + START_LIMIT
    while words not in (written := Path(log.name).read_text(errors="replace")):
        if server.poll() is not None or time.monotonic() > limit:
            sys.exit(f"{commands}does not get up to {words}:\n{written[-3000:]}")
        time.sleep(0.2)


def _copy(output: IO[str], commands: str) -> None:
    for line in output:
        if line == f"{_END}\n":
            return
        sys.stdout.write(line)
        sys.stdout.flush()
    sys.exit(f"{commands}failed")


if __name__ == "__main__":
    execute(*sys.argv[1:])
