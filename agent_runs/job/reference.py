"""The reference by which the steps of an attempt address its Job."""

from agent_runs.contracts.messages import JobRef
from agent_runs.kube.objects import Job
from agent_runs.kube.ownership import API_PROXY


def job_ref(job: Job, *, adopted: bool = False) -> JobRef:
    """Return the reference by which later steps address this very Job."""
    return JobRef(
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        uid=job.metadata.uid,
        adopted=adopted,
        has_api_proxy=API_PROXY in job.metadata.annotations,
    )
