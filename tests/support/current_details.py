"""What Temporal's Web UI shows as the current details of a workflow."""

from typing import Any

from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowHandle


async def current_details(handle: WorkflowHandle[Any, Any]) -> str:
    """Asks for them as the Web UI does."""
    metadata: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details
