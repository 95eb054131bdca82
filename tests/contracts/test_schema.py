"""The committed JSON Schema is what the contracts say."""

from contracts.schema import SCHEMA_FILE, rendered


def test_the_committed_schema_is_fresh() -> None:
    assert SCHEMA_FILE.read_text() == rendered(), "run: python -m contracts.schema"
