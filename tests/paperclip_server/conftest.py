"""One system for the session; skipped, with the reason, where no Paperclip can run."""

from collections.abc import AsyncIterator

import pytest

from tests.paperclip_server.installation import Unavailable
from tests.paperclip_server.stage import STORIES, Stage
from tests.paperclip_server.system import system

FIGURES = pytest.StashKey[dict[str, str]]()


@pytest.fixture(scope="session")
async def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The stage, with the stories of the selected tests."""
    names = {item.name for item in request.session.items if "stage" in getattr(item, "fixturenames", ())}
    opening = system(tmp_path_factory.mktemp("paperclip"))
    try:
        whole = await opening.__aenter__()
    except Unavailable as reason:
        pytest.skip(f"no real Paperclip: {reason}")
    made = Stage(whole, [one for name, one in STORIES.items() if name in names])
    request.config.stash[FIGURES] = whole.figures
    made.begin()
    try:
        yield made
    finally:
        await made.end()
        await opening.__aexit__(None, None, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was measured."""
    if figures := config.stash.get(FIGURES, None):
        terminalreporter.section("Paperclip: measured")
        for name, value in figures.items():
            terminalreporter.line(f"{name}: {value}")
