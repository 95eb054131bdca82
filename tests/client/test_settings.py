"""Settings of a process that shares its environment with others."""

import re
from pathlib import Path

import pytest

from agent_runs.client.settings import KNOWN, PREFIX, STANDARD, ClientSettings, SettingsError
from agent_runs.service.settings import WorkerSettings
from tests.support.cases import case


def test_the_list_of_settings_that_programs_share_has_what_they_read_and_nothing_else() -> None:
    source = Path(__file__).parents[2] / "adapter/src/settings.ts"
    plugin = set(re.findall(r'(?:text|choice|flag)\("([A-Z_]+)"', source.read_text()))
    ours = {name.upper() for name in WorkerSettings.model_fields} - {name.upper() for name in STANDARD}
    assert {PREFIX + name for name in ours | plugin | {"OPENCODE", "TRACEBACK"}} == KNOWN


@pytest.mark.parametrize(
    "wrong",
    [
        *("paperclip.example", "javascript:alert(1)", "https://paperclip.example/?a=b", "https://me:secret@paperclip"),
        'https://paperclip.example/"onclick="x',
    ],
)
def test_an_address_of_paperclips_pages_that_is_none_stops_the_start_by_name(wrong: str) -> None:
    with pytest.raises(SettingsError, match="AGENT_RUNS_PAPERCLIP_PAGES_URL: must be an") as refused:
        WorkerSettings.read({"AGENT_RUNS_PAPERCLIP_PAGES_URL": wrong})
    assert "secret" not in str(refused.value)


def test_an_address_that_no_program_can_parse_stops_the_start_by_name() -> None:
    for name in ("AGENT_RUNS_PAPERCLIP_API_URL", "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", "AGENT_RUNS_PAPERCLIP_PAGES_URL"):
        for wrong in ("http://[::1", "http://runs.example:99999", "https://:8090", "runs.example"):
            with case(name, wrong), pytest.raises(SettingsError, match=f"{name}: must be an http or https URL"):
                WorkerSettings.read({name: wrong})


def test_an_address_of_paperclip_and_a_namespace_that_are_empty_are_none() -> None:
    read = WorkerSettings.read({"AGENT_RUNS_PAPERCLIP_API_URL": "", "AGENT_RUNS_NAMESPACE": ""})
    assert (read.paperclip_api_url, read.namespace) == (None, None)


def test_a_wrong_setting_is_named_without_its_value() -> None:
    for name, remedy in (("MAX_RUNS", "must be a whole number"), ("NAMESPACE", "must be lowercase letters")):
        with case(name), pytest.raises(SettingsError, match=f"AGENT_RUNS_{name}: {remedy}") as wrong:
            WorkerSettings.read({f"AGENT_RUNS_{name}": "Plenty"})
        assert "Plenty" not in str(wrong.value)


def test_settings_of_the_worker_are_known_to_callers() -> None:
    assert ClientSettings.read({"AGENT_RUNS_MAX_RUNS": "7"}) == ClientSettings()


def test_variables_that_kubernetes_sets_after_our_services_are_no_settings() -> None:
    host, port = "10.0.0.7", "8090"
    service = {
        "AGENT_RUNS_TRANSCRIPTS_SERVICE_HOST": host,
        "AGENT_RUNS_TRANSCRIPTS_SERVICE_PORT": port,
        "AGENT_RUNS_TRANSCRIPTS_SERVICE_PORT_TRANSCRIPTS": port,
        "AGENT_RUNS_TRANSCRIPTS_PORT": f"tcp://{host}:{port}",
        "AGENT_RUNS_TRANSCRIPTS_PORT_8090_TCP": f"tcp://{host}:{port}",
        "AGENT_RUNS_TRANSCRIPTS_PORT_8090_TCP_PROTO": "tcp",
        "AGENT_RUNS_TRANSCRIPTS_PORT_8090_TCP_PORT": port,
        "AGENT_RUNS_TRANSCRIPTS_PORT_8090_TCP_ADDR": host,
        "AGENT_RUNS_SERVICE_HOST": host,
        "AGENT_RUNS_PORT": f"tcp://{host}:{port}",
    }
    assert WorkerSettings.read(service) == WorkerSettings.read({})


@pytest.mark.parametrize("name", ["AGENT_RUNS_TRANSCRIPTS_PORT", "AGENT_RUNS_TRANSCRIPT_LISTEN", "AGENT_RUNS_PORTS"])
def test_a_misspelt_setting_is_refused_though_it_looks_like_a_services_variable(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: no such setting"):
        WorkerSettings.read({name: "8090"})


@pytest.mark.parametrize("name", ["AGENT_RUNS_INHERIT_NAMESPACE", "AGENT_RUNS_INHERIT_CONTAINER"])
def test_what_says_nothing_without_the_labels_of_a_deployment_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: has no effect unless AGENT_RUNS_INHERIT_DEPLOYMENT"):
        WorkerSettings.read({name: "paperclip"})
    with pytest.raises(SettingsError, match=f"{name}: must be lowercase letters"):
        WorkerSettings.read({name: "Paper clip", "AGENT_RUNS_INHERIT_DEPLOYMENT": "a=b"})
    both = WorkerSettings.read({name: "paperclip", "AGENT_RUNS_INHERIT_DEPLOYMENT": " a=b, c=d "})
    assert both.inherit_deployment == "a=b,c=d"


def test_the_header_of_a_proxy_counts_only_with_the_proxys_addresses() -> None:
    header, proxies = "AGENT_RUNS_OPERATOR_HEADER", "AGENT_RUNS_OPERATOR_PROXIES"
    for alone in ({header: "X-Auth-Email"}, {proxies: "10.0.0.7"}):
        with pytest.raises(SettingsError, match=f"{proxies}: set it together with {header}"):
            ClientSettings.read(alone)
    for wrong in ("10.0.0.7/33", "proxy.example", "10.0.0.7/8"):
        with pytest.raises(SettingsError, match=f"{proxies}: must be addresses or networks"):
            ClientSettings.read({header: "X-Auth-Email", proxies: wrong})
    with pytest.raises(SettingsError, match=f"{header}: must be the name of a header"):
        ClientSettings.read({header: "X Auth", proxies: "10.0.0.7"})
    both = ClientSettings.read({header: "X-Auth-Email", proxies: "10.0.0.7, fd00::/8,"})
    assert [str(network) for network in both.operator_proxies] == ["10.0.0.7/32", "fd00::/8"]


def test_patterns_of_what_agents_inherit_are_separated_by_commas() -> None:
    read = WorkerSettings.read({"AGENT_RUNS_INHERIT_ENV": "MY_*, LANG", "AGENT_RUNS_INHERIT_ENV_FROM": ""})
    assert (read.inherit_env, read.inherit_env_from) == (("MY_*", "LANG"), ())
