import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_runs.contracts.errors import InvalidRequest, PaperclipBudgetExceeded
from agent_runs.contracts.request import MAX_WORKSPACES, AdapterConfig, RunRequest
from agent_runs.contracts.start import HostTexts
from agent_runs.paperclip.preparation import BULKY_LIMIT, NESTING_LIMIT, REQUEST_LIMIT, VARIABLE_LIMIT, prepare
from tests.paperclip.contexts import NAMES, captured, minimal, opened, with_value
from tests.support.cases import case

CANARY = "canary-5e1f"


def refusal(context: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        prepare(context)
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # else Temporal sends it along
    return caught.value.message


@pytest.mark.parametrize("name", NAMES)
def test_every_captured_context_becomes_a_request(name: str) -> None:
    context = captured(name)
    request, secrets, prompt = opened(context)
    assert request.run_id == secrets.run_id == context["runId"]
    assert request.agent.id == context["agent"]["id"]
    assert request.config.model == context["config"]["model"]
    assert request.task_id == context["context"]["taskId"]
    assert request.context.issue_work_mode == "standard"
    assert secrets.auth_token == context["authToken"]
    assert prompt.task_markdown == context["context"]["paperclipTaskMarkdown"].strip()
    assert prompt.agent["name"] == context["agent"]["name"]


@pytest.mark.parametrize("name", NAMES)
def test_a_request_stays_small(name: str) -> None:
    assert len(prepare(captured(name)).request.model_dump_json()) < 16_384


def test_variables_that_describe_paperclips_host_are_dropped() -> None:
    _, secrets, _ = opened(captured("ctx-4"))
    assert secrets.env == {"MY_SECRET": "<REDACTED_SECRET>", "PROJ_VAR": "pv"}
    assert secrets.secret_env == ("MY_SECRET",)


def test_variables_that_the_agent_binds_to_secrets_are_secret() -> None:
    bindings = {"BOUND": {"type": "secret_ref", "secretId": "s"}, "PLAIN": {"type": "plain", "value": "b"}}
    context = with_value(minimal(env={"BOUND": "a", "PLAIN": "b"}), "agent.adapterConfig", {"env": bindings})
    _, secrets, _ = opened(context)
    assert secrets.secret_env == ("BOUND",)


def test_a_temporary_folder_that_a_user_chose_stays() -> None:
    env = {"TMPDIR": "/data/tmp", "TMP": "/host/scratch", "PAPERCLIP_SCRATCH_DIR": "/host/scratch"}
    _, secrets, _ = opened(minimal(env=env))
    assert secrets.env == {"TMPDIR": "/data/tmp"}


@pytest.mark.parametrize("url", ["http://paperclip", "https://paperclip.example:8443/base/", "http://[::1]:3100"])
def test_the_agents_configuration_may_set_paperclips_address_for_pods(url: str) -> None:
    request, _, _ = opened(minimal(paperclipApiUrl=url))
    assert request.config.paperclip_api_url == url


def test_configuration_cannot_set_the_api_key() -> None:
    _, secrets, _ = opened(minimal(env={"PAPERCLIP_API_KEY": "mine"}))
    assert secrets.env == {}


WRONG_FIELDS: list[tuple[str, Any, str, str]] = [
    ("config.model", None, "config.model", "<provider>/<model>"),
    ("config.model", "", "config.model", "<provider>/<model>"),
    ("config.model", f"{CANARY}-model", "config.model", "<provider>/<model>"),
    ("config.model", [CANARY], "config.model", "must be text"),
    ("agent.id", None, "agent.id", "is missing"),
    ("agent.id", f"-{CANARY} ", "agent.id", "must start with a letter or digit"),
    ("agent.companyId", None, "agent.companyId", "is missing"),
    ("agent", CANARY, "agent", "must be an object"),
    ("runId", None, "runId", "is missing"),
    ("config", CANARY, "config", "must be an object"),
    ("runtime", CANARY, "runtime", "must be an object"),
    ("config.paperclipApiUrl", CANARY, "config.paperclipApiUrl", "must be an absolute http:// or https:// URL"),
    ("config.paperclipApiUrl", f"http://ada:{CANARY}@h", "config.paperclipApiUrl", "without a login"),
    ("config.paperclipApiUrl", f"http://h/?key={CANARY}", "config.paperclipApiUrl", "without a login, query"),
    ("config.paperclipApiUrl", "http://h\r\nX: y", "config.paperclipApiUrl", "must be an absolute"),
    ("config.paperclipApiUrl", "ftp://h", "config.paperclipApiUrl", "must be an absolute"),
    ("config.paperclipApiUrl", "http://h:99999", "config.paperclipApiUrl", "must be an absolute"),
    ("config.timeoutSec", CANARY, "config.timeoutSec", "must be a whole number"),
    ("config.timeoutSec", -1, "config.timeoutSec", "must be at least 0"),
    ("config.timeoutSec", 1.5, "config.timeoutSec", "must be a whole number"),
    ("config.timeoutSec", True, "config.timeoutSec", "must be a number"),
    ("config.extraArgs", f"--{CANARY}", "config.extraArgs", "must be a list"),
    ("config.opencodeFeatures", f"lsp, {CANARY}", "config.opencodeFeatures[1]", "'lsp', 'formatter', 'snapshot'"),
    ("config.opencodeFeatures", {"a": CANARY}, "config.opencodeFeatures", "must be a list"),
    ("config.extraArgs", [1], "config.extraArgs[0]", "must be text"),
    ("config.namespace", f"Bad {CANARY}", "config.namespace", "must be a namespace name"),
    ("config.imagePullPolicy", CANARY, "config.imagePullPolicy", "'IfNotPresent', 'Always' or 'Never'"),
    ("config.resources.requests.cpu", CANARY, "config.resources.requests.cpu", "Kubernetes quantity"),
    ("config.resources", CANARY, "config.resources", "must be an object"),
    ("config.tolerations", f"[{CANARY}", "config.tolerations", "must be JSON"),
    ("config.tolerations", "[" * 10_000, "config.tolerations", "must be JSON"),
    ("config.labels", '{"a":' * 50_000, "config.labels", "JSON object"),
    ("config.labels", f"{CANARY} without equals", "config.labels", "key=value"),
    ("config.env", CANARY, "config.env", "must be an object"),
    ("config.env", {"A": [CANARY]}, "config.env.A", "must be text"),
    ("config.env", {"A": f"{CANARY}\0"}, "config.env.A", "NUL"),
    ("config.env", {"A": CANARY * VARIABLE_LIMIT}, "config.env.A", "too long"),
    ("config.env", {"1 BAD": CANARY}, "config.env", "names must start with a letter"),
    ("config.mcpServers", CANARY, "config.mcpServers", "must be an object"),
    ("config.opencode", [CANARY], "config.opencode", "must be an object"),
    ("config.opencode", CANARY, "config.opencode", "must be a JSON object"),
    ("config.opencode", f'{{"a": {"[" * 100_000}', "config.opencode", "must be a JSON object"),
    ("config.opencode", '{"shell": "\\ud800"}', "config.opencode", "must be a JSON object"),
    ("config.opencode", {"mcp": CANARY}, "config.opencode.mcp", "must be an object"),
    ("config.opencode", {"permission": {"bash": CANARY}}, "config.opencode.permission.bash", "allow, ask or deny"),
    ("config.opencode", {"shell": CANARY * 99999}, "config.opencode", "put long texts into files"),
    ("config.cwd", f"relative/{CANARY}", "config.cwd", "absolute path"),
    ("context.paperclipWorkspace.cwd", CANARY, "context.paperclipWorkspace.cwd", "absolute path"),
    ("context.paperclipIssue", {"workMode": CANARY * 4096}, "context.issueWorkMode", "too long"),
    ("config.image", f"{CANARY} image", "config.image", "image reference"),
    ("config.serviceAccountName", f"_{CANARY}", "config.serviceAccountName", "must be the name of an object"),
    ("config.kubeconfig", f"users: [{{token: {CANARY}}}]", "config.kubeconfig", "clear the field"),
    ("authToken", {"token": CANARY}, "authToken", "must be text"),
    ("authToken", CANARY * 8192, "authToken", "is too long: 8192 characters at most"),
    ("runtimeTools", {"bearerToken": [CANARY]}, "runtimeTools.bearerToken", "must be text"),
    ("runtimeTools", {"bearerToken": CANARY * 8192}, "runtimeTools.bearerToken", "is too long: 8192"),
]


def test_a_wrong_field_is_named_with_its_remedy_and_never_its_value() -> None:
    for path, value, field, remedy in WRONG_FIELDS:
        with case(path, value):
            message = refusal(with_value(captured("ctx-1"), path, value))
            assert field in message
            assert remedy in message
            assert CANARY not in message


def test_flat_resource_fields_of_the_form_are_named_as_the_form_names_them() -> None:
    assert "config.resources.requests.cpu" in refusal(minimal(**{"resources.requests.cpu": "lots"}))


@pytest.mark.parametrize("requests", [5, CANARY, [CANARY]])
def test_a_wrong_nested_resources_object_is_named_and_flat_fields_are_not(requests: Any) -> None:
    message = refusal(minimal(**{"resources": {"requests": requests}, "resources.limits.cpu": "1"}))
    assert message == "config.resources.requests must be an object"


def test_every_wrong_field_is_named_at_once() -> None:
    context = minimal(model="nameless", timeoutSec="soon", kubeconfig="/root/.kube/config", cwd="here")
    context["agent"] = {"companyId": "company-1"}
    message = refusal(context)
    for field in ("config.model", "config.timeoutSec", "config.kubeconfig", "agent.id"):
        assert field in message


def test_an_absent_setting_a_null_and_an_untouched_form_field_are_the_same() -> None:
    untouched = {"variant": "", "timeoutSec": "", "namespace": "", "agentDbMode": "", "labels": None, "tolerations": ""}
    request = prepare(minimal(**untouched, resources={"requests": {"cpu": None}})).request
    assert request.config == prepare(minimal()).request.config


def test_a_lone_surrogate_does_not_break_a_request() -> None:
    context = with_value(minimal(env={"A": "\ud83d"}), "context.paperclipTaskMarkdown", "half \ud83d emoji")
    _, secrets, prompt = opened(context)
    assert secrets.env == {"A": "\ufffd"}
    assert prompt.task_markdown == "half \ufffd emoji"


def test_a_text_that_is_too_long_for_a_history_is_refused_by_name() -> None:
    long, huge = "x" * 5000, "x" * 3_000_000
    texts: dict[str, tuple[str, Any]] = {
        "config.variant": ("config.variant", long),
        "config.cwd": ("config.cwd", f"/paperclip/{long}"),
        "config.image": ("config.image", huge),
        "config.agentDbStorageClass": ("config.agentDbStorageClass", huge),
        "config.instructionsFilePath": ("config.instructionsFilePath", huge),
        "agent.name": ("agent.name", huge),
        "context.wakeReason": ("context.wakeReason", huge),
        "config.extraArgs": ("config.extraArgs", [huge]),
        "config.labels": ("config.labels", {"a": "x" * 300_000}),
        "config.tolerations": ("config.tolerations", [{"key": "k", "value": huge}]),
        "config.annotations": ("config.annotations", {"a": "x" * 300_000}),
        "config.paperclipRuntimeSkills": (
            "config.paperclipRuntimeSkills",
            [{"key": "a", "required": True, "missingDetail": huge}],
        ),
        "context.issueIds": ("context.issueIds", [huge]),
        "config.opencode": ("config.opencode", "[" * 300_000),
    }
    for field, (path, value) in texts.items():
        with case(field):
            with pytest.raises(InvalidRequest) as refused:
                prepare(with_value(minimal(), path, value))
            assert field in refused.value.message
            assert re.search("must not have more than|is too long", refused.value.message)
            assert "xxx" not in refused.value.message


@pytest.mark.parametrize("wrapped", [lambda value: [value], lambda value: {"in": value}])
def test_too_deep_nesting_is_refused(wrapped: Callable[[Any], Any]) -> None:
    deep: Any = "end"
    for _ in range(NESTING_LIMIT - 3):  # the context, its field `context`, and the end are levels, too
        deep = wrapped(deep)
    prepare(with_value(minimal(), "context.anything", deep))
    assert "nested" in refusal(with_value(minimal(), "context.anything", wrapped(deep)))


# sessions


def test_a_stored_session_of_the_same_directory_is_resumed() -> None:
    context = captured("ctx-2")
    here = context["context"]["paperclipWorkspace"]["cwd"]
    context["runtime"]["sessionParams"] = {"sessionId": "ses_1", "cwd": f"{here}/", "__paperclipConfiguredModel": "m"}
    stored = prepare(context).request.runtime.session_params
    assert stored is not None
    assert (stored.session_id, stored.cwd) == ("ses_1", f"{here}/")


def test_a_session_of_another_directory_is_not_resumed_and_a_note_gives_the_reason() -> None:
    result = prepare(captured("ctx-2"))  # its stored session belongs to /nowhere
    assert result.request.runtime.session_params is None
    assert "/nowhere" in result.request.notes[0]


def test_a_malformed_stored_session_is_dropped_with_a_warning_and_a_new_one_begins() -> None:
    for runtime in (
        {"sessionParams": CANARY},
        {"sessionParams": [CANARY]},
        {"sessionParams": {"sessionId": 12345, "cwd": "/w"}},
        {"sessionParams": {"sessionId": {"id": CANARY}}},
        {"sessionParams": {"sessionId": "--help"}, "sessionId": "--help"},
        {"sessionParams": {"session_id": f"{CANARY} x"}},
        {"sessionParams": {"sessionId": "s" * 129}},
        {"sessionId": f"{CANARY} x"},
        {"sessionId": 7},
        {"sessionId": [CANARY]},
    ):
        with case(runtime):
            request = prepare(minimal() | {"runtime": runtime}).request
            assert request.runtime.session_params is None
            assert "malformed, so a new one begins" in request.notes[0]
            assert CANARY not in request.model_dump_json()
    without: list[dict[str, Any]] = [{}, {"sessionParams": {}, "sessionId": None}, {"sessionParams": {"cwd": "/w"}}]
    for nothing in without:
        with case(nothing):
            request = prepare(minimal() | {"runtime": nothing}).request
            assert (request.runtime.session_params, request.notes) == (None, ())


def test_parameters_that_name_no_session_are_a_warning_unless_they_are_paperclips_own() -> None:
    for params, warned in (({"foo": CANARY}, True), ({"__paperclipTask": "x"}, False)):
        with case(params):
            request = prepare(minimal() | {"runtime": {"sessionParams": params}}).request
            assert any("name no session (`sessionId`)" in note for note in request.notes) is warned
            assert CANARY not in request.model_dump_json()


def test_a_bare_session_id_is_enough_to_resume() -> None:
    stored = prepare(captured("ctx-3")).request.runtime.session_params
    assert stored is not None
    assert stored.session_id == "dummy-session-1"


def test_resume_last_session_off_starts_a_fresh_session() -> None:
    context = with_value(captured("ctx-3"), "config.resumeLastSession", False)
    result = prepare(context)
    assert result.request.runtime.session_params is None
    assert "resumeLastSession" in result.request.notes[0]


@pytest.mark.parametrize("params", [{}, None, {"cwd": "/elsewhere"}])
def test_parameters_without_a_session_mean_a_fresh_one(params: Any) -> None:
    context = with_value(minimal(), "runtime.sessionParams", params)
    assert prepare(context).request.runtime.session_params is None


# secrets


def planted() -> dict[str, Any]:
    """A real context with a canary in each place that can hold a secret."""
    context = captured("ctx-4")
    for path in (
        "authToken",
        "config.env.API_KEY",
        "config.env.PAPERCLIP_GITHUB_BROKER_TOKEN",
        "config.promptTemplate",
        "config.bootstrapPromptTemplate",
        "runtimeTools.bearerToken",
        "runtimeTools.guidance",
        "context.paperclipRuntimeTools.bearerToken",
        "context.paperclipSecrets.manifest",
        "context.paperclipManagedMcp.token",
        "context.paperclipWake.comments",
        "context.paperclipTaskMarkdown",
        "context.paperclipSessionHandoffMarkdown",
        "context.paperclipIssue.description",
        "agent.adapterConfig.env.MY_SECRET.value",
        "agent.adapterConfig.apiKey",
        "agent.metadata.githubToken",
    ):
        context = with_value(context, path, f"{CANARY} {path}")
    context["config"]["mcpServers"] = {
        "docs": {"url": f"https://{CANARY}@mcp", "headers": {"Authorization": CANARY}, "command": [CANARY]}
    }
    context["agent"]["adapterConfig"]["mcpServers"] = context["config"]["mcpServers"]
    context["config"]["opencode"] = {
        "mcp": {"docs": {"headers": {"X": CANARY}}},
        "agent": {"build": {"prompt": CANARY}},
    }
    context["agent"]["adapterConfig"]["opencode"] = context["config"]["opencode"]
    context["__runtimeMcpServers"] = [{"name": "tools", "token": CANARY}]
    context["context"]["paperclipWorkspace"]["repoUrl"] = f"https://ada:{CANARY}@git.example/repo.git"
    context["context"]["paperclipRuntimePrimaryUrl"] = f"https://{CANARY}@preview.example/"
    context["runtime"] = {"sessionParams": {"sessionId": "ses_1", "repoUrl": f"https://{CANARY}@git.example/repo.git"}}
    return context


def test_no_secret_is_in_the_request() -> None:
    result = prepare(planted())
    assert CANARY not in result.request.model_dump_json()
    assert CANARY not in repr(result)
    assert CANARY not in str(result.request.notes)
    assert result.request.context.paperclip_workspace.repo_url == "https://git.example/repo.git"


def test_no_object_that_holds_secrets_shows_one() -> None:
    prose = {"promptTemplate": None, "bootstrapPromptTemplate": None}
    secrets = prepare(planted()).secrets
    assert CANARY in str(secrets.auth_token)
    for holder in (secrets, AdapterConfig.model_validate({**planted()["config"], **prose})):
        with case(type(holder)):
            assert CANARY in f"{holder.mcp_servers} {holder.opencode}"
            assert CANARY not in repr(holder)


def test_an_opencode_configuration_may_be_the_text_of_an_object() -> None:
    for config in ({"share": "auto"}, '{"share": "auto"}'):
        assert opened(minimal(opencode=config))[1].opencode == {"share": "auto"}


def test_no_secret_is_in_the_error_about_another_field() -> None:
    context = planted()
    context["config"] |= {"timeoutSec": "soon", "cwd": "here", "mcpServers": {"docs": CANARY}}
    context["runtime"]["sessionParams"]["sessionId"] = 7
    with pytest.raises(InvalidRequest) as caught:
        prepare(context)
    assert CANARY not in f"{caught.value} {caught.value.details} {caught.value.__cause__} {caught.value.__context__}"


def test_templates_cannot_reach_a_secret() -> None:
    _, secrets, prompt = opened(planted())
    assert secrets.env["API_KEY"].startswith(CANARY)
    assert secrets.paperclip_env["PAPERCLIP_WORKSPACE_REPO_URL"] == f"https://ada:{CANARY}@git.example/repo.git"
    reachable = json.dumps([prompt.agent, {**prompt.context, "paperclipIssue": None, "paperclipWake": None}])
    assert CANARY not in reachable


def test_a_bulky_variable_is_left_out_and_a_note_names_it() -> None:
    longest = "x" * (BULKY_LIMIT - len('[{"cwd":""}]'))
    kept = prepare(with_value(minimal(), "context.paperclipWorkspaces", [{"cwd": longest}]))
    assert set(kept.secrets.paperclip_env) == {"PAPERCLIP_WORKSPACES_JSON"}
    result = prepare(with_value(minimal(), "context.paperclipWorkspaces", [{"cwd": f"{longest}x"}]))
    assert result.secrets.paperclip_env == {}
    assert "PAPERCLIP_WORKSPACES_JSON" in result.request.notes[0]


@pytest.mark.parametrize("text", ["x" * 5000, "\U0001f600" * 5000], ids=["ascii", "emoji"])
def test_every_text_of_a_request_is_bounded_where_it_is_validated(text: str) -> None:
    paths = (
        *("agent.name", "runtime.taskKey", "context.wakeReason"),
        *("context.taskId", "context.paperclipWorkspace.branchName", "config.model", "config.variant", "config.image"),
        *("config.labels.team", "config.extraArgs", "config.nodeSelector.zone", "config.serviceAccountName"),
    )
    for path in paths:
        with case(path):
            nested = {"config.extraArgs": [text], "config.model": f"provider/{text}"}
            value = nested.get(path, text)
            with pytest.raises(InvalidRequest, match=path.split(".")[1]):
                prepare(with_value(minimal(), path, value))


def test_a_request_of_many_texts_is_refused_before_a_history_has_it() -> None:
    with pytest.raises(InvalidRequest, match=r"config\.annotations is too long"):
        prepare(minimal(annotations={f"key-{n}": "x" * 4000 for n in range(100)}))


def test_long_prose_and_variables_are_not_bounded_as_texts_of_a_history_are() -> None:
    long = minimal(promptTemplate="x" * 50_000, env={"LONG": "x" * 50_000})
    assert prepare(long).secrets.env["LONG"] == "x" * 50_000


# anything at all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("[undefined]"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PATHS = [
    "agent",
    "agent.id",
    "runtime",
    "runtime.sessionParams",
    "runtime.sessionParams.sessionId",
    "config",
    "config.model",
    "config.env",
    "config.resources",
    "config.resources.requests",
    "config.tolerations",
    "config.labels",
    "config.nodeSelector",
    "config.extraArgs",
    "config.mcpServers",
    "config.paperclipRuntimeSkills",
    "config.paperclipSkillSync",
    "config.paperclipSkillSync.desiredSkills",
    "context",
    "context.paperclipWake",
    "context.paperclipWorkspace",
    "context.paperclipWorkspaces",
    "context.issueIds",
    "runtimeTools",
]


