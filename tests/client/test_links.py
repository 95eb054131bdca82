"""Links to Paperclip's own pages."""

import pytest

from agent_runs.client.links import PaperclipPages

AGENT, RUN, TASK = (f"{digit * 8}-aaaa-4bbb-8ccc-{digit * 12}" for digit in "123")
PAGES = PaperclipPages("https://paperclip.example/")


def test_a_run_and_a_task_have_the_addresses_of_paperclips_routes() -> None:
    assert PAGES.run(AGENT, RUN) == f"https://paperclip.example/agents/{AGENT}/runs/{RUN}"
    assert PAGES.task(TASK) == f"https://paperclip.example/issues/{TASK}"


@pytest.mark.parametrize("other", ["", "ada", "__heartbeat__", f"{TASK}/../x", f"{TASK}?a", f"{TASK}\n"])
def test_what_is_no_id_of_paperclip_gets_no_link(other: str) -> None:
    assert PAGES.run(other, RUN) is None
    assert PAGES.run(AGENT, other) is None
    assert PAGES.task(other) is None


def test_without_the_setting_there_are_no_links() -> None:
    assert PaperclipPages().run(AGENT, RUN) is None
    assert PaperclipPages().task(TASK) is None
