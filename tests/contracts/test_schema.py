"""The committed JSON Schema is generated from the contracts."""

from agent_runs.contracts.schema import SCHEMA_FILE, schema_text


def test_the_committed_schema_is_fresh() -> None:
    assert SCHEMA_FILE.read_text() == schema_text(), "run: python -m agent_runs.contracts.schema"
