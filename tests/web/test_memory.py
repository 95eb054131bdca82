"""What readers cost a service that runs alone."""

import asyncio
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from agent_runs.client import links
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.store import TranscriptStore
from agent_runs.transcript.tokens import authorization
from tests.web.parts import RUN, key, line

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc"),
]
READERS = 20
MEBI = 1024 * 1024


def resident(pid: int) -> int:
    """Bytes in memory."""
    fields = dict(row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in row)
    return int(fields["VmRSS"].split()[0]) * 1024


async def test_slow_readers_of_a_large_transcript_cost_little_memory(tmp_path: Path) -> None:
    settings = ClientSettings(sealing_key_file=tmp_path / "key.json")
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    for first in range(1, 2001, 100):
        await store.append(key(), [line(n, b"%d " % n + b"x" * 50_000) for n in range(first, first + 100)])
    await store.close()
    headers = authorization(links.load_tokens(settings).mint(RunKey.named(RUN)))
    given = {
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "AGENT_RUNS_SEALING_KEY_FILE": str(settings.sealing_key_file),
        "AGENT_RUNS_TRANSCRIPTS_URL": f"sqlite:///{tmp_path}/transcripts.db",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_runs.cli.main", "transcripts", "--listen", "127.0.0.1:0"),
        env={**os.environ, **given},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        while b"transcripts  " not in (said := await process.stdout.readline()):
            assert said, "the service ended before it listened"
        base = said.decode().split()[-1]
        async with aiohttp.ClientSession(base, headers=headers, timeout=aiohttp.ClientTimeout(total=120)) as http:
            async with http.get(f"/runs/{RUN}/transcript") as answer:  # warm: one whole download
                assert len(await answer.read()) > 95 * MEBI
            before = resident(process.pid)
            paths = [f"/runs/{RUN}/{what}" for what in ("transcript", "events", "live?after=0")]
            stalled = [await http.get(paths[number % 3]) for number in range(READERS)]
            for answer in stalled:
                await answer.content.readany()
            async with http.get(f"/runs/{RUN}/transcript") as answer:  # the others had time to be served more
                assert len(await answer.read()) > 95 * MEBI
            async with http.get(f"/runs/{RUN}") as answer:
                assert len(await answer.text()) < 20 * MEBI
            grown = resident(process.pid) - before
            for answer in stalled:
                answer.close()
        assert grown < 96 * MEBI  # the transcript has 100 MB, twenty readers want 2 GB
    finally:
        process.terminate()
        await process.wait()
