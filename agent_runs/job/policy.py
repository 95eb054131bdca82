"""The operator's policy: what agent configurations may choose. Whatever it does not list is refused.

A pattern may hold `*`, which stands for any text. Source of the file's form: docs/policy.md, deploy/base/policy.yaml.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Final, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from agent_runs.contracts.errors import InvalidRequest, PolicyRefused
from agent_runs.contracts.pod_template import template_keys
from agent_runs.contracts.request import Quantity, RunConfig, Toleration
from agent_runs.job.data_volume import DataRules, RunFolders
from agent_runs.job.placement import DATABASE_CLAIMS, DISK, resources
from agent_runs.kube.objects import amount
from agent_runs.plain_yaml import NoPlainYaml, load_yaml

_OUR_OBJECTS: Final = ("agent-runs", "agent-opencode-")
"""Beginnings of names of this program's own Secrets and ConfigMaps, and of those of runs."""
BUDGET: Final = ("cost_usd", "tokens", "steps", "repeated_calls")
"""Maxima of a run's budget; a configuration has the same names, with `max_` before them."""
MAX_QUOTE: Final = 80
"""Characters of a refused value in a message."""


def _pattern(value: str) -> str:
    if not value.strip() or re.search(r"[\s?\[\]]", value):
        raise PydanticCustomError("pattern", "must be a text without spaces, '?', '[' and ']'; '*' is any text")
    return value


def _folder(value: str) -> str:
    parts = value.split("/")
    if not value.strip() or ":" in value or any(part in {"", ".", ".."} for part in parts):
        raise PydanticCustomError("folder", "must be a path relative to the data volume, without ':', '.' and '..'")
    return value


