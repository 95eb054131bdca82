"""A pod as a run's, tried before the first run: its images, OpenCode, the model, the addresses of Paperclip and of
workspaces, the data volume.

The Job is a run's own, but its containers ask questions and end: no model is called. It is deleted at the end; were the
worker to die before, Kubernetes ends it after two minutes and deletes it with its Secrets.
"""

import asyncio
import copy
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from agent_runs.agents.opencode import VERSIONS
from agent_runs.agents.opencode.merge import similar_models
from agent_runs.agents.profile import OPENCODE_TITLE, AgentProfile
from agent_runs.contracts.errors import AgentVersionUnsupported, RunError
from agent_runs.contracts.messages import JobRef
from agent_runs.contracts.pod import AGENT_CONTAINER, DATA_DIRECTORY, SIDECAR_CONTAINER
from agent_runs.contracts.start import Finding
from agent_runs.doctor.objects import CheckedAgent, Objects, Planned
from agent_runs.job.agent_pod import literal
from agent_runs.job.secrets import prompt_secret
from agent_runs.kube.client import Cluster
from agent_runs.kube.diagnosis import Failing, Waiting, diagnose
from agent_runs.kube.failures import AlreadyExists
from agent_runs.kube.objects import Manifest, Pod, work_ended
from agent_runs.kube.ownership import job_ref
from agent_runs.kube.watch import snapshots
from agent_runs.pod.sidecar.drivers.versions import Windows, refusal

CHECKED_FOLDER: Final = "/agent-run/checked"
FILE: Final = ".agent-runs-check-{}"
SNAPSHOTS: Final = timedelta(seconds=2)
ANSWER_LIMIT: Final = timedelta(minutes=2)
"""From the creation of such a Job to its end: as long as a large image may take to be pulled."""
FIELD_LIMIT: Final = 200

ASK_OPENCODE: Final = """\
version=$(opencode --version 2>&1 | head -n 1 | cut -c 1-100)
known=no models=''
case $version in
opencode\\ v*) known=unasked ;; # OpenCode 2 knows its models once its server has asked the providers
*) models=$(opencode models "$1" 2>/dev/null) ;;
esac
printf '%s\\n' "$models" | grep -Fxq -- "$2" && known=yes
listed=$(printf '%s\\n' "$models" | grep -F -- "$1/" | awk '(size += length($0) + 1) < 3500')
printf '%s\\n' "$version" "$known" "$listed" > /dev/termination-log
"""
"""Plain POSIX sh. Its arguments are the provider and the model."""
ASK_AGENT: Final = """\
mkdir -p "$HOME"
found=no
command -v "$1" > /dev/null && found=yes
version=$("$@" 2>&1 < /dev/null | head -n 1 | cut -c 1-100)
printf '%s\\n' "$found" "$version" > /dev/termination-log
"""
"""The same for another agent. Its arguments are the command that prints the version."""
ASK_THE_REST: Final = """\
import json, pathlib, sys, urllib.error, urllib.request
def paperclip(address):
    try:
        urllib.request.urlopen(address, timeout=10).close()
    except urllib.error.HTTPError:
        pass
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))[:200]
    return "ok"
def volume(file):
    try:
        return pathlib.Path(file).read_text()[:200]
    except OSError as error:
        return error.strerror
def workspaces(address):
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        return "ok" if "limits" in json.load(direct.open(f"{address}/workspace", timeout=10)) else "another service"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))[:200]
answers = [ask(word) if word else "ok" for ask, word in zip((paperclip, volume, workspaces), sys.argv[1:])]
pathlib.Path("/dev/termination-log").write_text("\\n".join(" ".join(each.split()) for each in answers))
"""
"""Its arguments are Paperclip's address, a file of the data volume, and the address for workspaces; an empty one is not
asked about. An answer of Paperclip by HTTP, whatever its status, shows that its address is reached. As in a run, no
proxy is between a pod and workspaces."""


