"""How the pages look: on a desk and on a phone, by day and by night, for a person to compare.

The pictures are written to the folder TEST_PICTURES, with an index.html that shows them side by side. Asserted is what
a person needs on any screen: nothing has to be scrolled sideways, and the agent's words are on the first screen.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agent_runs.client.obstacles import Obstacle
from agent_runs.client.timeline import Step
from agent_runs.contracts.errors import SessionUnavailable
from agent_runs.contracts.outcome import Outcome, OutputReceipt, Usage
from agent_runs.web.run_info import RunInfo
from tests.conftest import FIXTURES
from tests.web.chromium import Chromium, Tab, chromium, installed
from tests.web.parts import NOON, RUN, Site, key, line, run_info, site

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH: install Debian's package chromium"),
]
SCREENS = {"desk": (1400, 900), "phone": (390, 844)}
FACTS = {
    "agent": "Ada, backend engineer",
    "task": "3f0f1c9e-6a4e-4d6a-9b0e-2f1f6f0c8a11",
    "woken by": "issue_assigned",
    "model": "anthropic/claude-sonnet-4-5",
    "pod": "agent-opencode-ada-7d6733a4-d312a0-x7k2p",
    "node": "worker-3",
}
STEPS = ["prepare_run", "introspect_pod", "bundle_prompt", "create_job", "await_schedule", "stream_logs"]


@pytest.fixture(scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chromium]:
    async with chromium(str(PROGRAM), tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the pictures; at the end its index.html shows them side by side."""
    folder = Path(os.environ.get("TEST_PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    names = sorted(file.name for file in folder.glob("*.png"))
    figures = [f'<figure><img src="{name}" width=460><figcaption>{name}</figcaption></figure>' for name in names]
    (folder / "index.html").write_text("<style>figure{display:inline-block}</style>" + "".join(figures))


def steps(*names: str, attempt: int = 1) -> list[Step]:
    return [Step(name, NOON, NOON + timedelta(seconds=1.3), attempt=attempt) for name in names]


def finished() -> RunInfo:
    usage = Usage(input_tokens=18_240, cached_input_tokens=41_000, output_tokens=2_310)
    summary = "I added the missing index and **all 214 tests pass**. The slow query now takes 3 ms."
    outcome = Outcome(summary=summary, usage=usage, session_id="ses_4f1c", exit_code=0)
    both = [*steps(*STEPS, "parse_transcript", "finish"), *steps(*STEPS[1:], "parse_transcript", "finish", attempt=2)]
    reasons = {1: "session_unavailable: Session not found"}
    info = run_info("succeeded", outcome, facts=FACTS, reasons=reasons)
    return replace(info, steps=both)


def waiting() -> RunInfo:
    text = (
        "creating the Job failed 7 times in 2 min 10 s: Kubernetes did not answer (k8s_api_unavailable). "
        "Next try in 20.0 s. Check the API server; the run continues by itself once it answers."
    )
    info = run_info("preparing", facts=FACTS, obstacles=[Obstacle("step_fails", "creating the Job", text, NOON)])
    return replace(info, steps=[*steps(*STEPS[:3]), Step("create_job", NOON)])


def failed() -> RunInfo:
    failure = SessionUnavailable.as_failure("Session not found: ses_4f1c")
    outcome = Outcome(failure=failure, error_code=failure.code, error_message=failure.message, summary="")
    return replace(run_info("failed", outcome, facts=FACTS), steps=steps(*STEPS, "parse_transcript", "finish"))


async def pictured(tab: Tab, file: Path, screen: str, scheme: str) -> None:
    width, height = SCREENS[screen]
    await tab.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=screen == "phone"
    )
    await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await tab.picture(file)


@pytest.mark.parametrize(("name", "info"), [("finished", finished), ("waiting", waiting), ("failed", failed)])
@pytest.mark.parametrize("screen", SCREENS)
async def test_a_runs_page_fits_its_screen_and_begins_with_what_matters(
    browser: Chromium, tmp_path: Path, pictures: Path, name: str, info: Callable[[], RunInfo], screen: str
) -> None:
    async with site(tmp_path) as here, browser.tab() as tab:
        here.source.info = info()
        if name != "waiting":
            await _with_output(here)
        await tab.open(here.link, ends_at=f"{here.base}/runs/{RUN}")
        for scheme in ("light", "dark"):
            await pictured(tab, pictures / f"run-{name}-{screen}-{scheme}.png", screen, scheme)
        assert await tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        first = {"finished": ".summary", "waiting": ".obstacle", "failed": ".failure"}[name]
        bottom = await tab.evaluate(f"document.querySelector('{first}').getBoundingClientRect().bottom")
        assert 0 < bottom < SCREENS[screen][1]
        if name == "finished":
            top = await tab.evaluate("document.querySelector('.transcript li').getBoundingClientRect().top")
            assert top < SCREENS[screen][1]


async def _with_output(here: Site) -> None:
    output = await asyncio.to_thread((FIXTURES / "opencode" / "tool-bash" / "events.jsonl").read_bytes)
    lines = output.splitlines()
    for attempt in (1, 2):
        await here.store.append(key(attempt), [line(number, data) for number, data in enumerate(lines, 1)])
        await here.store.seal(key(attempt), OutputReceipt(state="verified", lines=len(lines)))