def _address_pattern(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    if value != "*" and not (scheme and separator and rest.partition("/")[0]):
        raise PydanticCustomError("address", "must be '*' or begin as an address does, such as 'https://*.example/*'")
    return value


Patterns = tuple[Annotated[str, AfterValidator(_pattern)], ...]


class PolicyPart(BaseModel):
    """A part of the file, in its spelling."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, frozen=True, extra="forbid", hide_input_in_errors=True, coerce_numbers_to_str=True
    )


class Volumes(PolicyPart):
    """Which `extraVolumes` an agent configuration may have, besides the data volume, which no agent gets so.

    Attributes:
        empty_dirs: volumes that end with the pod, each no larger than the maximum of ephemeral storage.
        config_maps, secrets: patterns of names. Those of this program are refused all the same.
        claims: patterns of names of claims. Agents' databases are refused all the same.
        host_paths: patterns of paths on the node. A namespace that admits only restricted pods refuses all.
    """

    empty_dirs: bool = True
    config_maps: Patterns = ()
    secrets: Patterns = ()
    claims: Patterns = ()
    host_paths: Patterns = ()


class Maxima(PolicyPart):
    """The most that an agent configuration may ask for.

    Attributes:
        cpu, memory: limits of the agent's container; the limits that a configuration without any gets count, too.
        storage: of an agent's own database claim.
        ephemeral_storage: of the agent's container on its node's disk, and of each empty extra volume.
        timeout_sec: run time of the agent in one run, in seconds; 0: any, also without limit.
        keep_warm_sec: how long a pod may wait for its agent's next run, in seconds; a larger value counts as this one.
        cost_usd, tokens, steps, repeated_calls: the budget of a run; 0: any. A configuration without a limit of its own
            gets this one.
    """

    cpu: Quantity = "16"
    memory: Quantity = "64Gi"
    storage: Quantity = "100Gi"
    ephemeral_storage: Quantity = "100Gi"
    timeout_sec: Annotated[int, Field(ge=0)] = 0
    keep_warm_sec: Annotated[int, Field(ge=0)] = 600
    cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    tokens: Annotated[int, Field(ge=0)] = 0
    steps: Annotated[int, Field(ge=0)] = 0
    repeated_calls: Annotated[int, Field(ge=0)] = 0


class Allowed(PolicyPart):
    """The content of the file.

    Attributes:
        service_account_names: ServiceAccounts of agent pods. The worker's own is refused all the same.
        namespaces: besides the one that the worker's settings name.
        agents: patterns of names of agents (`agent`).
        images: patterns of image names.
        labels: patterns of label keys. Services and policies select by `app` and its like, and controllers act on keys
            with their prefix, such as `sidecar.istio.io/inject` and `azure.workload.identity/use`.
        node_selectors: patterns of `KEY=VALUE`; of a node affinity, too, `*` for what it leaves open.
        annotations: patterns of keys of pods' annotations.
        runtime_class_names, priority_class_names: patterns of names.
        pod_affinities: patterns of `KEY=VALUE` of the pods that an affinity or anti-affinity names.
        pod_template_keys: patterns of keys of `podTemplate` such as `spec.hostAliases`; its labels and annotations are
            judged as all others are.
        topology_keys: patterns of topology keys in affinities of pods and in spread constraints.
        volumes: extra volumes.
        tolerations: patterns of `KEY=VALUE:EFFECT`, each part `*` where the toleration leaves it open.
        paperclip_api_urls: patterns of addresses that an agent configuration may name for Paperclip. The agent's token
            goes there, so scheme, host with port, and path are compared one by one.
        storage_classes: of agents' own database claims; a configuration may always leave it to the cluster.
        workspaces: patterns of paths on the data volume, relative to it. Paperclip's folders have rules of their own.
        shared_folders: paths on the data volume that every agent may read.
        whole_data_volume: agents get all of the data volume, and may change what is another one's.
        max: the largest amounts.
    """

    service_account_names: Patterns = ()
    namespaces: Patterns = ()
    agents: Patterns = ("*",)
    images: Patterns = ("*",)
    labels: Patterns = ()
    node_selectors: Patterns = ()
    tolerations: Patterns = ()
    annotations: Patterns = ()
    runtime_class_names: Patterns = ()
    priority_class_names: Patterns = ()
    pod_affinities: Patterns = ()
    topology_keys: Patterns = ("kubernetes.io/hostname", "topology.kubernetes.io/*")
    pod_template_keys: Patterns = ()
    volumes: Volumes = Volumes()
    paperclip_api_urls: tuple[Annotated[str, AfterValidator(_pattern), AfterValidator(_address_pattern)], ...] = ()
    storage_classes: Patterns = ()
    workspaces: Patterns = ("*",)
    shared_folders: tuple[Annotated[str, AfterValidator(_folder)], ...] = ()
    whole_data_volume: bool = False
    max: Maxima = Maxima()


@dataclass(frozen=True)
class Refusal:
    """A value that an agent configuration may not choose."""

    field: str
    value: str
    rule: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value[:MAX_QUOTE]!r} {self.rule}"


@dataclass(frozen=True)
class Policy:
    """What is allowed, and where that is written.

    Attributes:
        name: of the file, for people; None: there is none, and the defaults hold.
        lines: of the file's keys, by their path such as `max.cpu`.
    """

    allowed: Allowed = field(default_factory=Allowed)
    name: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Reads the text of the file.

        Raises:
            InvalidRequest: no YAML mapping, or a key or value that is wrong; names the line and the key.
        """
        try:
            content = load_yaml(text) or {}
        except NoPlainYaml as error:
            raise InvalidRequest(f"{name}{error}") from None
        root = yaml.compose(text, yaml.SafeLoader)
        lines = dict(_lines(root)) if root else {}
        try:
            return cls(Allowed.model_validate(content), name, lines)
        except ValidationError as error:
            first, path = error.errors()[0], [str(part) for part in error.errors()[0]["loc"]]
            key = ".".join(path)
            line = next((lines[part] for end in range(len(path), 0, -1) if (part := ".".join(path[:end])) in lines), 1)
            problem = "no such key" if first["type"] == "extra_forbidden" else first["msg"]
            raise InvalidRequest(f"{name}, line {line}: {key}: {problem}") from None

    @property
    def data(self) -> DataRules:
        allowed = self.allowed
        return DataRules(allowed.whole_data_volume, allowed.workspaces, allowed.shared_folders)

    def check(
        self,
        config: RunConfig,
        *,
        folders: RunFolders | None = None,
        home: str | None = None,
        own_account: str | None = None,
        data_claim: str | None = None,
    ) -> None:
        """Compares an agent configuration with the policy.

        Args:
            folders: those that the run names.
            home: the namespace that the worker's settings name; always allowed.
            own_account: the worker's ServiceAccount; never allowed.
            data_claim: of the data volume; never allowed as an extra volume.

        Raises:
            PolicyRefused: names every refused field with its value and the line of the policy.
        """
        refusals = [
            *self._refused_names(config, home, own_account),
            *self._refused_pod_options(config),
            *self._refused_volumes(config, data_claim),
            *self._refused_overlay(config),
            *self._refused_amounts(config),
            *(self._refused_folders(folders) if folders else ()),
        ]
        if refusals:
            raise PolicyRefused(
                "; ".join(map(str, refusals)), fields=", ".join(dict.fromkeys(each.field for each in refusals))
            )

    def bounded(self, config: RunConfig) -> RunConfig:
        """The configuration with this policy's budget where it has no limit of its own, and no longer kept warm."""
        most = self.allowed.max
        if config.keep_warm_sec > most.keep_warm_sec:
            config = config.model_copy(update={"keep_warm_sec": most.keep_warm_sec})
        missing = [name for name in BUDGET if getattr(most, name) and not getattr(config, f"max_{name}")]
        return config.model_copy(update={f"max_{name}": getattr(most, name) for name in missing}) if missing else config

    def _refused_names(self, config: RunConfig, home: str | None, own_account: str | None) -> Iterator[Refusal]:
        account = config.service_account_name
        if account is not None and account == own_account:
            yield Refusal("serviceAccountName", account, "is the worker's own, which no agent may have")
        namespaces = [] if config.namespace == home else [config.namespace]
        labels = list(config.labels)
        selectors = [f"{key}={value}" for key, value in (config.node_selector or {}).items()]
        tolerations = [toleration_text(each) for each in config.tolerations or ()]
        storage_class = config.agent_db_storage_class if config.agent_db_mode == "dedicated_pvc" else None
        allowed = self.allowed
        yield from self._unlisted("serviceAccountName", [account], allowed.service_account_names, "serviceAccountNames")
        yield from self._unlisted("namespace", namespaces, allowed.namespaces, "namespaces")
        yield from self._unlisted("agent", [config.agent], allowed.agents, "agents")
        yield from self._unlisted("image", [config.image], allowed.images, "images")
        yield from self._unlisted("labels", labels, allowed.labels, "labels")
        yield from self._unlisted("nodeSelector", selectors, allowed.node_selectors, "nodeSelectors")
        yield from self._unlisted("tolerations", tolerations, allowed.tolerations, "tolerations")
        address = config.paperclip_api_url
        if address is not None and not any(_is_at(address.strip(), each) for each in allowed.paperclip_api_urls):
            yield Refusal("paperclipApiUrl", address, f"is not allowed by {self._place('paperclipApiUrls')}")
        yield from self._unlisted("agentDbStorageClass", [storage_class], allowed.storage_classes, "storageClasses")

    def _refused_pod_options(self, config: RunConfig) -> Iterator[Refusal]:
        allowed, affinity = self.allowed, config.affinity or {}
        nodes = [*node_choices(affinity.get("nodeAffinity") or {})]
        spreads = [each["topologyKey"] for each in config.topology_spread_constraints or ()]
        yield from self._unlisted(
            "runtimeClassName", [config.runtime_class_name], allowed.runtime_class_names, "runtimeClassNames"
        )
        yield from self._unlisted(
            "priorityClassName", [config.priority_class_name], allowed.priority_class_names, "priorityClassNames"
        )
        yield from self._unlisted("annotations", config.annotations, allowed.annotations, "annotations")
        yield from self._unlisted("affinity.nodeAffinity", nodes, allowed.node_selectors, "nodeSelectors")
        for name in ("podAffinity", "podAntiAffinity"):
            terms = list(pod_terms(affinity.get(name) or {}))
            pods = [choice for term in terms for choice in pod_choices(term["labelSelector"])]
            keys = [term["topologyKey"] for term in terms]
            yield from self._unlisted(f"affinity.{name}", pods, allowed.pod_affinities, "podAffinities")
            yield from self._unlisted(f"affinity.{name}", keys, allowed.topology_keys, "topologyKeys")
        yield from self._unlisted("topologySpreadConstraints", spreads, allowed.topology_keys, "topologyKeys")

    def _refused_overlay(self, config: RunConfig) -> Iterator[Refusal]:
        template, allowed = config.pod_template or {}, self.allowed
        metadata = template.get("metadata", {})
        keys = [key for key in template_keys(template) if not key.startswith("metadata.")]
        field = "podTemplate.metadata"
        yield from self._unlisted(f"{field}.labels", metadata.get("labels", ()), allowed.labels, "labels")
        yield from self._unlisted(
            f"{field}.annotations", metadata.get("annotations", ()), allowed.annotations, "annotations"
        )
        yield from self._unlisted("podTemplate", keys, allowed.pod_template_keys, "podTemplateKeys")

    def _refused_volumes(self, config: RunConfig, data_claim: str | None) -> Iterator[Refusal]:
        allowed = self.allowed.volumes
        named = (
            ("configMap", "name", allowed.config_maps, "configMaps"),
            ("secret", "secretName", allowed.secrets, "secrets"),
            ("persistentVolumeClaim", "claimName", allowed.claims, "claims"),
            ("hostPath", "path", allowed.host_paths, "hostPaths"),
        )
        for index, volume in enumerate(config.extra_volumes or ()):
            field = f"extraVolumes[{index}]"
            for kind, key, patterns, rule in named:
                if kind not in volume:
                    continue
                name = volume[kind][key]
                if reason := _never_a_volume(kind, name, data_claim):
                    yield Refusal(f"{field}.{kind}", name, reason)
                else:
                    yield from self._unlisted(f"{field}.{kind}", [name], patterns, f"volumes.{rule}")
            if "emptyDir" in volume:
                yield from self._refused_empty_dir(f"{field}.emptyDir", volume["emptyDir"]["sizeLimit"])

    def _refused_empty_dir(self, field: str, size: str) -> Iterator[Refusal]:
        highest = self.allowed.max.ephemeral_storage
        if not self.allowed.volumes.empty_dirs:
            yield Refusal(field, size, f"is not allowed by {self._place('volumes.emptyDirs')}")
        elif amount(size) > amount(highest):
            yield Refusal(
                f"{field}.sizeLimit", size, f"is more than {highest}, by {self._place('max.ephemeralStorage')}"
            )

    def _unlisted(
        self, name: str, values: Iterable[str | None], patterns: Sequence[str], key: str
    ) -> Iterator[Refusal]:
        for value in values:
            if value is not None and not any(fnmatchcase(value.strip(), pattern) for pattern in patterns):
                yield Refusal(name, value, f"is not allowed by {self._place(key)}")

    def _refused_amounts(self, config: RunConfig) -> Iterator[Refusal]:
        most = self.allowed.max
        limits = resources(config.resources)["limits"]
        chosen = [(f"resources.limits.{kind}", limits[kind], kind) for kind in ("cpu", "memory")]
        if config.agent_db_mode == "dedicated_pvc":
            chosen.append(("agentDbStorageCapacity", config.agent_db_storage_capacity, "storage"))
        for kind, disk in (("limits", config.resources.limits), ("requests", config.resources.requests)):
            if disk.ephemeral_storage:
                chosen.append((f"resources.{kind}.{DISK}", disk.ephemeral_storage, "ephemeralStorage"))
        for name, quantity, kind in chosen:
            highest = most.ephemeral_storage if kind == "ephemeralStorage" else getattr(most, kind)
            if amount(quantity) > amount(highest):
                yield Refusal(name, quantity, f"is more than {highest}, by {self._place(f'max.{kind}')}")
        if most.timeout_sec and not 0 < config.timeout_sec <= most.timeout_sec:
            value = str(config.timeout_sec) if config.timeout_sec else "0 (no limit)"
            yield Refusal("timeoutSec", value, f"is more than {most.timeout_sec}, by {self._place('max.timeoutSec')}")
        for name in BUDGET:
            value, highest = getattr(config, f"max_{name}"), getattr(most, name)
            if highest and value > highest:
                place = self._place(f"max.{to_camel(name)}")
                yield Refusal(to_camel(f"max_{name}"), str(value), f"is more than {highest}, by {place}")

    def _refused_folders(self, folders: RunFolders) -> Iterator[Refusal]:
        for name, path, reason in folders.refusals(self.data):
            yield Refusal(name, path, f"{reason}; {self._place('wholeDataVolume')} could allow it")

    def _place(self, key: str) -> str:
        """Where the operator finds or adds the rule."""
        if self.name is None:
            return f"{key} of the operator's policy (AGENT_RUNS_POLICY names no file)"
        line = self.lines.get(key)
        return f"{key} of the operator's policy ({self.name}, {f'line {line}' if line else 'which has no such key'})"


def _is_at(address: str, pattern: str) -> bool:
    """Whether an address is one of a pattern's, part by part: no `*` of the host reaches into the path."""
    if pattern == "*":
        return True
    (scheme, host, path), (schemes, hosts, paths) = _address_parts(address), _address_parts(pattern)
    matches_host = fnmatchcase(scheme.lower(), schemes.lower()) and fnmatchcase(host.lower(), hosts.lower())
    return matches_host and fnmatchcase(path or "/", paths or "/")


def _address_parts(text: str) -> tuple[str, str, str]:
    """Scheme, host with port, and path from its first slash on."""
    scheme, _, rest = text.partition("://")
    host = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    return scheme, host, rest[len(host) :]


def toleration_text(toleration: Toleration) -> str:
    """`KEY=VALUE:EFFECT`, `*` for each part that the toleration leaves open."""
    value = "*" if toleration.operator == "Exists" else toleration.value or ""
    return f"{toleration.key or '*'}={value}:{toleration.effect or '*'}"


def _never_a_volume(kind: str, name: str, data_claim: str | None) -> str | None:
    """Why no policy lets an agent have this volume; None: a policy may."""
    if kind in {"configMap", "secret"} and name.startswith(_OUR_OBJECTS):
        return "is this program's own, or another run's, which no agent may have"
    if kind == "persistentVolumeClaim" and name == data_claim:
        return "is the data volume, of which an agent has its own folders"
    if kind == "persistentVolumeClaim" and name.startswith(DATABASE_CLAIMS):
        return "is an agent's database, which no other agent may have"
    return None


def _lines(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """The line of each key and list item."""
    pairs: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(node, yaml.MappingNode):
        pairs = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(str(index), item, item) for index, item in enumerate(node.value)]
    for name, start, value in pairs:
        yield ".".join((*path, name)), start.start_mark.line + 1
        yield from _lines(value, (*path, name))


def node_choices(affinity: Mapping[str, Any]) -> Iterator[str]:
    """What a node affinity chooses nodes by, as `KEY=VALUE`, `*` for each value that it leaves open."""
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    for term in (*required.get("nodeSelectorTerms", ()), *(each["preference"] for each in preferred)):
        for each in (*term.get("matchExpressions", ()), *term.get("matchFields", ())):
            yield from _requirement_choices(each)


def pod_terms(affinity: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The terms of an affinity of pods, required and preferred ones."""
    yield from affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    for each in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        yield each["podAffinityTerm"]


def pod_choices(selector: Mapping[str, Any]) -> Iterator[str]:
    """What a label selector chooses pods by, as `KEY=VALUE`; an empty one chooses all of them, `*=*`."""
    labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
    yield from (f"{key}={value}" for key, value in labels.items())
    for each in expressions:
        yield from _requirement_choices(each)
    if not labels and not expressions:
        yield "*=*"


def _requirement_choices(requirement: Mapping[str, Any]) -> Iterator[str]:
    values = requirement.get("values", ()) if requirement["operator"] == "In" else ["*"]
    yield from (f"{requirement['key']}={value}" for value in values)