@given(path=st.sampled_from(PATHS), value=JSON, flat=st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_context_gives_a_request_or_an_error_that_names_a_field(path: str, value: Any, flat: bool) -> None:
    context = with_value(minimal(**({"resources.limits.cpu": "1"} if flat else {})), path, value)
    request = refused_or_prepared(context)
    if isinstance(request, RunRequest):
        assert request.model_validate_json(request.model_dump_json()) == request
        assert request.config.model.partition("/")[2]
        assert request.run_id == "run-1"
    else:
        assert request.message


def refused_or_prepared(context: dict[str, Any]) -> RunRequest | InvalidRequest:
    try:
        return prepare(context).request
    except InvalidRequest as refused:
        return refused


@pytest.mark.parametrize("features", ["lsp, snapshot", "lsp\nsnapshot\n", ["lsp", "snapshot"], " lsp snapshot,"])
def test_features_of_opencode_are_a_list_or_the_words_of_a_text_area(features: object) -> None:
    assert prepare(minimal(opencodeFeatures=features)).request.config.opencode_features == ("lsp", "snapshot")


@pytest.mark.parametrize("chosen", ["http://paperclip.example", None])
def test_an_address_that_paperclips_process_added_is_not_the_agents_choice(chosen: str | None) -> None:
    prepared = prepare(minimal(paperclipApiUrl=chosen), HostTexts(pods_address="http://ours"))
    assert prepared.request.config.paperclip_api_url == (chosen or "http://ours")
    assert prepared.chosen.paperclip_api_url == chosen


def test_the_workspaces_of_a_run_are_those_of_its_project_that_have_a_path() -> None:
    paths = tuple(f"/paperclip/{number}" for number in range(MAX_WORKSPACES + 1))
    offered: list[tuple[object, tuple[str, ...]]] = [
        (
            [{"cwd": "/paperclip/a"}, {"cwd": " "}, {"cwd": 7}, {}, None, {"cwd": "/paperclip/b"}],
            ("/paperclip/a", "/paperclip/b"),
        ),
        ([{"cwd": path} for path in paths], paths[:-1]),
        *((wrong, ()) for wrong in (None, 7, "/paperclip/a", {"cwd": "/paperclip/a"})),
    ]
    for workspaces, taken in offered:
        with case(workspaces):
            request = prepare(with_value(minimal(), "context.paperclipWorkspaces", workspaces)).request
            assert request.context.paperclip_workspaces == taken


def budgeted(**amounts: Any) -> dict[str, Any]:
    context = minimal()
    context["agent"] |= amounts
    return context


def test_no_amount_is_too_large_or_too_odd_to_be_judged() -> None:
    huge, infinite, nan = 10**400, float("inf"), float("nan")
    for budget, spent, left in ((huge, 0, 1_000_000), (infinite, 5, None), (100, -huge, 1_000_000), (100, nan, None)):
        with case((str(budget)[:9], str(spent)[:9])):
            prepared = prepare(budgeted(budgetMonthlyCents=budget, spentMonthlyCents=spent))
            assert prepared.request.budget_left_usd == left
    for budget in (5, huge):
        with case(str(budget)[:9]), pytest.raises(PaperclipBudgetExceeded):
            prepare(budgeted(budgetMonthlyCents=budget, spentMonthlyCents=huge))


def test_a_number_that_is_none_of_jsons_reaches_no_configuration_in_a_pod() -> None:
    text = '{"a": {"x": %s}}'
    for number in ("NaN", "-Infinity", "1e999"):
        with case(number), pytest.raises(InvalidRequest, match=r"config\.opencode must be a JSON object"):
            prepare(minimal(opencode=text % number))
        given = json.loads(text % number)
        with case((number, "as an object")):
            secrets = prepare(minimal(opencode=given, mcpServers=given)).secrets
            assert (secrets.opencode, secrets.mcp_servers) == ({"a": {}}, {"a": {}})


def test_what_is_left_of_the_agents_budget_in_paperclip_is_part_of_its_request() -> None:
    left = {
        "none is set": (budgeted(budgetMonthlyCents=0, spentMonthlyCents=500), None),
        "it is not said": (budgeted(), None),
        "the spend is not known": (budgeted(budgetMonthlyCents=500), None),
        "some is spent": (budgeted(budgetMonthlyCents=500, spentMonthlyCents=125.5), 3.745),
        "it is no number": (budgeted(budgetMonthlyCents="500", spentMonthlyCents=True), None),
        "it is no limit of a run": (budgeted(budgetMonthlyCents=10**12, spentMonthlyCents=0), 1_000_000),
    }
    assert {name: opened(context)[0].budget_left_usd for name, (context, _) in left.items()} == {
        name: usd for name, (_, usd) in left.items()
    }


@pytest.mark.parametrize("spent", [200, 675])
def test_a_run_without_any_budget_left_in_paperclip_is_refused_by_name(spent: int) -> None:
    with pytest.raises(PaperclipBudgetExceeded, match=rf"\${spent / 100:.2f} of \$2.00") as caught:
        prepare(budgeted(budgetMonthlyCents=200, spentMonthlyCents=spent))
    assert caught.value.type == "paperclip_budget_exceeded"


def test_a_request_may_fill_a_history_to_the_byte_and_no_further() -> None:
    def room(arguments: list[str]) -> int:
        return REQUEST_LIMIT - len(prepare(minimal(extraArgs=arguments)).request.model_dump_json().encode())

    comma, argument = len('"",'), "z" * 3000
    arguments = [argument] * (room([""]) // (len(argument) + comma))
    rest = room(arguments) - comma
    assert room([*arguments, "z" * rest]) == 0
    assert "config.extraArgs is too long" in refusal(minimal(extraArgs=[*arguments, "z" * (rest + 1)]))
