"""The Job controller: makes the one pod of each Job, and completes or fails the Job when that has ended.

As in current Kubernetes a pod that is deleted while it runs counts as failed. (Kubernetes before 1.26 makes a new pod
instead.) Every Job has one pod and fails with it: `parallelism`, `completions` and `backoffLimit` are ignored.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from dev_stack.cluster.deletion import begin_deletion
from dev_stack.cluster.events import Recorder
from dev_stack.cluster.kinds import JOBS, PODS, Object
from dev_stack.cluster.objects import (
    condition,
    deleting,
    ended,
    generated_name,
    holds,
    parse_stamp,
    set_condition,
    stamp,
)
from dev_stack.cluster.store import Store


class JobController:
    """Brings every Job one step nearer to its spec whenever it or its pod changes, and at its deadlines."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._events = Recorder(store, "job-controller")
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_jobs())
                tasks.create_task(self._follow_pods())
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _follow_jobs(self) -> None:
        async for change in self._store.observe(JOBS):
            if change.type != "DELETED":
                self._sync(change.body["metadata"]["uid"], change.body["metadata"])

    async def _follow_pods(self) -> None:
        async for change in self._store.observe(PODS):
            meta = change.body["metadata"]
            for owner in meta.get("ownerReferences") or ():
                if owner["kind"] == "Job":
                    lost = change.body if change.type == "DELETED" else None
                    self._sync(owner["uid"], {"namespace": meta["namespace"], "name": owner["name"]}, lost)

    def _sync(self, uid: str, key: Object, lost: Object | None = None) -> None:
        """Reconcile a Job with its pod; `lost` is its pod, if that has just been removed."""
        job = self._store.find(JOBS, key["namespace"], key["name"])
        if job is None or job["metadata"]["uid"] != uid or deleting(job):
            return
        if holds(job, "Complete") or holds(job, "Failed"):
            self._expire(job)
            return
        pods = [pod for _, pod in self._store.owned_by(uid, PODS)] or ([lost] if lost else [])
        self._advance(job, pods[0] if pods else None)

    def _advance(self, job: Object, pod: Object | None) -> None:
        spec = job["spec"]
        if "startTime" not in job["status"]:
            if spec["suspend"]:
                return
            job = self._change(job, lambda body: body["status"].update(startTime=stamp()))
        deadline, since = spec.get("activeDeadlineSeconds"), parse_stamp(job["status"]["startTime"])
        left = None if deadline is None else since + timedelta(seconds=deadline) - datetime.now(UTC)
        if pod is not None and pod["status"]["phase"] == "Succeeded":
            self._finish(job, pod, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        elif pod is not None and (ended(pod) or deleting(pod)):
            self._finish(job, pod, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif left is not None and left <= timedelta():
            self._finish(job, pod, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
        else:
            if left is not None:
                self._wake(job, left)
            if pod is None:
                self._make_pod(job)
            elif job["status"].get("active") != 1:
                self._change(job, lambda body: body["status"].update(active=1))

    def _make_pod(self, job: Object) -> None:
        meta = job["metadata"]
        template = copy.deepcopy(job["spec"]["template"])
        owner = {"apiVersion": JOBS.api_version, "kind": JOBS.name, "name": meta["name"], "uid": meta["uid"]}
        name = generated_name(meta["name"] + "-")
        pod: Object = {
            "apiVersion": PODS.api_version,
            "kind": PODS.name,
            "metadata": {
                **{key: template["metadata"][key] for key in ("labels", "annotations") if key in template["metadata"]},
                "name": name,
                "generateName": meta["name"] + "-",
                "namespace": meta["namespace"],
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "qosClass": "BestEffort"},
        }
        self._store.add(PODS, pod)
        self._events.record(JOBS, job, "SuccessfulCreate", f"Created pod: {name}")

    def _finish(self, job: Object, pod: Object | None, outcome: str, reason: str, message: str) -> None:
        count = "succeeded" if outcome == "Complete" else "failed"

        def finish(body: Object) -> None:
            status = body["status"]
            status.pop("active", None)
            set_condition(status, outcome, "True", reason, message)
            if pod is not None:
                status[count] = 1
            if outcome == "Complete":
                status["completionTime"] = stamp()

        event, text = ("Completed", "Job completed") if outcome == "Complete" else (reason, message)
        self._events.record(JOBS, job, event, text, warning=outcome == "Failed")
        job = self._change(job, finish)
        if pod is not None and not ended(pod) and not deleting(pod):
            begin_deletion(self._store, PODS, pod)
            self._events.record(JOBS, job, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    def _expire(self, job: Object) -> None:
        """Delete a finished Job when its time to live is over."""
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return
        end = condition(job, "Complete" if holds(job, "Complete") else "Failed")
        left = parse_stamp(end["lastTransitionTime"]) + timedelta(seconds=seconds) - datetime.now(UTC)
        if left > timedelta():
            self._wake(job, left)
        else:
            begin_deletion(self._store, JOBS, job)

    def _change(self, job: Object, how: Callable[[Object], None]) -> Object:
        meta = job["metadata"]
        return self._store.change(JOBS, meta["namespace"], meta["name"], how, meta["uid"]) or job

    def _wake(self, job: Object, delay: timedelta) -> None:
        """Reconcile the Job after `delay`."""
        meta = job["metadata"]
        if meta["uid"] in self._timers:
            self._timers[meta["uid"]].cancel()
        loop = asyncio.get_running_loop()
        seconds = delay.total_seconds() + 0.005
        self._timers[meta["uid"]] = loop.call_later(seconds, self._sync, meta["uid"], meta)
