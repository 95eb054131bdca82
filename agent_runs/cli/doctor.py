"""The command doctor: whether a run would find all that it needs.

What only a caller can see comes first: Temporal, a worker that polls, the sealing key. A worker checks the rest, by the
workflow that Paperclip's environment test starts as well.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.cli.program import Refused
from agent_runs.cli.transcripts import read_in_time, usage_of
from agent_runs.client.connection import TemporalUnreachable, connect
from agent_runs.client.obstacles import CALL_TIMEOUT, last_poll
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.errors import SealedFieldUnreadable
from agent_runs.contracts.identity import CHECK_WORKFLOW_TYPE, RunKey, check_workflow_id
from agent_runs.contracts.start import Binding, CheckReport, CheckStart, Finding, SealedCheck
from agent_runs.doctor.deployment import deployment_findings
from agent_runs.doctor.surroundings import Check, run_checks
from agent_runs.files import UnusableKey, read_json_object
from agent_runs.kube.client import Cluster
from agent_runs.kube.credentials import ClusterConfigError
from agent_runs.paperclip.sealing import Sealer, public_key

if TYPE_CHECKING:
    from pathlib import Path

    from agent_runs.cli.display import Display

CHECK_TIMEOUT: Final = timedelta(seconds=60)
POD_TIMEOUT: Final = timedelta(minutes=4)
LISTED_WITHIN: Final = timedelta(seconds=3)
LISTED_POLL: Final = timedelta(seconds=0.25)
NO_AGENT: Final = {"model": "doctor/doctor"}
"""The configuration that is checked without one of an agent."""
CONFIGURATION: Final = "the agent's configuration (Paperclip's `adapterConfig`)"


async def doctor(
    agent_config: Path | None, company: str, namespace: str | None, display: Display, *, pod: bool = False
) -> int:
    """Check what a run needs, and show what was found. Returns 1 with an error among it.

    Args:
        namespace: where the worker's Deployment is; None: it is not looked at.
        pod: also run a pod of the agent.

    Raises:
        Refused: `pod` without an agent's configuration.
        UnusableFile: `agent_config` holds none.
    """
    if pod and agent_config is None:
        raise Refused("--pod: name the configuration of the agent whose pod is tried by --agent-config")
    config = NO_AGENT if agent_config is None else read_json_object(agent_config, "--agent-config", CONFIGURATION)
    installed = await _deployment(namespace) if namespace else []
    if any(finding.level == "error" for finding in installed):
        display.findings(installed)
        return 1
    settings = ClientSettings.read()
    findings = [*installed, *await _findings(settings, config, company, pod=pod)]
    display.findings(findings)
    return 1 if any(finding.level == "error" for finding in findings) else 0


async def _deployment(namespace: str) -> Sequence[Finding]:
    """What keeps the worker's Deployment from running, seen with the kubeconfig of whoever calls."""
    try:
        async with await Cluster.connect(os.environ.get("KUBECONFIG"), namespace=namespace) as cluster:
            check = Check("the worker's Deployment", lambda: deployment_findings(cluster, namespace))
            return await run_checks([check], CALL_TIMEOUT)
    except ClusterConfigError as error:
        hint = "Set KUBECONFIG to the kubeconfig of an administrator of that namespace, or leave out --namespace."
        return [Finding.error("kubeconfig_unusable", str(error), hint)]


