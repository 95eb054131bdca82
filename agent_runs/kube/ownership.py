"""The labels, the reference and the digest by which a step finds the objects that it or an earlier one created.

One function makes the labels for objects and for selectors, so that a selector always finds what was labelled.
"""

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

from agent_runs.contracts.identity import AttemptKey, identity_label
from agent_runs.contracts.messages import JobRef
from agent_runs.kube.objects import Job, Metadata

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
COMPONENT: Final = "app.kubernetes.io/component"
AGENT: Final = "paperclip.io/agent-id"
RUN: Final = "paperclip.io/run-id"
COMPANY: Final = "paperclip.io/company-id"
ATTEMPT: Final = "paperclip.io/attempt"
API_PROXY: Final = "paperclip.io/api-proxy"
"""Annotation of a Job: the container through which its agent speaks to Paperclip."""
TOKEN_RUN_ID: Final = "paperclip.io/token-run-id"  # noqa: S105  # the name of an annotation
"""Annotation of a pod: the Paperclip run whose token its proxy was given last."""
CONTENT_DIGEST: Final = "paperclip.io/content-sha256"
"""Annotation: the digest of a Secret's content when it was written."""
RESTS_SINCE: Final = "paperclip.io/rests-since"
"""Annotation of a Job whose agent has ended and whose OpenCode server waits for the agent's next run."""
CLAIMED_BY: Final = "paperclip.io/claimed-by"
"""Annotation of a Job: the later run and attempt, as `AttemptKey.transcript`, that its server works for."""
TTL: Final = "ttlSecondsAfterFinished"
"""Field of a Job's specification: for how long it stays once it has ended. 0 while its pod rests."""

OURS: Final = {MANAGED_BY: "paperclip", COMPONENT: "agent-job"}
"""Labels of every object that this program created."""
_OWNER: Final = (*OURS, COMPANY, AGENT, RUN, ATTEMPT)


def owner_labels(attempt: AttemptKey) -> dict[str, str]:
    run = attempt.run
    return {
        **OURS,
        AGENT: identity_label(run.agent_id),
        RUN: identity_label(run.run_id),
        COMPANY: identity_label(run.company_id),
        ATTEMPT: str(attempt.attempt),
    }


def selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def agent_selector(agent_id: str) -> str:
    """Return a selector for every object that this program created for an agent, also in earlier runs."""
    return selector({**OURS, AGENT: identity_label(agent_id)})


def same_owner(existing: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    """Return whether an existing object belongs to the same run and attempt as ours."""
    return all(existing.get(key) == ours.get(key) for key in _OWNER)


def belongs_to(metadata: Metadata, attempt: AttemptKey) -> bool:
    return same_owner(metadata.labels, owner_labels(attempt))


def ours(metadata: Metadata) -> bool:
    """Return whether an object was created by this program."""
    return all(metadata.labels.get(key) == value for key, value in OURS.items())


def job_ref(job: Job, *, adopted: bool = False) -> JobRef:
    return JobRef(
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        uid=job.metadata.uid,
        adopted=adopted,
        has_api_proxy=API_PROXY in job.metadata.annotations,
    )


def content_digest(content: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over keys and values, in the order of the keys, each preceded by its length."""
    digest = hashlib.sha256()
    for key in sorted(content):
        for part in (key.encode(), content[key]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def secret_data(content: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in content.items()}
