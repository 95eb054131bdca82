"""Who polls a task queue, as Temporal lists it. It forgets a poller some minutes after its process has ended."""

from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

CALL_TIMEOUT: Final = timedelta(seconds=5)


async def last_poll(client: Client, queue: str, kind: TaskQueueType.ValueType) -> datetime | None:
    """When a worker last polled for this kind of task; None: none is listed.

    Raises:
        RPCError: Temporal does not answer.
    """
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    answer = await client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
    return max((each.last_access_time.ToDatetime(tzinfo=UTC) for each in answer.pollers), default=None)
