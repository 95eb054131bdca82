"""What an agent's configuration may choose for its pod in Kubernetes' own form: affinity, spread, volumes.

These values stay objects as they were given. Here their form is checked: an unknown key, a wrong type or value is
refused by its path, because the API server would refuse it only after the agent's Secrets exist. Whether an agent may
choose them is the operator's policy.
Source: Kubernetes 1.34, core/v1 Affinity, TopologySpreadConstraint, Volume.
"""
# ruff: noqa: N815 - the fields have Kubernetes' own spelling

import json
import posixpath
import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from agent_runs.contracts.pod import DATA_DIRECTORY, HOME_DIRECTORY, PROMPT_DIRECTORY, RUN_DIRECTORY
from agent_runs.contracts.syntax import (
    DATA_KEY,
    QUANTITY,
    is_label_key,
    is_label_value,
    is_subdomain,
    matching,
    path_of,
    refuse,
    remedy_of,
)

MAX_JSON: Final = 16 * 1024
"""Characters of one such value: all of them enter histories and objects of Kubernetes."""
MAX_DEPTH: Final = 16
MAX_ITEMS: Final = 32
MAX_PATH: Final = 120
MAX_ERRORS: Final = 3
OUR_PATHS: Final = (
    *(DATA_DIRECTORY, HOME_DIRECTORY, RUN_DIRECTORY, PROMPT_DIRECTORY),
    *("/opencode-db", "/runtime-cache", "/tmp/prompt-secret"),  # noqa: S108 - a path in the pod
    *("/proc", "/sys", "/dev", "/run/secrets", "/var/run/secrets"),
)
"""Paths in the agent's container that no extra volume may cover, be in, or contain."""
VOLUME_KINDS: Final = ("emptyDir", "configMap", "secret", "persistentVolumeClaim", "hostPath")

_VOLUME_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?")

ObjectName = Annotated[
    str, matching(is_subdomain, "must be the name of an object: lowercase letters, digits, '-' and '.'")
]
LabelKey = Annotated[str, matching(is_label_key, "must be a Kubernetes label key: '[prefix/]name'")]
LabelValue = Annotated[str, matching(is_label_value, "must be a Kubernetes label value: 63 at most")]
_Size = Annotated[
    str,
    matching(QUANTITY.fullmatch, "must be a Kubernetes quantity such as '500Mi' or '4Gi'"),
    matching(re.compile("[1-9]").search, "must be more than 0, which a node takes for no limit"),
]
_Key = Annotated[str, matching(DATA_KEY.fullmatch, "must be a key of it: letters, digits, '-', '_' and '.'")]
_VolumeName = Annotated[str, matching(_VOLUME_NAME.fullmatch, "must be lowercase letters, digits and '-', 53 at most")]


