from typing import Any

import pytest

from agent_runs.contracts.request import Secrets
from agent_runs.paperclip.environment import api_url_warning, environment
from agent_runs.paperclip.preparation import SCRATCH, TEMPORARY
from tests.paperclip.contexts import captured, captured_environment, minimal, opened, with_value

API = "https://paperclip.example"

HOST_ONLY = {
    "PAPERCLIP_RUNNER_NETWORK_ROOTS",
    "PAPERCLIP_RUNNER_NETWORK_ACCESS",
    "PAPERCLIP_GITHUB_HOST_HOME",
    "PAPERCLIP_GITHUB_AUTH_MODE",
    "PAPERCLIP_GIT_METADATA_ROOTS",
    "GH_CONFIG_DIR",
}
OURS = {"HOME", "PAPERCLIP_WORKSPACE_STRATEGY"}
"""Fixed by us, or set by the existing Kubernetes adapters where Paperclip's local ones leave it out."""
REMAPPED = {*SCRATCH, *TEMPORARY, "PAPERCLIP_WORKSPACE_CWD", "PAPERCLIP_WORKSPACES_JSON"}
"""Paths of the host there, of the pod here; the capture worked in /workspace."""


def of(context: dict[str, Any], **inherited: str) -> dict[str, str]:
    request, secrets, _ = opened(context)
    return environment(request, secrets, api_url=API, inherited=inherited)


@pytest.mark.parametrize("name", ["ctx-1", "ctx-2", "ctx-4"])
def test_the_environment_is_paperclips_own_except_for_the_listed_differences(name: str) -> None:
    theirs = captured_environment(name)
    request, secrets, _ = opened(captured(name), wake_payload=theirs["PAPERCLIP_WAKE_PAYLOAD_JSON"])
    ours = environment(request, secrets, api_url=API, inherited={})
    assert theirs.keys() - ours.keys() == HOST_ONLY
    assert ours.keys() - theirs.keys() == OURS
    differing = {variable for variable in theirs.keys() & ours.keys() if theirs[variable] != ours[variable]}
    assert differing - REMAPPED == {"PAPERCLIP_API_URL"}
    assert {ours[variable] for variable in SCRATCH | TEMPORARY} == {"/tmp"}


def test_the_workspace_is_where_the_data_volume_has_it() -> None:
    context = captured("ctx-4")
    assert of(context)["PAPERCLIP_WORKSPACE_CWD"] == context["context"]["paperclipWorkspace"]["cwd"]


def test_the_agents_own_variables_win_over_inherited_ones() -> None:
    env = of(minimal(env={"A": "agent", "TMPDIR": "/data/tmp", "AGENT_HOME": "/mine"}), A="worker", B="worker")
    assert (env["A"], env["B"], env["TMPDIR"], env["AGENT_HOME"]) == ("agent", "worker", "/data/tmp", "/mine")


def test_nobody_overrides_what_paperclip_assigns() -> None:
    forged = {"PAPERCLIP_RUN_ID": "forged", "PAPERCLIP_API_URL": "http://evil.example", "PAPERCLIP_API_KEY": "forged"}
    fixed = {"HOME": "/root", "PAPERCLIP_SCRATCH_DIR": "/host"}
    context = with_value(minimal(env=forged | fixed | {"PAPERCLIP_MINE": "kept"}), "authToken", "token")
    env = of(context, **forged, **fixed)
    assert env["PAPERCLIP_RUN_ID"] == "run-1"
    assert env["PAPERCLIP_API_URL"] == API
    assert env["PAPERCLIP_API_KEY"] == "token"
    assert env["PAPERCLIP_MINE"] == "kept"
    assert (env["HOME"], env["PAPERCLIP_SCRATCH_DIR"]) == ("/home/agent", "/tmp")


def test_without_a_token_there_is_no_api_key_at_all() -> None:
    assert "PAPERCLIP_API_KEY" not in of(minimal(env={"PAPERCLIP_API_KEY": "mine"}), PAPERCLIP_API_KEY="worker's")


def test_control_plane_secrets_are_not_inherited() -> None:
    inherited = dict.fromkeys(
        [
            "PAPERCLIP_AGENT_JWT_SECRET",
            "PAPERCLIP_SIGNING_SECRET",
            "PAPERCLIP_SECRETS_MASTER_KEY_FILE",
            "AGENT_RUNS_SEALING_KEY",
            "TEMPORAL_API_KEY",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
            "KUBERNETES_SERVICE_HOST",
            "POD_NAME",
        ],
        "canary",
    )
    assert "canary" not in of(minimal(), **inherited).values()


def test_no_variable_of_an_agents_configuration_says_where_its_token_is_sent() -> None:
    request, secrets, _ = opened(minimal(env={"PAPERCLIP_API_URL": "http://agent.example"}))
    nobody = environment(request, secrets, api_url=None, inherited={})
    worker = environment(request, secrets, api_url=None, inherited={"PAPERCLIP_API_URL": "http://worker.example"})
    assert "PAPERCLIP_API_URL" not in nobody
    assert worker["PAPERCLIP_API_URL"] == "http://worker.example"


def test_instructions_of_an_external_bundle_are_the_agents_home() -> None:
    context = with_value(
        minimal(instructionsBundleMode="external", instructionsRootPath=" /paperclip/docs "),
        "context.paperclipWorkspace.agentHome",
        "/paperclip/home",
    )
    assert of(context)["AGENT_HOME"] == "/paperclip/docs"


def test_a_blank_value_sets_no_variable() -> None:
    request, _, _ = opened(minimal())
    env = environment(request, Secrets(run_id="run-1", auth_token="  "), api_url="", inherited={})
    assert not {
        name for name in env if name.startswith("PAPERCLIP_") and "SCRATCH" not in name and "TMP" not in name
    } - {
        "PAPERCLIP_AGENT_ID",
        "PAPERCLIP_COMPANY_ID",
        "PAPERCLIP_RUN_ID",
    }


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "http://127.0.0.1:3100",
        "http://127.9.9.9",
        "http://localhost:3100/api",
        "http://app.localhost",
        "http://[::1]:3100",
        "http://0.0.0.0:3100",
    ],
)
def test_a_loopback_address_gives_a_warning(url: str | None) -> None:
    warning = api_url_warning(url)
    assert warning is not None
    assert "AGENT_RUNS_PAPERCLIP_API_URL" in warning


@pytest.mark.parametrize("url", ["http://paperclip:3100", "https://10.0.0.7", "http://[fd00::1]:3100"])
def test_an_address_that_pods_can_reach_gives_no_warning(url: str) -> None:
    assert api_url_warning(url) is None
