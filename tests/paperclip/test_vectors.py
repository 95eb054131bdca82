import re
from pathlib import Path

from agent_runs.client.settings import OTHER_READERS, PREFIX, STANDARD, WORKER_ONLY, ClientSettings
from tests.paperclip.vectors import FILE, vectors

PLUGIN = Path(__file__).parents[2] / "adapter" / "src" / "settings.ts"


def test_the_vectors_for_the_plugin_are_up_to_date() -> None:
    assert FILE.read_text() == vectors(), "stale: run `python -m tests.paperclip.vectors`, then the adapter's tests"


def test_both_sides_know_the_same_settings() -> None:
    plugin = {PREFIX + name for name in re.findall(r'"([A-Z_]+)"', PLUGIN.read_text())} - {PREFIX + PREFIX}
    ours = {PREFIX + name.upper() for name in ClientSettings.model_fields.keys() - STANDARD}
    assert ours | WORKER_ONLY | OTHER_READERS == plugin
