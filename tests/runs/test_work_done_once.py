"""What a worker does not do again, however many steps of a run need it."""

from collections import Counter

import pytest

from agent_runs.paperclip.sealing import Opener
from agent_runs.transcript import events
from tests.runs.system import System, replay_script


async def test_a_run_opens_its_sealed_context_once_and_decodes_a_line_to_store_and_to_judge_it(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, opened = Counter[bytes](), Counter[str]()
    decode, open_sealed = events._decode_small, Opener.open

    def counting_decode(line: bytes) -> events.Event:
        decoded[line] += 1
        return decode(line)

    def counting_open(self: Opener, text: str, *rest: object) -> object:
        opened[text] += 1
        return open_sealed(self, text, *rest)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(events, "_decode_small", counting_decode)
    monkeypatch.setattr(Opener, "open", counting_open)
    outcome = await system.outcome(system.agent(replay_script("tool-bash")))
    assert outcome.failure is None
    assert list(opened.values()) == [1]
    assert set(decoded.values()) == {2}