async def pod_findings(objects: Objects, agent: CheckedAgent, progress: Callable[[], None]) -> Sequence[Finding]:
    """What a run's pod finds. Repeated by another activity attempt it continues with the same Job.

    Args:
        progress: called every few seconds while the pod is waited for.

    Raises:
        RunError: as `Objects.planned`.
    """
    planned, cluster = await objects.planned(agent), objects.cluster
    check_id, hide = agent.run.run_id, agent.values.redaction(agent.prepared.secrets).hide
    file = await asyncio.to_thread(_written, planned, check_id)
    try:
        job = await _created(cluster, planned, check_id if file else "")
        ended = await _ended(cluster, job, progress)  # if it is cut off, the next activity attempt goes on with the Job
        await cluster.delete_job(job.namespace, job.name, job.uid, timedelta(seconds=1))
    except RunError as error:
        return [Finding.error(error.code, hide(error.message), error.next_step)]
    finally:
        if file:
            await asyncio.to_thread(_removed, file)
    if isinstance(ended, Finding):
        return [ended.model_copy(update={"message": hide(ended.message)})]
    model = agent.prepared.request.config.model
    answers = {name: hide(_message(ended, name)) for name in (AGENT_CONTAINER, SIDECAR_CONTAINER)}
    answer, program = answers[AGENT_CONTAINER].split("\n"), planned.agent
    return [
        *(_agent(answer, planned.image, program) if program else _opencode(answer, planned.image, model)),
        *_rest(answers[SIDECAR_CONTAINER].split("\n"), planned, check_id if file else ""),
    ]


def _written(planned: Planned, check_id: str) -> Path | None:
    """The file that the worker writes on the data volume, None where it has none."""
    if not (planned.worker_has_data and planned.profile.data_claim):
        return None
    file = Path(DATA_DIRECTORY, FILE.format(check_id))
    with suppress(OSError):
        file.write_text(check_id)
        return file
    return None


def _removed(file: Path) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)


async def _created(cluster: Cluster, planned: Planned, check_id: str) -> JobRef:
    """The Job, with its Secrets, which it owns."""
    manifest = _trial_job(planned, FILE.format(check_id) if check_id else "")
    try:
        job = job_ref(await cluster.create_job(manifest))
    except AlreadyExists:
        existing = await cluster.read_job(planned.namespace, manifest["metadata"]["name"])
        if existing is None:
            raise
        job = job_ref(existing)
    prompt = prompt_secret(planned.input.attempt, planned.namespace, b"check")
    for secret in (planned.plan.run_secret, prompt):
        await cluster.put_secret(secret)
        await cluster.set_secret_owner(job.namespace, secret["metadata"]["name"], job)
    return job


async def _ended(cluster: Cluster, job: JobRef, progress: Callable[[], None]) -> Pod | Finding:
    """The pod when our containers have ended, else why they will not, or have not within the limit."""
    reason = "no pod was created"
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(ANSWER_LIMIT.total_seconds()),
            cluster.watch_pods(job) as states,
            aclosing(snapshots(states, SNAPSHOTS)) as repeated,
        ):
            async for pods in repeated:
                progress()
                pod = pods[-1] if pods else None
                if pod is not None and work_ended(pod):
                    return pod
                uids = [job.uid, *([pod.metadata.uid] if pod else [])]
                events = await cluster.events_of(job.namespace, uids)
                diagnosis = diagnose(pod, await cluster.read_job(job.namespace, job.name), events)
                if isinstance(diagnosis, Failing):
                    return Finding.error(diagnosis.error.code, diagnosis.message, diagnosis.error.next_step)
                reason = diagnosis.reason if isinstance(diagnosis, Waiting) else "its containers did not end"
    late = f"The pod has not run within {ANSWER_LIMIT.total_seconds():.0f} s: {reason}"
    return Finding.error("pod_not_started", late, "Correct what Kubernetes names, and check again.")


