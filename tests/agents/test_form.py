"""The committed schema and form; the form has few fields, with words, units and the model's defaults."""

import re

from agent_runs.agents.form import CAPABILITIES, FORM_FILE, form, form_text
from agent_runs.contracts.agent_config import field_schemas
from agent_runs.contracts.request import AdapterConfig
from agent_runs.contracts.schema import SCHEMA_FILE, schema_text

FIELDS = form()["fields"]
INPUTS = {
    "agent": "combobox",
    "image": "text",
    "dangerouslySkipPermissions": "toggle",
    "workspace": "select",
    "workspaceIgnore": "textarea",
    "keepWarmSec": "number",
    "maxCostUsd": "number",
    "onBusy": "select",
    "timeoutSec": "number",
    "graceSec": "number",
    "advanced": "textarea",
}


def test_the_committed_schema_and_form_are_fresh() -> None:
    assert SCHEMA_FILE.read_text() == schema_text(), "run: python -m agent_runs.contracts.schema"
    assert FORM_FILE.read_text() == form_text(), "run: python -m agent_runs.agents.form"


def test_every_field_is_documented_for_agents() -> None:
    lines = form()["documentation"].splitlines()
    assert [
        key for key in field_schemas() if not any(line.startswith((f"- {key}:", f"- {key} (")) for line in lines)
    ] == []


def test_every_agent_is_documented_with_what_it_can_do() -> None:
    lines = form()["documentation"].splitlines()
    said = [line for line in lines if ": continues a session: " in line]
    assert [line.partition(":")[0].removeprefix("- ") for line in said] == list(CAPABILITIES)
    take_messages = [line for line in said if "gets messages (agent-runs tell): while it works" in line]
    assert [line.partition(":")[0].removeprefix("- ") for line in take_messages] == ["opencode", "claude", "codex"]


def test_the_form_has_eleven_fields_and_one_of_them_holds_all_others() -> None:
    assert [(field["key"], field["type"]) for field in FIELDS] == list(INPUTS.items())
    assert [field["key"] for field in FIELDS if not (field["label"] and field["hint"].endswith("."))] == []


def test_an_amount_has_its_unit_in_its_label() -> None:
    units = {field["key"]: field["label"].partition(" (")[2] for field in FIELDS if field["type"] == "number"}
    seconds = dict.fromkeys(("keepWarmSec", "timeoutSec", "graceSec"), "seconds)")
    assert units == {**seconds, "maxCostUsd": "US dollars)"}


def test_only_the_time_limits_of_a_run_are_where_paperclip_hides_fields() -> None:
    """Paperclip puts a field into its closed section "Advanced Run Policy" by its key. Source: Paperclip 2026.916.1."""
    hidden = [field["key"] for field in FIELDS if re.search("timeout|grace|lifecycle", field["key"], re.IGNORECASE)]
    assert hidden == ["timeoutSec", "graceSec"]  # its own fields of these names would be there


def test_choices_are_those_of_the_model_in_words() -> None:
    chosen = {field["key"]: field["options"] for field in FIELDS if field["type"] == "select"}
    assert list(chosen) == ["workspace", "onBusy"]
    for key, options in chosen.items():
        assert [option["value"] for option in options] == field_schemas()[key]["enum"]
        assert all(" " in option["label"] for option in options)


def test_an_untouched_form_is_the_default_configuration() -> None:
    untouched = {field["key"]: field["default"] for field in FIELDS if "default" in field}
    assert len(untouched) > 5
    assert AdapterConfig.model_validate({"model": "a/b", **untouched}) == AdapterConfig(model="a/b")


def test_a_select_begins_with_a_choice_that_it_offers() -> None:
    chosen = {
        field["key"]: field["default"] in [option["value"] for option in field["options"]]
        for field in FIELDS
        if field["type"] == "select"
    }
    assert chosen == {"workspace": True, "onBusy": True}
