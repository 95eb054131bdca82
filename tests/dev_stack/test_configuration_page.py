"""docs/configuration.md says about every field of an agent's configuration what the model does."""

import re
from pathlib import Path

import pytest

from agent_runs.agents import form
from agent_runs.agents.form import CAPTIONS, Caption
from agent_runs.contracts.agent_config import field_schemas
from agent_runs.contracts.request import Resources
from agent_runs.job.placement import resources
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


def test_a_field_without_description_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(form.CAPTIONS, "Core", tuple(each for each in CAPTIONS["Core"] if each.key != "variant"))
    with pytest.raises(KeyError, match=r"add a Caption .* for variant"):
        page_text()


def test_a_description_without_a_field_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(form.CAPTIONS, "Other", (Caption("removed", None, "Nothing."),))
    with pytest.raises(KeyError, match="removed"):
        page_text()


def test_a_row_has_the_models_type_default_and_limits() -> None:
    assert described("graceSec").startswith("| `graceSec` |  | whole number | 60 | 0 to 2592000 |")
    assert described("model").startswith("| `model` |  | text | required |  |")
    assert described("onBusy").startswith("| `onBusy` | When the Agent Is Busy | `wait`, `refuse` | `wait` |  |")


def test_the_amounts_of_an_agent_that_names_none_are_the_described_ones() -> None:
    for kind, amounts in resources(Resources()).items():
        for resource, amount in amounts.items():
            assert f"empty: {amount}." in described(f"resources.{kind}.{resource}")


def test_skipping_permissions_is_called_dangerous() -> None:
    assert "| Dangerous: " in described("dangerouslySkipPermissions")
