"""A real Temporal server: that of Temporal's own command line, in memory unless a file is named."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.testing import WorkflowEnvironment

from agent_runs.client.connection import DATA_CONVERTER
from tests.support.ran import note_temporal
from workflows.attributes import ALL


async def start_temporal(**options: Any) -> WorkflowEnvironment:
    """A server that knows our search attributes.

    Args:
        options: more of `WorkflowEnvironment.start_local`.
    """
    program = str(Path(sys.executable).with_name("temporal"))
    note_temporal(program)
    return await WorkflowEnvironment.start_local(
        dev_server_existing_path=program,
        data_converter=DATA_CONVERTER,
        search_attributes=list(ALL),
        dev_server_log_level="error",
        dev_server_startup_timeout=timedelta(minutes=2),
        **options,
    )
