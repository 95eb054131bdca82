import re
from pathlib import Path

from client.settings import OTHER_READERS, PREFIX, ClientSettings
from tests.paperclip.vectors import FILE, vectors

PLUGIN = Path(__file__).parents[2] / "adapter" / "src" / "settings.ts"


def test_the_vectors_for_the_other_language_are_what_python_makes_today() -> None:
    assert FILE.read_text() == vectors(), "stale: run `python -m tests.paperclip.vectors`, then the adapter's tests"


def test_neither_side_calls_a_setting_of_the_other_misspelt() -> None:
    plugins = set(re.findall(r'"([A-Z_]+)"', PLUGIN.read_text())) - {PREFIX}
    kinds: list[type[ClientSettings]] = [ClientSettings, *ClientSettings.__subclasses__()]
    ours = {name.upper() for kind in kinds for name in kind.model_fields}
    assert ours | {name.removeprefix(PREFIX) for name in OTHER_READERS} == plugins
