"""Small findings of a review, one test each."""

import os
import stat
from pathlib import Path

import pytest

from agent_runs.contracts.identity import RunKey
from agent_runs.paperclip.preparation import prepare
from agent_runs.transcript.store import TranscriptStore
from tests.paperclip.contexts import minimal, with_value


async def test_only_its_owner_reads_the_transcript_store(tmp_path: Path) -> None:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    await store.attempts(RunKey.named("ada~run-1"))
    assert {stat.S_IMODE(each.stat().st_mode) for each in os.scandir(tmp_path)} == {0o600}
    await store.close()


@pytest.mark.parametrize("folder", [{}, [], ["a"], 1, None])
def test_a_scratch_folder_of_any_kind_is_no_crash(folder: object) -> None:
    context = with_value(minimal(), "config.env", {"TMPDIR": "/tmp/x"})
    assert prepare(with_value(context, "context.paperclipScratch", {"dir": folder})).secrets.env == {"TMPDIR": "/tmp/x"}
