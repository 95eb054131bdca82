"""The Job controller: makes pods for Jobs, counts how they end, and says when a Job is complete or has failed.

As in current Kubernetes each pod carries the job-tracking finalizer until its end has been counted, and a pod that is
deleted while it runs counts as failed. (Kubernetes before 1.26 has no such finalizer and makes a new pod instead.)
Indexed Jobs, podFailurePolicy, successPolicy and podReplacementPolicy are not covered.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from local.cluster.defaults import fill_in_pod_spec
from local.cluster.deletion import begin
from local.cluster.events import Recorder
from local.cluster.kinds import JOBS, PODS, Object
from local.cluster.objects import (
    condition,
    controller_uid,
    deleting,
    finished,
    generated_name,
    parse_stamp,
    reference,
    set_condition,
    stamp,
)
from local.cluster.refusals import Refused
from local.cluster.store import Store
from local.cluster.validation import check

TRACKING = "batch.kubernetes.io/job-tracking"
_LONGEST_BACKOFF = timedelta(minutes=10)


def ended(pod: Object) -> bool:
    """Whether a pod's containers have all ended for good."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def ended_at(pod: Object) -> datetime:
    """When the last container of an ended pod ended."""
    ends = [
        status["state"]["terminated"]["finishedAt"]
        for status in pod["status"].get("containerStatuses") or ()
        if "terminated" in status["state"]
    ]
    return parse_stamp(max(ends)) if ends else datetime.now(UTC)


