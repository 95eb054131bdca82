"""`advanced`: the fields of a configuration that the form does not show, as one text, read as if each stood alone."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.agents.form import CAPTIONS, EXAMPLE, FORM, IN_ADVANCED
from agent_runs.contracts.agent_config import TOP_LEVEL, field_schemas, top_key
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.start import HostTexts
from agent_runs.paperclip.advanced import fold
from agent_runs.paperclip.preparation import Preparation, prepare
from tests.paperclip.contexts import NAMES, captured, minimal, opened, with_value
from tests.support.cases import case

CANARY = "canary-5e1f"
READ = HostTexts(instructions="", skills={})
OLD_FORM = {
    "agent": "opencode",
    "dangerouslySkipPermissions": True,
    "askTimeoutSec": 3600,
    "keepWarmSec": 120,
    "transport": "auto",
    "workspace": "shared",
    "skills": "folders",
    "agentDbMode": "workspace_subpath",
    "agentDbStorageCapacity": "1Gi",
    "imagePullPolicy": "IfNotPresent",
    "ttlSecondsAfterFinished": 300,
    "retainJobs": False,
    "maxCostUsd": 0,
    "maxTokens": 0,
    "scheduleTimeoutSec": 600,
    "startTimeoutSec": 600,
    "firstOutputTimeoutSec": 420,
    "silenceTimeoutSec": 3600,
    "infrastructureRetries": 2,
    "onBusy": "wait",
}
"""What the form with a field for everything has saved for a new agent."""


def prepared(advanced: object, **config: Any) -> Preparation:
    return prepare(minimal(advanced=advanced, **config), READ)


def refusal(advanced: object, **config: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        prepared(advanced, **config)
    assert CANARY not in refused.value.message
    return refused.value.message


def test_the_example_of_the_docs_is_what_it_says() -> None:
    run = prepared(EXAMPLE)
    config = run.request.config
    assert run.request.notes == ()
    assert (config.namespace, config.silence_timeout_sec, config.max_steps) == ("agents", 1800, 200)
    assert config.resources.requests.model_dump() == {"cpu": "2", "memory": "4Gi", "ephemeral-storage": None}
    assert config.resources.limits.memory == "8Gi"
    assert config.node_selector == {"pool": "agents"}
    assert config.tolerations is not None
    assert config.tolerations[0].effect == "NoSchedule"
    assert config.opencode_features == ("lsp",)
    assert run.secrets.mcp_servers == {"docs": {"type": "remote", "url": "https://docs.example/mcp"}}


INSIDE: dict[str, Any] = {
    "namespace": "agents",
    "resources": {"limits": {"memory": "8Gi"}},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "silenceTimeoutSec": 60,
    "variant": "max",
    "opencode": {"compaction": {"auto": True}},
    "paperclipApiUrl": "https://paperclip.example",
    "cwd": "/paperclip/x",
    "labels": "a=b",
}


@pytest.mark.parametrize("written", [INSIDE, json.dumps(INSIDE), json.dumps(INSIDE, indent="\t")])
def test_fields_inside_mean_what_they_mean_at_the_top_level(written: object) -> None:
    inside, outside = prepared(written), prepare(minimal(**INSIDE), READ)
    assert (inside.request, inside.secrets, inside.prompt) == (outside.request, outside.secrets, outside.prompt)
    assert inside.names_address


@pytest.mark.parametrize("empty", ["", " \n", "# nothing", "{}", None, {}, {"namespace": None, "image": ""}])
def test_an_empty_one_changes_nothing(empty: object) -> None:
    assert prepared(empty).request == prepare(minimal(), READ).request


@pytest.mark.parametrize("name", NAMES)
def test_configurations_without_it_keep_their_meaning(name: str) -> None:
    config = captured(name)["config"]
    everything = OLD_FORM | INSIDE | config
    assert fold(everything).config == everything
    saved = with_value(captured(name), "config", OLD_FORM | config)
    assert prepare(saved, READ).request == prepare(captured(name), READ).request


def test_a_default_that_an_earlier_form_has_saved_gives_way() -> None:
    run = prepared("silenceTimeoutSec: 60\ntransport: run\nresources: {limits: {cpu: 2}}", **OLD_FORM)
    config = run.request.config
    assert (config.silence_timeout_sec, config.transport, config.resources.limits.cpu) == (60, "run", "2")


@pytest.mark.parametrize(
    ("advanced", "outside", "message"),
    [
        ("namespace: a", {"namespace": "b"}, "config.advanced.namespace and config.namespace differ: remove one"),
        (
            "nodeSelector: {a: b}",
            {"node_selector": {"a": "c"}},
            "config.advanced.nodeSelector and config.node_selector",
        ),
        (
            "resources: {limits: {memory: 1Gi}}",
            {"resources.limits.memory": "2Gi"},
            "config.advanced.resources and config.resources.limits.memory differ",
        ),
        ("maxSteps: 0", {"maxSteps": 5}, "config.advanced.maxSteps and config.maxSteps differ"),
    ],
)
def test_a_field_with_two_values_is_refused_with_both_names(
    advanced: str, outside: dict[str, Any], message: str
) -> None:
    assert refusal(advanced, **outside).startswith(message)


def test_a_field_with_the_same_value_twice_counts_once() -> None:
    assert prepared("namespace: a", namespace="a").request.config.namespace == "a"


@pytest.mark.parametrize("name", [*sorted(TOP_LEVEL), "keep_warm_sec", "paperclipSkillSync.desiredSkills"])
def test_a_field_with_another_place_is_refused_by_name_and_place(name: str) -> None:
    message = refusal({name: CANARY})
    assert message.startswith(f"config.advanced.{name} is not read here: set config.{top_key(name)} itself")


@pytest.mark.parametrize(
    ("advanced", "path"),
    [
        (
            f"resources: {{limits: {{memory: {CANARY}}}}}",
            "config.advanced.resources.limits.memory must be a Kubernetes",
        ),
        (f"resources.limits.memory: {CANARY}", "config.advanced.resources.limits.memory must be a Kubernetes"),
        ("resources: 5", "config.advanced.resources must be an object"),
        (f"tolerations: [{{operator: {CANARY}}}]", "config.advanced.tolerations[0].operator"),
        ("node_selector: {a: 2}", "config.advanced.node_selector.a must be text"),
        ("maxSteps: many", "config.advanced.maxSteps must be a whole number"),
        ("affinity: {nodeAffinities: {}}", "config.advanced.affinity nodeAffinities: is not known"),
        ("podTemplate: {spec: {hostPID: true}}", "config.advanced.podTemplate spec.hostPID"),
        ("opencode: {mcp: 3}", "config.advanced.opencode.mcp must be an object"),
        ("cwd: relative", "config.advanced.cwd must be an absolute path"),
        (f"paperclipApiUrl: {CANARY}", "config.advanced.paperclipApiUrl must be an absolute http"),
        (f"kubeconfig: {CANARY}", "config.advanced.kubeconfig is not honoured"),
        ("opencode: {since: 2026-01-02}", "config.advanced.opencode.since must not be a date: write it in quotes"),
        ("opencode: {a: [1, !!binary aGk=]}", "config.advanced.opencode.a[1] must be a value that JSON has"),
        ("labels: {on: x}", "config.advanced.labels.True must have a text as its key"),
        (f"labels: {{a b: {CANARY}}}", "config.advanced.labels keys must be Kubernetes label keys"),
    ],
)
def test_a_wrong_value_is_named_with_its_path_and_never_quoted(advanced: str, path: str) -> None:
    assert refusal(advanced).startswith(path)


def test_wrong_values_inside_and_outside_are_reported_together() -> None:
    wrong = "maxSteps: many\nkeepWarmSec: 5\nnamespace: a\nopencode: {since: 2026-01-02}\nlabels: 5"
    message = refusal(wrong, timeoutSec="long", model="x", namespace="b")
    inside = ("maxSteps", "keepWarmSec", "namespace", "opencode.since", "labels")
    for path in (*(f"config.advanced.{name} " for name in inside), "config.timeoutSec ", "config.model "):
        assert path in message


@pytest.mark.parametrize(
    ("advanced", "note"),
    [
        ("nodeSelectors: {a: b}", "config.advanced.nodeSelectors is not known: did you mean nodeSelector?"),
        ("modle: a/b", "config.advanced.modle is not known: did you mean model?"),
        ("node-pool: x", "config.advanced.node-pool is not known and has no effect: "),
        (
            "resources: {limits: {mem: 1Gi}}",
            "config.advanced.resources.limits.mem is not known and has no effect: ",
        ),
        ("resources.limits.memori: 1Gi", "config.advanced.resources.limits.memori is not known: did you mean"),
    ],
)
def test_an_unknown_field_is_a_warning_with_its_path_and_the_nearest_name(advanced: str, note: str) -> None:
    (found,) = prepared(advanced).request.notes
    assert found.startswith(note)


ALIASES = "labels: &a {x: y}\nannotations: *a\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ALIASES, "config.advanced must be an object in YAML or JSON, line 2: aliases (`*a`) are not read"),
        ("labels: &a [*a]", "config.advanced must be an object in YAML or JSON, line 1: aliases"),
        ("opencode: " + "[" * 5000 + "]" * 5000, "config.advanced must be an object in YAML or JSON, line 1: nested"),
        ('{"opencode": ' + '{"a":' * 50 + "1" + "}" * 51, "config.advanced.opencode.a.a"),
        ("maxSteps: " + "1" * 5000, "config.advanced must be an object in YAML or JSON, line 1: a value without"),
        ("a: '" + "x" * 20_000 + "'", "config.advanced must not have more than 16384 characters"),
        (
            "namespace: a\nnamespace: b",
            "config.advanced must be an object in YAML or JSON, line 2: `namespace` is there",
        ),
        ("namespace: a\n  b: c", "config.advanced must be an object in YAML or JSON, line 2: mapping values"),
        ("namespace=agents", "config.advanced must be an object in YAML or JSON, such as `namespace: agents`"),
        ("[1]", "config.advanced must be an object in YAML or JSON, such as"),
        ("1: a", "config.advanced must have names of fields as keys, and 1 is not text"),
    ],
)
def test_a_text_that_is_no_such_object_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert refusal(text).startswith(reason)


def test_an_object_of_another_type_is_refused() -> None:
    for wrong in (5, True, ["namespace"]):
        with case(str(wrong)):
            assert refusal(wrong).startswith("config.advanced must be an object in YAML or JSON")


@given(st.one_of(st.text(max_size=200), st.recursive(st.none() | st.text(max_size=8), st.lists, max_leaves=5)))
def test_any_value_is_read_or_refused(value: object) -> None:
    try:
        prepared(value)
    except InvalidRequest as refused:
        assert refused.message.startswith("config.")  # noqa: PT017 - fuzzing: most inputs raise nothing


def test_its_text_is_no_part_of_what_templates_see() -> None:
    secret = f"mcpServers: {{docs: {{type: remote, url: 'https://x', headers: {{A: {CANARY}}}}}}}"
    context = with_value(minimal(advanced=secret), "agent.adapterConfig", {"advanced": secret, "model": "a/b"})
    request, secrets, prompt = opened(context)
    assert secrets.mcp_servers["docs"]["headers"] == {"A": CANARY}
    assert CANARY not in request.model_dump_json() + prompt.model_dump_json()
    assert prompt.agent["adapterConfig"] == {"model": "a/b"}


def test_an_effort_that_a_variant_replaces_is_a_warning() -> None:
    notes = prepared("variant: max", effort="low").request.notes
    assert notes == ("config.effort has no effect: config.variant counts",)
    assert prepared("variant: low", effort="low").request.notes == ()


def test_each_field_has_one_place() -> None:
    for group, captions in CAPTIONS.items():
        for caption in captions:
            with case(caption.key):
                assert (top_key(caption.key) not in TOP_LEVEL) == group.startswith(IN_ADVANCED)
                assert bool(caption.label) == (group == FORM)
    assert {top_key(key) for key in field_schemas()} > TOP_LEVEL
