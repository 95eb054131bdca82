"""Temporal's own variables and its configuration file say where Temporal is; what is wrong in them is named."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from temporalio.client import Client
from temporalio.service import TLSConfig

from agent_runs.client.connection import TemporalUnreachable, connect
from agent_runs.client.settings import ClientSettings, SettingsError
from agent_runs.client.temporal_server import TemporalServer
from tests.support.tls import server_context, tls_front

SECRET = "canary-of-a-secret"
PROFILES = """
[profile.default]
address = "file.example:7233"
[profile.prod]
address = "prod.example:7233"
namespace = "prod"
api_key = "key-of-prod"
[profile.prod.grpc_meta]
team = "ada"
"""


def read(**variables: str) -> TemporalServer:
    return ClientSettings.read(variables).temporal


def refusal(**variables: str) -> str:
    with pytest.raises(SettingsError) as refused:
        ClientSettings.read(variables)
    assert SECRET not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def profiles(tmp_path: Path) -> str:
    file = tmp_path / "temporal.toml"
    file.write_text(PROFILES)
    return str(file)


def test_without_a_setting_it_is_the_dev_server() -> None:
    assert read() == TemporalServer("127.0.0.1:7233", "default", None, tls=False)


def test_the_standard_variables_are_read() -> None:
    server = read(TEMPORAL_ADDRESS=" a.example:7233\n", TEMPORAL_NAMESPACE="ada", TEMPORAL_GRPC_META_MY_KEY="v")
    assert (server.address, server.namespace, server.metadata) == ("a.example:7233", "ada", {"my-key": "v"})


def test_an_api_key_needs_tls_unless_that_is_switched_off() -> None:
    assert read(TEMPORAL_API_KEY="key").tls is True
    assert read(TEMPORAL_API_KEY="key", TEMPORAL_TLS="false").tls is False


def test_a_profile_of_the_file_is_read_and_a_variable_wins_over_it(profiles: str) -> None:
    assert read(TEMPORAL_CONFIG_FILE=profiles).address == "file.example:7233"
    server = read(TEMPORAL_CONFIG_FILE=profiles, TEMPORAL_PROFILE="prod", TEMPORAL_NAMESPACE="mine")
    assert (server.address, server.namespace, server.metadata) == ("prod.example:7233", "mine", {"team": "ada"})
    assert server.api_key is not None
    assert server.api_key.get_secret_value() == "key-of-prod"


def test_an_empty_variable_is_absent() -> None:
    names = ("ADDRESS", "NAMESPACE", "API_KEY", "TLS", "CONFIG_FILE", "PROFILE", "TLS_CLIENT_CERT_PATH")
    assert read(**{f"TEMPORAL_{name}": "" for name in names}) == TemporalServer()


def test_secrets_are_not_in_its_text() -> None:
    shown = repr(ClientSettings.read({"TEMPORAL_API_KEY": SECRET, "TEMPORAL_GRPC_META_AUTHORIZATION": SECRET}))
    assert SECRET not in shown


def test_a_flag_that_is_neither_true_nor_false_is_named() -> None:
    """The SDK takes it for true."""
    assert refusal(TEMPORAL_TLS=SECRET) == "TEMPORAL_TLS: must be true or false"


def test_a_file_that_does_not_exist_is_named() -> None:
    """The SDK goes on without it, to 127.0.0.1."""
    assert refusal(TEMPORAL_CONFIG_FILE="/no/such.toml").startswith(
        "TEMPORAL_CONFIG_FILE: /no/such.toml does not exist"
    )


def test_every_wrong_variable_is_named_at_once() -> None:
    lines = refusal(TEMPORAL_TLS="maybe", TEMPORAL_CONFIG_FILE="/no/such.toml").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["TEMPORAL_TLS", "TEMPORAL_CONFIG_FILE"]


def test_an_unknown_profile_is_named(profiles: str) -> None:
    assert refusal(TEMPORAL_PROFILE="prod").startswith("TEMPORAL_PROFILE: ")
    assert profiles in refusal(TEMPORAL_CONFIG_FILE=profiles, TEMPORAL_PROFILE="nobody")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"[profile.default]\nadress = '{SECRET}'", "unknown key `adress` (line 2)"),
        (f"[profile.default]\napi_key = {SECRET}", "it is not a readable TOML file (line 2)"),
        ("[profile.default]\naddress = 'nowhere'", "address: must be HOST:PORT"),
    ],
)
def test_a_wrong_file_is_named_with_the_place_and_without_its_content(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text(text)
    assert refusal(TEMPORAL_CONFIG_FILE=str(file)).startswith(f"TEMPORAL_CONFIG_FILE: {file}: {reason}")


@pytest.mark.parametrize("address", ["nowhere", "https://a.example:7233", "a b:1", "a.example:"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    assert refusal(TEMPORAL_ADDRESS=address).startswith("TEMPORAL_ADDRESS: must be HOST:PORT")


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(SECRET)
    path, data = "TEMPORAL_TLS_CLIENT_CERT_PATH", "TEMPORAL_TLS_CLIENT_CERT_DATA"
    pem = "-----BEGIN CERTIFICATE-----"
    assert refusal(**{path: "/no/such.pem"}).startswith(f"{path}: /no/such.pem: No such file")
    assert refusal(**{path: str(tmp_path / "key.pem")}).startswith(f"{path}: it holds no PEM block CERTIFICATE")
    assert refusal(**{data: SECRET}).startswith(f"{data}: it holds no PEM block CERTIFICATE")
    assert refusal(**{data: pem}).startswith("TEMPORAL_TLS_CLIENT_KEY_PATH: ")
    assert refusal(**{data: pem, path: "/x"}) == f"{data}, {path}: set one of them, not both"


def test_a_server_that_is_not_verified_is_refused() -> None:
    """The SDK for Python ignores the variable."""
    assert refusal(TEMPORAL_TLS_DISABLE_HOST_VERIFICATION="true").startswith("TEMPORAL_TLS_DISABLE_HOST_VERIFICATION: ")
    assert read(TEMPORAL_TLS_DISABLE_HOST_VERIFICATION="false", TEMPORAL_TLS="true").tls == TLSConfig()


# mTLS, against a real server behind a proxy that asks for a client certificate


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def mtls_address(temporal: Client, ca: trustme.CA) -> AsyncIterator[str]:
    target = temporal.service_client.config.target_host
    async with tls_front(target, server_context(ca, "temporal.internal")) as address:
        yield address


@pytest.fixture
def certificates(ca: trustme.CA, tmp_path: Path) -> dict[str, str]:
    """The variables of a client that the server trusts, and that trusts the server."""
    client = ca.issue_cert("worker@acme.example")
    files = {
        "SERVER_CA_CERT": ca.cert_pem,
        "CLIENT_CERT": client.cert_chain_pems[0],
        "CLIENT_KEY": client.private_key_pem,
    }
    for name, pem in files.items():
        pem.write_to_path(str(tmp_path / f"{name}.pem"))
    return {
        "TEMPORAL_TLS_SERVER_NAME": "temporal.internal",
        **{f"TEMPORAL_TLS_{name}_PATH": str(tmp_path / f"{name}.pem") for name in files},
    }


async def test_a_client_certificate_logs_in(mtls_address: str, certificates: dict[str, str]) -> None:
    client = await connect(ClientSettings.read({"TEMPORAL_ADDRESS": mtls_address, **certificates}))
    assert await client.count_workflows("WorkflowId = 'nobody'")


async def test_the_certificates_of_a_profile_log_in(
    mtls_address: str, certificates: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "temporal.toml"
    name = certificates.pop("TEMPORAL_TLS_SERVER_NAME")
    keys = {variable.removeprefix("TEMPORAL_TLS_").lower(): path for variable, path in certificates.items()}
    tls = "\n".join(f'{key} = "{value}"' for key, value in {**keys, "server_name": name}.items())
    file.write_text(f'[profile.prod]\naddress = "{mtls_address}"\n[profile.prod.tls]\n{tls}\n')
    client = await connect(ClientSettings.read({"TEMPORAL_CONFIG_FILE": str(file), "TEMPORAL_PROFILE": "prod"}))
    assert await client.count_workflows("WorkflowId = 'nobody'")


@pytest.mark.parametrize("missing", ["SERVER_CA_CERT_PATH", "SERVER_NAME"])
async def test_a_server_that_the_client_does_not_trust_is_named(
    mtls_address: str, certificates: dict[str, str], missing: str
) -> None:
    del certificates[f"TEMPORAL_TLS_{missing}"]
    with pytest.raises(TemporalUnreachable, match=r"TLS failed: InvalidCertificate .*TEMPORAL_TLS"):
        await connect(ClientSettings.read({"TEMPORAL_ADDRESS": mtls_address, **certificates}))


async def test_what_the_two_sides_expect_differently_is_one_line(
    temporal: Client, mtls_address: str, certificates: dict[str, str]
) -> None:
    plain = temporal.service_client.config.target_host
    without_certificate = {name: value for name, value in certificates.items() if "CLIENT" not in name}
    for variables in (
        {"TEMPORAL_ADDRESS": mtls_address},
        {"TEMPORAL_ADDRESS": mtls_address, **without_certificate},
        {"TEMPORAL_ADDRESS": plain, "TEMPORAL_TLS": "true"},
    ):
        with pytest.raises(TemporalUnreachable, match="TEMPORAL_TLS") as refused:
            await connect(ClientSettings.read(variables))
        assert "transport::Error" not in str(refused.value)


async def test_an_unreachable_server_is_named_with_the_remedy() -> None:
    with pytest.raises(TemporalUnreachable, match=r"127\.0\.0\.1:1 \(Connection refused\).*TEMPORAL_ADDRESS"):
        await connect(ClientSettings(temporal=TemporalServer(address="127.0.0.1:1")))
