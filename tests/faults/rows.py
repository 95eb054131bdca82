"""All rows."""

from tests.faults.acp_scenarios import acp_rows
from tests.faults.scenarios import Row, rows_with_one_agent


def rows() -> dict[str, Row]:
    """All of them by their names, in the order of the tables."""
    return {row.name: row for row in (*rows_with_one_agent(), *acp_rows())}
