"""The first section of docs/paperclip.md, executed in an installed Paperclip."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from dev_stack.opencode_binary import NEWEST, ensure_opencode
from dev_stack.plan import ROOT
from tests.paperclip_server.installation import VERSION, Unavailable, ensure_paperclip, node_home
from tests.support.file_lock import FileLock

NPX = """#!/bin/sh
# The installed Paperclip instead of a download.
[ "$1 $2" = "--yes paperclipai@{version}" ] || exit 2
shift 2
exec {node}/bin/node {program}/node_modules/paperclipai/dist/index.js "$@"
"""
MINUTES = 10


async def output_of(*command: str, **variables: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode()[-6000:]
    return output.decode()


@pytest.mark.paperclip
@pytest.mark.timeout(MINUTES * 60 + 300)
async def test_the_first_ten_minutes_of_the_docs_bring_a_task_to_its_end(tmp_path: Path) -> None:
    if missing := [program for program in ("curl", "jq") if shutil.which(program) is None]:
        pytest.skip(f"no {' and no '.join(missing)} on PATH, which the page needs")
    try:
        program = await ensure_paperclip()
    except Unavailable as reason:
        pytest.skip(f"no real Paperclip: {reason}")
    await ensure_opencode(version=NEWEST[1])
    # PostgreSQL leaves files in /tmp, so the page gets one of its own
    if any(path.is_relative_to("/tmp") for path in (ROOT, program.resolve(), Path(sys.prefix))):
        pytest.skip("this checkout is below /tmp")
    own = tmp_path / "tmp"
    for folder in (own / "home", own / "programs", tmp_path / "state"):
        folder.mkdir(parents=True)
    own.chmod(0o1777)
    npx = own / "programs" / "npx"
    npx.write_text(NPX.format(version=VERSION, node=node_home(), program=program))
    npx.chmod(0o755)
    state = ROOT / ".cache" / "dev"
    state.mkdir(parents=True, exist_ok=True)
    with await asyncio.to_thread(FileLock, ROOT / ".cache" / "adapter.lock"):
        await output_of("./dev", "adapter")  # downloads what the page's own call then has
        page = [sys.executable, "-m", "tests.support.pages", "paperclip.md", "The first ten minutes"]
        places = [f"{state}={tmp_path / 'state'}", f"/tmp={own}"]
        machine = [sys.executable, "-m", "tests.support.own_machine", *places, "--", *page]
        path = f"/tmp/programs{os.pathsep}{os.environ['PATH']}"
        async with asyncio.timeout(MINUTES * 60):
            output = await output_of(*machine, PATH=path, HOME="/tmp/home", TMPDIR="/tmp", DO_NOT_TRACK="1")
    assert '"type":"opencode_k8s"' in output
    assert '"type":"opencode_local"' in output
    # "Test environment"
    assert output.splitlines()[-1] == "pass"
    # the folder went out; the page ends with the task, and does not wait until its run has ended
    ledger = [json.loads(each.read_bytes())["kind"] for each in (tmp_path / "state/workspaces").glob("*/runs/*/*/*")]
    assert {"out", "begin"} <= set(ledger)