async def _findings(settings: ClientSettings, config: dict[str, Any], company: str, *, pod: bool) -> Sequence[Finding]:
    server = settings.temporal
    try:
        client = await connect(settings)
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=server.namespace), timeout=CALL_TIMEOUT
        )
        polled = await _is_polled(client, settings.task_queue)
    except TemporalUnreachable as error:
        return [Finding.error("temporal_unreachable", str(error))]
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            message = f"Temporal at {server.address} has no namespace {server.namespace}"
            hint = "Create it (`temporal operator namespace create`) or set TEMPORAL_NAMESPACE to another."
            return [Finding.error("temporal_namespace_missing", message, hint)]
        message = f"Temporal at {server.address} refused a request: {error.status.name}"
        return [
            Finding.error("temporal_unreachable", message, "Check TEMPORAL_API_KEY, TEMPORAL_NAMESPACE and its state.")
        ]
    message = f"Temporal answers at {server.address}, namespace {server.namespace}"
    reachable = Finding(code="temporal_reachable", level="info", message=message)
    if not polled:
        message = f"No worker polls task queue {settings.task_queue}"
        hint = "Start a worker (`agent-runs worker`) with the same AGENT_RUNS_TASK_QUEUE. Runs wait until then."
        return [reachable, Finding.error("worker_missing", message, hint)]
    polls = Finding(code="worker_polls", level="info", message=f"A worker polls task queue {settings.task_queue}")
    found = await _workers_findings(client, settings, config, company, pod=pod)
    return [reachable, polls, *found, *await _transcripts_findings(settings)]


async def _transcripts_findings(settings: ClientSettings) -> Sequence[Finding]:
    """Whether the transcript service answers here, where it is set."""
    if (base := settings.transcripts_public_url) is None:
        return []
    try:
        probe = [RunKey(agent_id="doctor", company_id="doctor", run_id="doctor").name]
        _, note = await read_in_time(settings, lambda found: usage_of(found, probe), "No output of runs can be read")
    except UnusableKey as error:
        return [Finding.error("transcripts_key_unusable", str(error))]
    if note:
        hint = "Correct the setting, or start the service. Runs go on without it."
        return [Finding.error("transcripts_unreachable", note, hint)]
    return [Finding(code="transcripts_reachable", level="info", message=f"Transcripts are served at {base}")]


async def _is_polled(client: Client, task_queue: str) -> bool:
    """Whether Temporal lists a worker, which it does some moments after the worker's first poll."""
    for _ in range(LISTED_WITHIN // LISTED_POLL):
        if await last_poll(client, task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW) is not None:
            return True
        await asyncio.sleep(LISTED_POLL.total_seconds())
    return False


async def _workers_findings(
    client: Client, settings: ClientSettings, config: dict[str, Any], company: str, *, pod: bool
) -> Sequence[Finding]:
    check_id = str(uuid.uuid4())
    workflow_id = check_workflow_id(check_id)
    try:
        sealer = Sealer(public_key(settings.sealing_key_file))
    except UnusableKey as error:
        return [Finding.error("sealing_key_unusable", str(error))]
    binding = Binding(purpose="check", workflow_id=workflow_id, company_id=company, run_id=check_id)
    sealed = sealer.seal(SealedCheck(binding=binding, config=config))
    try:
        report: CheckReport = await client.execute_workflow(
            CHECK_WORKFLOW_TYPE,
            CheckStart(check_id=check_id, company_id=company, sealed=sealed, pod=pod),
            id=workflow_id,
            task_queue=settings.task_queue,
            execution_timeout=POD_TIMEOUT if pod else CHECK_TIMEOUT,
            result_type=CheckReport,
        )
    except WorkflowFailureError as error:
        return [_unchecked(error)]
    key = Finding(code="sealing_key", level="info", message="The worker opens what this command seals")
    return [key, *report.findings]


def _unchecked(error: WorkflowFailureError) -> Finding:
    """Why the worker has checked nothing: its key is another one, or it did not answer in time."""
    cause = error.cause.cause if isinstance(error.cause, ActivityError) else error.cause
    if isinstance(cause, ApplicationError) and cause.type == SealedFieldUnreadable.code:
        hint = "Set AGENT_RUNS_SEALING_KEY_FILE to the file of the worker, here as in its environment."
        return Finding.error(
            "sealing_key_mismatch", f"The worker cannot open what is sealed here: {cause.message}", hint
        )
    reason = cause.message if isinstance(cause, ApplicationError) else "no worker answered in time"
    hint = "Start a worker of this version with the same AGENT_RUNS_TASK_QUEUE, and read its log."
    return Finding.error("configuration_unchecked", f"A worker polls, but has checked nothing: {reason}", hint)
