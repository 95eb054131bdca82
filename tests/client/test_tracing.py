"""OpenTelemetry's own variables switch traces on; what cannot be done is named; without them nothing is loaded."""

import os
import subprocess
import sys

import pytest

from agent_runs.client.settings import ClientSettings, SettingsError
from agent_runs.client.tracing import interceptors

ENDPOINT = "http://collector:4318"
LOADED = """
import sys, worker
from agent_runs.cli import display, main, replay, runs, serve
from agent_runs.client.settings import ClientSettings
from agent_runs.client.tracing import interceptors
assert interceptors(ClientSettings.read(), "test") == []
print(*(name for name in sys.modules if name.startswith("opentelemetry")))
"""


@pytest.mark.parametrize(
    ("variables", "traced"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "runs"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{ENDPOINT}/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, False),
        ({"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, False),
        ({"OTEL_SDK_DISABLED": "false", "OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, True),
    ],
)
def test_the_standard_variables_switch_it_on(variables: dict[str, str], traced: bool) -> None:
    assert ClientSettings.read(variables).traced is traced


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "must be otlp or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "must be http/protobuf, or unset"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", "must be http/protobuf, or unset"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318", "must be an http or https URL"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "must be a number"),
    ],
)
def test_what_cannot_be_done_is_named_with_the_remedy(name: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as refused:
        ClientSettings.read({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, name: value})
    assert str(refused.value).startswith(f"{name}: {remedy}")


def test_without_them_nothing_is_installed_and_nothing_of_opentelemetry_is_loaded() -> None:
    assert interceptors(ClientSettings.read({}), "test") == []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    loaded = subprocess.run([sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