def _trial_job(planned: Planned, file: str) -> Manifest:
    """The run's Job with other commands, little time, and the data volume where the sidecar can read it."""
    job: dict[str, Any] = copy.deepcopy(dict(planned.plan.job))
    spec = job["spec"]
    spec |= {"activeDeadlineSeconds": int(ANSWER_LIMIT.total_seconds()), "ttlSecondsAfterFinished": 60}
    pod = spec["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 1
    if planned.plan.database:  # it belongs to an agent, which a trial is not
        name = planned.plan.database["metadata"]["name"]
        pod["volumes"] = [_without_claim(each, name) for each in pod["volumes"]]
    containers = {each["name"]: each for each in pod["containers"]}
    containers[AGENT_CONTAINER] |= {"command": ["sh", "-c", *map(literal, _question(planned))], "args": []}
    sidecar = containers[SIDECAR_CONTAINER]
    checked = f"{CHECKED_FOLDER}/{file}" if file else ""
    sidecar["command"] = ["python3", "-I", "-c", literal(ASK_THE_REST)]
    sidecar["args"] = [planned.paperclip or "", checked, planned.workspaces or ""]
    if file:
        sidecar["volumeMounts"].append({"name": "data", "mountPath": CHECKED_FOLDER, "readOnly": True})
    return job


def _question(planned: Planned) -> Sequence[str]:
    """What the agent's container is asked: a script, its name, and its arguments."""
    if planned.agent:
        return ASK_AGENT, "check", *planned.agent.version_command
    model = planned.input.config.model
    return ASK_OPENCODE, "check", model.partition("/")[0], model


def _without_claim(volume: dict[str, Any], claim: str) -> dict[str, Any]:
    theirs = volume.get("persistentVolumeClaim", {}).get("claimName")
    return {"name": volume["name"], "emptyDir": {}} if theirs == claim else volume


def _agent(answer: Sequence[str], image: str, agent: AgentProfile) -> Sequence[Finding]:
    found, version, *_ = [*answer, "", ""]
    if found != "yes":
        hint = f"Build it with {agent.command[0]} on its PATH (deploy/acp.Dockerfile)."
        message = f"Image {image} does not have {agent.title}: {version or found or 'no answer'}"
        return [Finding.error("agent_missing", message, hint)]
    ran = Finding(code="agent", level="info", message=f"A pod of image {image} ran {agent.title}: {version}")
    return [ran, *_unsupported(agent.title, version, agent.versions, image)]


def _unsupported(title: str, version: str, windows: Windows, image: str) -> Sequence[Finding]:
    if refused := refusal(title, version, windows):
        error = AgentVersionUnsupported
        return [Finding.error(error.code, f"Image {image}: {refused}", error.next_step)]
    return []


def _opencode(answer: Sequence[str], image: str, model: str) -> Sequence[Finding]:
    version, known, *listed = [*answer, "", ""]
    if known not in {"yes", "no", "unasked"} or not version:
        hint = "Build the agent's image with OpenCode on its PATH (deploy/agent.Dockerfile)."
        return [
            Finding.error("opencode_missing", f"Image {image} does not run OpenCode: {version or 'no answer'}", hint)
        ]
    version = version.removeprefix("opencode v")
    found = Finding(code="opencode", level="info", message=f"A pod of image {image} ran OpenCode {version}")
    if refused := _unsupported(OPENCODE_TITLE, version, VERSIONS, image):
        return [found, *refused]
    if known == "unasked":
        return [found]
    if known == "yes":
        return [found, Finding(code="model", level="info", message=f"OpenCode there knows the model {model}")]
    others = [each for each in listed if each]
    hint = (
        f"Choose one that it lists: {similar_models(model, others)}."
        if others
        else "Give agents the provider's key (Secret agent-runs-provider-keys) or a `provider` block; docs/install.md."
    )
    return [found, Finding.error("model_unknown", f"OpenCode in image {image} does not list the model {model}", hint)]


def _rest(answer: Sequence[str], planned: Planned, written: str) -> Sequence[Finding]:
    paperclip, read, workspaces, *_ = [*answer, "", "", ""]
    found = []
    if planned.paperclip:
        reached = Finding(code="paperclip_reached", level="info", message=f"A pod reaches {planned.paperclip}")
        message = f"A pod does not reach Paperclip at {planned.paperclip}: {paperclip or 'no answer'}"
        hint = "Set AGENT_RUNS_PAPERCLIP_API_URL to the address of Paperclip for pods, and allow it in NetworkPolicies."
        found.append(reached if paperclip == "ok" else Finding.error("paperclip_unreachable", message, hint))
    if written:
        shared = Finding(code="data_volume", level="info", message="Worker and pods share the data volume")
        message = f"A pod does not see what the worker writes on the data volume: {read[:FIELD_LIMIT] or 'no answer'}"
        hint = "Give both claims the same storage, or set AGENT_RUNS_DATA_CLAIM to the worker's own claim."
        found.append(shared if read == written else Finding.error("data_volume_not_shared", message, hint))
    if planned.workspaces:
        reached = Finding(code="workspaces_reached", level="info", message=f"A pod reaches {planned.workspaces}")
        message = f"A pod does not reach workspaces at {planned.workspaces}: {workspaces or 'no answer'}"
        hint = "Set AGENT_RUNS_WORKSPACE_URL to the address of the worker for pods, and allow it in NetworkPolicies."
        found.append(reached if workspaces == "ok" else Finding.error("workspaces_unreachable", message, hint))
    return found


def _message(pod: Pod, container: str) -> str:
    status = pod.container(container)
    ended = status.state.terminated if status is not None else None
    return "" if ended is None else ended.message.strip()
