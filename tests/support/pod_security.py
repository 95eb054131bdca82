"""The Pod Security Standard "restricted", as Pod Security Admission judges a pod.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

from collections.abc import Iterator
from typing import Any, Final

_VOLUMES: Final = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
_SAFE_PROFILES: Final = {"RuntimeDefault", "Localhost"}
_SELINUX_TYPES: Final = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_ANNOTATIONS: Final = ("container.apparmor.security.beta.kubernetes.io/", "seccomp.security.alpha.kubernetes.io/")


def restricted_violations(template: dict[str, Any]) -> Iterator[str]:
    """What of a pod template the standard refuses, by field."""
    spec = template["spec"]
    pod = spec.get("securityContext", {})
    yield from (f"spec.{name}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes", []):
        yield from (f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - _VOLUMES)
    yield from (key for key in template["metadata"].get("annotations", {}) if key.startswith(_ANNOTATIONS))
    yield from (f"sysctl {each['name']}" for each in pod.get("sysctls", []))
    yield from (f"securityContext.{each}" for each in _context(pod))
    for container in spec.get("initContainers", []) + spec["containers"]:
        own = container.get("securityContext", {})
        effective, name = {**pod, **own}, container["name"]
        yield from (f"{name}.{each}" for each in _context(own))
        if effective.get("runAsNonRoot") is not True:
            yield f"{name}.runAsNonRoot"
        if effective.get("seccompProfile", {}).get("type") not in _SAFE_PROFILES:
            yield f"{name}.seccompProfile"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}.allowPrivilegeEscalation"
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield f"{name}.capabilities"
        yield from (f"{name}.hostPort" for port in container.get("ports", []) if port.get("hostPort"))


def _context(security: dict[str, Any]) -> Iterator[str]:
    if security.get("privileged"):
        yield "privileged"
    if security.get("runAsUser") == 0:
        yield "runAsUser"
    if security.get("runAsNonRoot") is False:
        yield "runAsNonRoot"
    if security.get("seccompProfile", {}).get("type") == "Unconfined":
        yield "seccompProfile"
    if security.get("appArmorProfile", {}).get("type") == "Unconfined":
        yield "appArmorProfile"
    linux = security.get("seLinuxOptions", {})
    if linux.get("type") not in _SELINUX_TYPES or linux.get("user") or linux.get("role"):
        yield "seLinuxOptions"
