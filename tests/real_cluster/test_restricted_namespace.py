"""Agents in a namespace with a quota and the restricted PodSecurityPolicy.

A PodSecurityPolicy has an effect only where its admission plugin is on, and none exists from Kubernetes 1.25 on; what
Pod Security Admission asks of the same pods is checked on manifests (tests/job). Needs KUBECONFIG and TEST_AGENT_IMAGE.
"""

import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.real_cluster.objects import api_request, created_object
from tests.real_cluster.observed_runs import observed_run
from tests.real_cluster.stack import open_real_system

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(300)]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICIES = "/apis/policy/v1beta1/podsecuritypolicies"
RANGES = {"rule": "MustRunAs", "ranges": [{"min": 1, "max": 65535}]}
RESTRICTED = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "requiredDropCapabilities": ["ALL"],
    "volumes": ["configMap", "emptyDir", "projected", "secret", "downwardAPI", "persistentVolumeClaim"],
    "hostNetwork": False,
    "hostIPC": False,
    "hostPID": False,
    "runAsUser": {"rule": "MustRunAsNonRoot"},
    "seLinux": {"rule": "RunAsAny"},
    "supplementalGroups": RANGES,
    "fsGroup": RANGES,
}
SECCOMP = {"seccomp.security.alpha.kubernetes.io/allowedProfileNames": "docker/default,runtime/default"}
"""Source of both: kubernetes/website, examples/policy/restricted-psp.yaml."""
QUOTA = {"requests.cpu": "2", "requests.memory": "2Gi", "limits.cpu": "6", "limits.memory": "8Gi", "pods": "3"}


async def test_agents_run_under_a_quota_and_a_restricted_policy(tmp_path: Path) -> None:
    async with AsyncExitStack() as ends:
        system = await ends.enter_async_context(open_real_system(tmp_path))
        name = f"restricted-{uuid.uuid4().hex[:8]}"
        metadata: dict[str, Any] = {"metadata": {"name": name}}
        await ends.enter_async_context(created_object(system.cluster, "/api/v1/namespaces", metadata))
        quota = {**metadata, "spec": {"hard": QUOTA}}
        await api_request(system.cluster, "POST", f"/api/v1/namespaces/{name}/resourcequotas", body=quota)
        minor = int((await system.cluster.version()).split(".")[1])
        if minor < 25:
            policy = {"metadata": {"name": name, "annotations": SECCOMP}, "spec": RESTRICTED}
            await ends.enter_async_context(created_object(system.cluster, POLICIES, policy))
            rule = {"apiGroups": ["policy"], "resources": ["podsecuritypolicies"], "verbs": ["use"]}
            role = {**metadata, "rules": [{**rule, "resourceNames": [name]}]}
            await ends.enter_async_context(created_object(system.cluster, f"{RBAC}/clusterroles", role))
            group = "rbac.authorization.k8s.io"
            subject = {"kind": "Group", "apiGroup": group, "name": f"system:serviceaccounts:{name}"}
            reference = {"kind": "ClusterRole", "apiGroup": group, "name": name}
            binding = {**metadata, "roleRef": reference, "subjects": [subject]}
            await api_request(system.cluster, "POST", f"{RBAC}/namespaces/{name}/rolebindings", body=binding)
        async with observed_run(system, 3, namespace=name, command="true") as run:
            await run.assert_guarantees(await run.outcome(), None)
            [pod] = run.observer.pods.values()
            assert pod.metadata.annotations.get("kubernetes.io/psp", name) == name
