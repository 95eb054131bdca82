"""One environment for the session; its tests are skipped, with the reason, where no Paperclip can run."""

from collections.abc import AsyncIterator

import pytest

from tests.paperclip_server.environment import start_environment
from tests.paperclip_server.installation import Unavailable
from tests.paperclip_server.scenarios import SCENARIOS, ScenarioRunner

MEASUREMENTS = pytest.StashKey[dict[str, str]]()


@pytest.fixture(scope="session")
async def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ScenarioRunner]:
    """The runner of the selected tests' scenarios."""
    names = {item.name for item in request.session.items if "runner" in getattr(item, "fixturenames", ())}
    starting = start_environment(tmp_path_factory.mktemp("paperclip"))
    try:
        env = await starting.__aenter__()
    except Unavailable as reason:
        pytest.skip(f"no real Paperclip: {reason}")
    scenarios = ScenarioRunner(env, [one for name, one in SCENARIOS.items() if name in names])
    request.config.stash[MEASUREMENTS] = env.measurements
    scenarios.begin()
    try:
        yield scenarios
    finally:
        await scenarios.end()
        await starting.__aexit__(None, None, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the measurements."""
    if measurements := config.stash.get(MEASUREMENTS, None):
        terminalreporter.section("Paperclip: measured")
        for name, value in measurements.items():
            terminalreporter.line(f"{name}: {value}")
