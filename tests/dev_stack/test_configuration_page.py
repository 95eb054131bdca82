"""docs/configuration.md says about every field of an agent's configuration what the model does."""

import re
from pathlib import Path

import pytest

from agent_runs.agents import form
from agent_runs.agents.form import CAPTIONS, EXAMPLE, FORM, Caption
from agent_runs.contracts.agent_config import TOP_LEVEL, field_schemas
from agent_runs.contracts.pod_options import MAX_JSON
from agent_runs.contracts.request import Resources
from agent_runs.job.placement import resources
from agent_runs.plain_yaml import MAX_DEPTH
from dev_stack.configuration_page import PAGE_FILE, page_text
from tests.support.cases import case


def described(key: str) -> str:
    (row,) = [line for line in page_text().splitlines() if line.startswith(f"| `{key}` |")]
    return row


def test_the_committed_page_is_fresh() -> None:
    assert PAGE_FILE.read_text() == page_text(), "run: python -m dev_stack.configuration_page"


def test_every_field_has_one_row_that_says_what_it_does() -> None:
    for key in field_schemas():
        with case(key):
            *_, text, _ = described(key).split("|")
            assert text.strip().endswith(".")


@pytest.mark.parametrize(
    "key", ["model", "env", "effort", "onBusy", "taskQueue", "maxUnreadSec", "resources.limits.memory", "mcpServers"]
)
def test_fields_of_paperclip_the_plugin_and_nested_ones_are_among_them(key: str) -> None:
    assert key in field_schemas()


def test_every_field_that_the_plugin_reads_is_among_them() -> None:
    source = (Path(__file__).parents[2] / "adapter" / "src" / "settings.ts").read_text()
    block = re.search(r"const PER_AGENT[^{]*\{(.*?)\};", source, re.DOTALL)
    assert block
    read = re.findall(r': "(\w+)"', block[1])
    assert {"taskQueue", "onBusy"} <= set(read) <= set(field_schemas())
    assert set(read) - TOP_LEVEL == {"paperclipApiUrl"}  # in advanced the worker reads it, and the agent's own counts


def test_a_field_without_description_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(form.CAPTIONS, FORM, tuple(each for each in CAPTIONS[FORM] if each.key != "image"))
    with pytest.raises(KeyError, match=r"add a Caption .* for image"):
        page_text()


def test_a_description_without_a_field_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(form.CAPTIONS, "Other", (Caption("removed", "Nothing."),))
    with pytest.raises(KeyError, match="removed"):
        page_text()


def test_a_row_has_the_models_type_default_and_limits() -> None:
    assert described("askTimeoutSec").startswith("| `askTimeoutSec` | whole number | 3600 | 0 to 2592000 |")
    assert described("model").startswith("| `model` | text | required |  |")
    assert described("workspace").startswith(
        "| `workspace` | Files of a run | `auto`, `shared`, `carried`, `ephemeral` | `auto` |  |"
    )


def test_the_page_shows_an_advanced_field() -> None:
    assert f"```yaml\n{EXAMPLE}```\n" in page_text()
    assert f"{MAX_JSON} characters at most, {MAX_DEPTH} levels" in page_text()


def test_the_amounts_of_an_agent_that_names_none_are_the_described_ones() -> None:
    for kind, amounts in resources(Resources()).items():
        for resource, amount in amounts.items():
            assert f"empty: {amount}." in described(f"resources.{kind}.{resource}")


def test_skipping_permissions_is_called_dangerous() -> None:
    assert "| Dangerous: " in described("dangerouslySkipPermissions")
