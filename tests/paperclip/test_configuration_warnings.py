"""What of an agent's configuration has no effect is a warning that names it, never with its value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.start import HostTexts
from agent_runs.paperclip.preparation import prepare
from agent_runs.paperclip.unknown_fields import FOREIGN_FIELDS
from tests.paperclip.contexts import NAMES, captured, minimal, with_value

CANARY = "canary-5e1f"
READ = HostTexts(instructions="", skills={})


def notes(**config: Any) -> tuple[str, ...]:
    return prepare(minimal(**config), READ).request.notes


@pytest.mark.parametrize(
    ("config", "field", "nearest"),
    [
        ({"timeoutSecs": CANARY}, "timeoutSecs", "timeoutSec"),
        ({"silenceTimeout": CANARY}, "silenceTimeout", "silenceTimeoutSec"),
        ({"onbusy": CANARY}, "onbusy", "onBusy"),
        ({"Env": {"A": CANARY}}, "Env", "env"),
        ({"paperclipApiURI": CANARY}, "paperclipApiURI", "paperclipApiUrl"),
        ({"resources": {"requests": {"cpus": CANARY}}}, "resources.requests.cpus", "resources.requests.cpu"),
        ({"resources": {"request": {"cpu": CANARY}}}, "resources.request", "resources.requests"),
        ({"resources.requests.cpus": CANARY}, "resources.requests.cpus", "resources.requests.cpu"),
        ({"tolerations": [{"operator": "Exists", "efect": CANARY}]}, "tolerations[0].efect", "tolerations[0].effect"),
        (
            {"tolerations": f'[{{"operator": "Exists", "Keys": "{CANARY}"}}]'},
            "tolerations[0].Keys",
            "tolerations[0].key",
        ),
    ],
)
def test_a_misspelt_field_is_a_note_of_the_run_with_the_nearest_name(
    config: dict[str, Any], field: str, nearest: str
) -> None:
    assert notes(**config) == (f"config.{field} is not known: did you mean {nearest}?",)


def test_a_field_that_resembles_none_is_named_too() -> None:
    (note,) = notes(endpoint=CANARY)
    assert note.startswith("config.endpoint is not known and has no effect: ")


def test_a_misspelt_field_that_a_run_needs_is_named_where_it_is_missing() -> None:
    context = minimal(modle="a/b")
    del context["config"]["model"]
    with pytest.raises(
        InvalidRequest, match=r"config\.model is missing.*config\.modle is not known: did you mean model"
    ):
        prepare(context)


@pytest.mark.parametrize("name", NAMES)
def test_what_paperclip_itself_puts_into_a_configuration_is_no_warning(name: str) -> None:
    assert [note for note in prepare(captured(name), READ).request.notes if "config" in note] == []


def test_a_field_that_this_adapter_deliberately_does_not_have_is_no_warning() -> None:
    names = {name for names in FOREIGN_FIELDS.values() for name in names} - {"kubeconfig"}
    assert {name: found for name in names if (found := notes(**{name: CANARY}))} == {}


@pytest.mark.parametrize(
    "config",
    [
        {"kubeconfig": "", "env": {"HOME": None}},
        {"timeoutSecs": ""},
        {"timeoutSecs": None},
        {"paperclipSomethingNew": {"of": "a later Paperclip"}},
        {"paperclipRuntimeSkills": [{"key": "a", "versionId": "1"}]},
        {"timeout_sec": 5, "resources": {"requests": {"cpu": "1"}}},
        {"labels": {"timeoutSecs": "a"}, "mcpServers": {"timeoutSecs": {}}, "env": {"timeoutSecs": "a"}},
        {"onBusy": "wait", "taskQueue": "q", "effort": "high", "thinkingEffort": "low"},
        {"instructionsRootPath": "/a", "instructionsBundleMode": "managed", "instructionsFilePath": "/a/b"},
    ],
)
def test_a_known_an_empty_or_a_free_name_is_no_warning(config: dict[str, Any]) -> None:
    assert notes(**config) == ()


def test_many_long_and_odd_names_make_few_short_warnings() -> None:
    unknown = {f"\n<b>\u202e{index}{'x' * 5000}": CANARY for index in range(20_000)}
    found = notes(**unknown)
    assert len(found) == 6
    assert found[-1] == "config: more fields are not known and have no effect"
    assert all(len(note) < 200 and note.isprintable() and note.isascii() and "<" not in note for note in found)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(CANARY),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["resources", "tolerations", "x", "timeoutsec"]) | st.text(), json_values))
def test_no_configuration_breaks_the_warnings_or_shows_a_value(config: dict[str, Any]) -> None:
    try:
        text = " ".join(notes(**config))
    except InvalidRequest as refused:
        text = refused.message
    assert CANARY not in text


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("HOME", "the same folder in every run"),
        ("TMPDIR", "the pod's own folder"),
        ("XDG_DATA_HOME", "config.agentDbMode"),
        ("OPENCODE_CONFIG_CONTENT", "AGENT_RUNS_OPENCODE_CONFIG"),
        ("OPENCODE_DISABLE_SHARE", "docs/configuration.md"),
        ("PAPERCLIP_API_URL", "config.paperclipApiUrl"),
        ("PAPERCLIP_API_KEY", "issues a key for each run"),
        ("PAPERCLIP_TASK_ID", "names of your own"),
    ],
)
def test_a_variable_that_has_no_effect_is_a_note_of_the_run_with_the_reason(name: str, remedy: str) -> None:
    (note,) = notes(env={name: CANARY, "MINE": CANARY})
    assert note.startswith(f"config.env.{name}: no effect")
    assert remedy in note
    assert CANARY not in note


def test_variables_without_effect_for_one_reason_are_one_note() -> None:
    (note,) = notes(env=dict.fromkeys(("TMP", "TMPDIR"), CANARY))
    assert note.startswith("config.env.TMPDIR, config.env.TMP: no effect")


def test_what_paperclip_adds_for_a_managed_ai_connection_is_dropped_without_a_warning() -> None:
    added = dict.fromkeys(("HOME", "XDG_DATA_HOME", "OPENCODE_CONFIG_CONTENT", "CODEX_HOME"), "/tmp/paperclip-ai-1")
    connected = prepare(minimal(env={**added, "OPENROUTER_API_KEY": CANARY}, managedAiConnection={"method": "api_key"}))
    assert connected.request.notes == ()
    assert connected.secrets.env == {"OPENROUTER_API_KEY": CANARY}
    assert len(notes(env=added)) == 3  # of CODEX_HOME nobody says anything: it has an effect


def test_a_temporary_folder_that_paperclip_made_on_its_host_is_no_warning() -> None:
    made = with_value(minimal(env={"TMPDIR": "/tmp/x"}), "context.paperclipScratch", {"dir": "/tmp/x"})
    assert prepare(made).request.notes == ()