class JobController:
    """Brings every Job one step nearer to its spec whenever it or one of its pods changes, or its time comes."""

    def __init__(self, store: Store, backoff: timedelta) -> None:
        self._store = store
        self._backoff = backoff
        self._events = Recorder(store, "job-controller")
        self._alarms: dict[tuple[str, str], asyncio.TimerHandle] = {}

    async def run(self) -> None:
        """Control until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_jobs())
                tasks.create_task(self._follow_pods())
        finally:
            for alarm in self._alarms.values():
                alarm.cancel()

    async def _follow_jobs(self) -> None:
        async for change in self._store.observe(JOBS):
            meta = change.body["metadata"]
            if change.type == "DELETED":
                self._silence(meta["namespace"], meta["name"])
                for _, pod in self._store.owned_by(meta["uid"], PODS):
                    self._untrack(pod)
            else:
                self._sync(meta["namespace"], meta["name"])

    async def _follow_pods(self) -> None:
        async for change in self._store.observe(PODS):
            pod = change.body
            owner = next((o for o in pod["metadata"].get("ownerReferences") or () if o["kind"] == "Job"), None)
            if owner is None:
                self._untrack(pod)  # orphaned
                continue
            job = self._store.find(JOBS, pod["metadata"]["namespace"], owner["name"])
            if job is None or job["metadata"]["uid"] != owner["uid"]:
                self._untrack(pod)
            else:
                self._sync(pod["metadata"]["namespace"], owner["name"])

    # ---------------------------------------------------------------- one step

    def _sync(self, namespace: str, name: str) -> None:
        job = self._store.find(JOBS, namespace, name)
        if job is None:
            return
        self._silence(namespace, name)
        pods = [pod for _, pod in self._store.owned_by(job["metadata"]["uid"], PODS) if controller_uid(pod)]
        job = self._count(job, pods)
        pods = [self._store.find(PODS, namespace, pod["metadata"]["name"]) or pod for pod in pods]
        active = [pod for pod in pods if not ended(pod) and not deleting(pod)]
        if finished(job):
            self._clean_up(job, active)
        elif not deleting(job):
            self._advance(job, active, pods)
        self._publish_active(namespace, name)

    def _count(self, job: Object, pods: list[Object]) -> Object:
        """Add newly ended pods to the Job's totals and let go of them."""
        fresh = [pod for pod in pods if self._tracked(pod) and (ended(pod) or deleting(pod))]
        if not fresh:
            return job
        succeeded = sum(pod["status"]["phase"] == "Succeeded" for pod in fresh)

        def add(body: Object) -> None:
            status = body["status"]
            for field, number in (("succeeded", succeeded), ("failed", len(fresh) - succeeded)):
                if number and not finished(body):
                    status[field] = status.get(field, 0) + number

        for pod in fresh:
            self._untrack(pod)
        return self._change(job, add)

    def _advance(self, job: Object, active: list[Object], pods: list[Object]) -> None:
        spec, status = job["spec"], job["status"]
        if spec["suspend"]:
            self._suspend(job, active)
            return
        if "startTime" not in status:
            job = self._start(job)
        failed = status.get("failed", 0)
        deadline = spec.get("activeDeadlineSeconds")
        running_for = datetime.now(UTC) - parse_stamp(job["status"]["startTime"])
        if failed > spec["backoffLimit"] or self._restarts_exhausted(spec, active):
            self._fail(job, active, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif deadline is not None and running_for >= timedelta(seconds=deadline):
            self._fail(job, active, "DeadlineExceeded", "Job was active longer than specified deadline")
        elif self._complete(job, active):
            self._succeed(job, active)
        else:
            if deadline is not None:
                self._wake(job, timedelta(seconds=deadline) - running_for)
            self._staff(job, active, pods)

    @staticmethod
    def _restarts_exhausted(spec: Object, active: list[Object]) -> bool:
        if spec["template"]["spec"]["restartPolicy"] != "OnFailure":
            return False
        restarts = sum(
            status["restartCount"]
            for pod in active
            for group in ("initContainerStatuses", "containerStatuses")
            for status in pod["status"].get(group) or ()
        )
        limit = spec["backoffLimit"]
        return bool(restarts > 0 if limit == 0 else restarts >= limit)

    @staticmethod
    def _complete(job: Object, active: list[Object]) -> bool:
        completions, succeeded = job["spec"].get("completions"), job["status"].get("succeeded", 0)
        if completions is None:
            return succeeded > 0 and not active
        return bool(succeeded >= completions)

    def _staff(self, job: Object, active: list[Object], pods: list[Object]) -> None:
        """Make missing pods, or delete those that are too many."""
        spec, succeeded = job["spec"], job["status"].get("succeeded", 0)
        wanted = spec["parallelism"]
        if spec.get("completions") is not None:
            wanted = min(wanted, spec["completions"] - succeeded)
        elif succeeded:
            wanted = len(active)  # a work queue: once one succeeded, nobody new is hired
        if len(active) > wanted:
            self._delete_pods(job, active[wanted:])
        elif len(active) < wanted:
            wait = self._retry_in(job, pods)
            if wait > timedelta():
                self._wake(job, wait)
                return
            for _ in range(wanted - len(active)):
                if not self._make_pod(job):
                    return

    def _retry_in(self, job: Object, pods: list[Object]) -> timedelta:
        failed = job["status"].get("failed", 0)
        losses = [ended_at(pod) for pod in pods if pod["status"].get("phase") == "Failed"]
        if not failed or not losses:
            return timedelta()
        pause: timedelta = min(self._backoff * 2 ** min(failed - 1, 20), _LONGEST_BACKOFF)
        return max(losses) + pause - datetime.now(UTC)

    # ---------------------------------------------------------------- acting

    def _make_pod(self, job: Object) -> bool:
        template = copy.deepcopy(job["spec"]["template"])
        meta = {key: (template.get("metadata") or {}).get(key) for key in ("labels", "annotations")}
        name = generated_name(job["metadata"]["name"] + "-")
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {key: value for key, value in meta.items() if value}
            | {
                "name": name,
                "generateName": job["metadata"]["name"] + "-",
                "namespace": job["metadata"]["namespace"],
                "ownerReferences": [reference(JOBS, job)],
                "finalizers": [TRACKING],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "qosClass": "BestEffort"},
        }
        fill_in_pod_spec(pod["spec"], restart=None)
        try:
            check(PODS, pod)
            self._store.add(PODS, pod)
        except Refused as refusal:
            self._events.tell(JOBS, job, "FailedCreate", f"Error creating: {refusal.message}", warning=True)
            self._wake(job, self._backoff)
            return False
        self._events.tell(JOBS, job, "SuccessfulCreate", f"Created pod: {name}")
        return True

    def _delete_pods(self, job: Object, pods: list[Object]) -> None:
        for pod in pods:
            begin(self._store, PODS, pod, "Background", None)
            self._events.tell(JOBS, job, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    def _start(self, job: Object) -> Object:
        def start(body: Object) -> None:
            body["status"]["startTime"] = stamp()
            if condition(body, "Suspended"):
                set_condition(body["status"], "Suspended", "False", "JobResumed", "Job resumed")

        if condition(job, "Suspended"):
            self._events.tell(JOBS, job, "Resumed", "Job resumed")
        return self._change(job, start)

    def _suspend(self, job: Object, active: list[Object]) -> None:
        if (condition(job, "Suspended") or {}).get("status") == "True":
            return

        def suspend(body: Object) -> None:
            body["status"].pop("startTime", None)
            set_condition(body["status"], "Suspended", "True", "JobSuspended", "Job suspended")

        self._delete_pods(job, active)
        self._change(job, suspend)
        self._events.tell(JOBS, job, "Suspended", "Job suspended")

    def _fail(self, job: Object, active: list[Object], reason: str, message: str) -> None:
        def fail(body: Object) -> None:
            set_condition(body["status"], "Failed", "True", reason, message)
            if active:
                body["status"]["failed"] = body["status"].get("failed", 0) + len(active)

        job = self._change(job, fail)
        self._events.tell(JOBS, job, reason, message, warning=True)
        self._clean_up(job, active)

    def _succeed(self, job: Object, active: list[Object]) -> None:
        def succeed(body: Object) -> None:
            set_condition(
                body["status"], "Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods"
            )
            body["status"]["completionTime"] = stamp()

        job = self._change(job, succeed)
        self._events.tell(JOBS, job, "Completed", "Job completed")
        self._clean_up(job, active)

    def _clean_up(self, job: Object, active: list[Object]) -> None:
        """After the end: stop what still runs, then wait for the Job's own time to go."""
        self._delete_pods(job, active)
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None or deleting(job):
            return
        end = next(c for name in ("Complete", "Failed") if (c := condition(job, name)))
        left = parse_stamp(end["lastTransitionTime"]) + timedelta(seconds=ttl) - datetime.now(UTC)
        if left <= timedelta():
            begin(self._store, JOBS, job, "Foreground", None)
        else:
            self._wake(job, left)

    def _publish_active(self, namespace: str, name: str) -> None:
        job = self._store.find(JOBS, namespace, name)
        if job is None:
            return
        pods = [pod for _, pod in self._store.owned_by(job["metadata"]["uid"], PODS)]
        active = [pod for pod in pods if not ended(pod) and not deleting(pod)]
        ready = sum((condition(pod, "Ready") or {}).get("status") == "True" for pod in active)

        def publish(body: Object) -> None:
            body["status"].pop("active", None)
            if active and not finished(body):
                body["status"]["active"] = len(active)
            body["status"]["ready"] = ready

        self._change(job, publish)

    # ---------------------------------------------------------------- small steps

    def _change(self, job: Object, how: Callable[[Object], None]) -> Object:
        meta = job["metadata"]
        return self._store.change(JOBS, meta["namespace"], meta["name"], how, meta["uid"]) or job

    @staticmethod
    def _tracked(pod: Object) -> bool:
        return TRACKING in (pod["metadata"].get("finalizers") or ())

    def _untrack(self, pod: Object) -> None:
        if not self._tracked(pod):
            return

        def untrack(body: Object) -> None:
            left = [one for one in body["metadata"].get("finalizers") or () if one != TRACKING]
            body["metadata"].pop("finalizers", None)
            if left:
                body["metadata"]["finalizers"] = left

        self._store.change(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], untrack)

    def _wake(self, job: Object, delay: timedelta) -> None:
        """Look at the Job again after `delay`, unless it changes before."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        when = asyncio.get_running_loop().time() + max(0.0, delay.total_seconds()) + 0.005
        alarm = self._alarms.get(key)
        if alarm is None or alarm.when() > when:
            self._silence(*key)
            self._alarms[key] = asyncio.get_running_loop().call_at(when, self._sync, *key)

    def _silence(self, namespace: str, name: str) -> None:
        alarm = self._alarms.pop((namespace, name), None)
        if alarm is not None:
            alarm.cancel()