class PodOption(BaseModel):
    """A part of a value in Kubernetes' own form and spelling."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )


# affinity and spread


class _Requirement(PodOption):
    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[list[LabelValue], Field(max_length=MAX_ITEMS)] = []

    @model_validator(mode="after")
    def _values_as_the_operator_needs(self) -> Self:
        if (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise refuse("needs values with operator In and NotIn, and none with Exists and DoesNotExist")
        return self


class _FieldRequirement(PodOption):
    key: Literal["metadata.name"]
    operator: Literal["In", "NotIn"]
    values: Annotated[list[ObjectName], Field(min_length=1, max_length=1)]


class _NodeRequirement(PodOption):
    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[list[LabelValue], Field(max_length=MAX_ITEMS)] = []

    @model_validator(mode="after")
    def _values_as_the_operator_needs(self) -> Self:
        if self.operator in {"Gt", "Lt"}:
            if len(self.values) != 1 or not self.values[0].isdecimal():
                raise refuse("needs one whole number in values with operator Gt and Lt")
        elif (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise refuse("needs values with operator In and NotIn, and none with Exists and DoesNotExist")
        return self


class _NodeTerm(PodOption):
    matchExpressions: Annotated[list[_NodeRequirement], Field(max_length=MAX_ITEMS)] = []
    matchFields: Annotated[list[_FieldRequirement], Field(max_length=MAX_ITEMS)] = []


class _NodeTerms(PodOption):
    nodeSelectorTerms: Annotated[list[_NodeTerm], Field(min_length=1, max_length=MAX_ITEMS)]


_Weight = Annotated[int, Field(ge=1, le=100)]


class _PreferredNode(PodOption):
    weight: _Weight
    preference: _NodeTerm


class _NodeAffinity(PodOption):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeTerms | None = None
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[_PreferredNode], Field(max_length=MAX_ITEMS)] = []


class _LabelSelector(PodOption):
    matchLabels: dict[LabelKey, LabelValue] = {}
    matchExpressions: Annotated[list[_Requirement], Field(max_length=MAX_ITEMS)] = []


class _PodTerm(PodOption):
    labelSelector: _LabelSelector
    topologyKey: LabelKey


class _PreferredPod(PodOption):
    weight: _Weight
    podAffinityTerm: _PodTerm


class _PodAffinity(PodOption):
    requiredDuringSchedulingIgnoredDuringExecution: Annotated[list[_PodTerm], Field(max_length=MAX_ITEMS)] = []
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[_PreferredPod], Field(max_length=MAX_ITEMS)] = []


class _Affinity(PodOption):
    nodeAffinity: _NodeAffinity | None = None
    podAffinity: _PodAffinity | None = None
    podAntiAffinity: _PodAffinity | None = None


class _Spread(PodOption):
    maxSkew: Annotated[int, Field(ge=1, le=1000)]
    topologyKey: LabelKey
    whenUnsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    labelSelector: _LabelSelector


# volumes


def _mount_path(value: str) -> str:
    path = posixpath.normpath(value)
    if not value.startswith("/") or value.startswith("//") or ":" in value or not value.isprintable():
        raise refuse("must be an absolute path without ':' and control characters, such as /models")
    if ".." in value.split("/"):
        raise refuse("must not hold '..'")
    for ours in OUR_PATHS:
        if f"{path}/".startswith(f"{ours}/") or f"{ours}/".startswith(f"{path.rstrip('/')}/"):
            raise refuse(
                f"must not be, hold or be in {ours}, which every agent's pod needs; choose another, such as /models"
            )
    return value


def _relative_path(value: str) -> str:
    if not value or value.startswith("/") or ".." in value.split("/") or not value.isprintable():
        raise refuse("must be a relative path without '..'")
    return value


def _host_path(value: str) -> str:
    if not value.startswith("/") or posixpath.normpath(value) != value or not value.isprintable():
        raise refuse("must be an absolute path of the node without '.', '..' and a slash at its end")
    return value


_RelativePath = Annotated[str, AfterValidator(_relative_path)]
_Mode = Annotated[int, Field(ge=0, le=0o777)]


class _Item(PodOption):
    key: _Key
    path: _RelativePath
    mode: _Mode | None = None


class _EmptyDir(PodOption):
    sizeLimit: _Size  # without a limit it could fill the node's disk
    medium: Literal["", "Memory"] = ""


class _Files(PodOption):
    items: Annotated[list[_Item], Field(max_length=MAX_ITEMS)] = []
    defaultMode: _Mode | None = None
    optional: bool = False


class _ConfigMap(_Files):
    name: ObjectName


class _Secret(_Files):
    secretName: ObjectName


class _Claim(PodOption):
    claimName: ObjectName
    readOnly: bool = False


class _HostPath(PodOption):
    path: Annotated[str, AfterValidator(_host_path)]
    type: Literal["", "Directory", "File"] = ""


class _ExtraVolume(PodOption):
    name: _VolumeName
    mountPath: Annotated[str, AfterValidator(_mount_path)]
    subPath: _RelativePath | None = None
    readOnly: bool = False
    emptyDir: _EmptyDir | None = None
    configMap: _ConfigMap | None = None
    secret: _Secret | None = None
    persistentVolumeClaim: _Claim | None = None
    hostPath: _HostPath | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(getattr(self, kind) is not None for kind in VOLUME_KINDS) != 1:
            raise refuse(f"needs exactly one of {', '.join(VOLUME_KINDS)}")
        return self


def _different(volumes: list[_ExtraVolume]) -> list[_ExtraVolume]:
    for name in ("name", "mountPath"):
        values = [posixpath.normpath(getattr(each, name)) for each in volumes]
        if len(set(values)) < len(values):
            raise refuse(f"must not have the same {name} twice")
    return volumes


# reading


def from_json(value: object) -> object:
    """The value of a JSON text, as it comes from a text area; None for an empty one."""
    if isinstance(value, str) and not value.strip():
        return None
    too_long = refuse(f"must not have more than {MAX_JSON} characters")
    if isinstance(value, str) and len(value) > MAX_JSON:
        raise too_long
    try:
        found = json.loads(value) if isinstance(value, str) else value
        size = len(json.dumps(found))
    except (ValueError, TypeError, RecursionError):
        raise refuse("must be JSON in Kubernetes' own form") from None
    if size > MAX_JSON:
        raise too_long
    return _present(found, MAX_DEPTH)


def _present(value: Any, depth: int) -> Any:
    """`value` without nulls in objects: to Kubernetes a null and a missing key are the same."""
    if depth == 0:
        raise refuse(f"must not be nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {key: _present(item, depth - 1) for key, item in value.items() if item is not None}
    return [_present(item, depth - 1) for item in value] if isinstance(value, list | tuple) else value


def of_form(form: Any) -> AfterValidator:
    """Checks a value's form, and keeps the value as it is. An error names some of the wrong fields, with the remedy."""
    adapter = TypeAdapter[Any](form)

    def check(value: Any) -> Any:
        try:
            adapter.validate_python(list(value) if isinstance(value, tuple) else value)
        except ValidationError as error:
            problems = [_problem(each) for each in error.errors(include_url=False, include_input=False)[:MAX_ERRORS]]
            raise refuse("; ".join(problems)) from None
        return value

    return AfterValidator(check)


def _problem(detail: ErrorDetails) -> str:
    path, remedy = path_of(detail), remedy_of(detail)
    where = path if len(path) <= MAX_PATH else f"{path[: MAX_PATH // 2]}…{path[-MAX_PATH // 2 :]}"
    return f"{where}: {remedy}" if where else remedy


_Objects: TypeAlias = tuple[dict[str, Any], ...]
Affinity = Annotated[Annotated[dict[str, Any], of_form(_Affinity)] | None, BeforeValidator(from_json)]
SpreadConstraints = Annotated[
    Annotated[_Objects, of_form(Annotated[list[_Spread], Field(max_length=MAX_ITEMS)])] | None,
    BeforeValidator(from_json),
]
ExtraVolumes = Annotated[
    Annotated[_Objects, of_form(Annotated[list[_ExtraVolume], Field(max_length=MAX_ITEMS), AfterValidator(_different)])]
    | None,
    BeforeValidator(from_json),
]
