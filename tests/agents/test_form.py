"""The committed schema and form; the form has the fields of the existing adapters, with the model's defaults."""

from agent_runs.agents.form import CAPABILITIES, FORM_FILE, form, form_text
from agent_runs.contracts.agent_config import field_schemas
from agent_runs.contracts.request import RunConfig
from agent_runs.contracts.schema import SCHEMA_FILE, schema_text

FIELDS = form()["fields"]

INPUTS = {
    "agent": "combobox",  # ours
    "variant": "text",
    "dangerouslySkipPermissions": "toggle",
    "askTimeoutSec": "number",  # ours
    "keepWarmSec": "number",
    "transport": "select",
    "opencodeFeatures": "textarea",
    "workspace": "select",  # ours: the existing adapters lose the work
    "skills": "select",
    "agentDbMode": "select",
    "agentDbStorageClass": "text",
    "agentDbStorageCapacity": "text",
    "serviceAccountName": "text",
    "namespace": "text",
    "image": "text",
    "imagePullPolicy": "select",
    "resources.requests.cpu": "text",
    "resources.requests.memory": "text",
    "resources.limits.cpu": "text",
    "resources.limits.memory": "text",
    "nodeSelector": "textarea",
    "tolerations": "textarea",
    "labels": "textarea",
    "ttlSecondsAfterFinished": "number",
    "retainJobs": "toggle",
    "resources.requests.ephemeral-storage": "text",  # ours, as are the next ones: after those of the existing adapters
    "resources.limits.ephemeral-storage": "text",
    "annotations": "textarea",
    "runtimeClassName": "text",
    "priorityClassName": "text",
    "affinity": "textarea",
    "topologySpreadConstraints": "textarea",
    "extraVolumes": "textarea",
    "podTemplate": "textarea",
    "maxCostUsd": "number",
    "maxTokens": "number",
    "maxSteps": "number",
    "maxRepeatedCalls": "number",
    "scheduleTimeoutSec": "number",
    "startTimeoutSec": "number",
    "firstOutputTimeoutSec": "number",
    "silenceTimeoutSec": "number",
    "infrastructureRetries": "number",
    "paperclipApiUrl": "text",
    "onBusy": "select",
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


def test_agents_of_the_existing_adapters_keep_their_fields_in_their_order() -> None:
    assert [(field["key"], field["type"]) for field in FIELDS] == list(INPUTS.items())
    assert [field["key"] for field in FIELDS if not (field["label"] and field["hint"].endswith("."))] == []


def test_an_untouched_form_is_the_default_configuration() -> None:
    untouched = {field["key"]: field["default"] for field in FIELDS if "default" in field}
    assert len(untouched) > 8
    assert RunConfig.model_validate({"model": "a/b", **untouched}) == RunConfig(model="a/b")


def test_a_select_begins_with_a_choice_that_it_offers() -> None:
    chosen = {
        field["key"]: field["default"] in [option["value"] for option in field["options"]]
        for field in FIELDS
        if field["type"] == "select"
    }
    assert chosen == dict.fromkeys(
        ["workspace", "skills", "agentDbMode", "imagePullPolicy", "transport", "onBusy"], True
    )


def test_the_volumes_fields_are_shown_only_for_a_volume_of_the_agents_own() -> None:
    shown = {field["key"]: field["meta"]["visibleWhen"] for field in FIELDS if "meta" in field}
    when = {"key": "agentDbMode", "value": "dedicated_pvc"}
    assert [key for key in shown if shown[key] == when] == ["agentDbStorageClass", "agentDbStorageCapacity"]


def test_a_field_of_opencodes_alone_is_hidden_for_another_agent_and_shown_where_none_is_chosen() -> None:
    shown = {field["key"]: field["meta"]["visibleWhen"] for field in FIELDS if "meta" in field}
    when = {"key": "agent", "notValues": ["claude", "codex", "gemini", "pi", "qwen"]}
    assert [key for key in shown if shown[key] == when] == [
        "transport",
        "opencodeFeatures",
        "agentDbMode",
    ]
