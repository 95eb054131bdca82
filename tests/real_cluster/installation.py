"""An installation of the worker in the cluster, made as docs/install.md says."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from agent_runs.client.attach import Ticket, attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.client.wake import build_wake
from agent_runs.contracts.outcome import Outcome
from agent_runs.kube.ownership import OURS, selector
from agent_runs.paperclip.sealing import Sealer, public_key
from dev_stack import demo
from dev_stack.host_address import host_for_pods
from dev_stack.scripted_model.server import provider_block, serve
from tests.real_cluster.installed_images import ROOT, InstalledImages, blocks
from tests.workspace.trees import send

NOT_COPIED = shutil.ignore_patterns(".*", "node_modules", "__pycache__", "tests", "bench")
PROGRAMS = Path(sys.executable).parent
WORKER = "paperclip"
"""The namespace of the worker in the overlays."""
SERVICE = "agent-runs-transcripts"


async def command(*words: str, text: str | None = None) -> str:
    """The output of a program of ours, or kubectl; a failure fails the test with what it wrote."""
    program = [str(PROGRAMS / words[0]), *words[1:]]
    done = await asyncio.to_thread(subprocess.run, program, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words[:4])}: {done.stderr}{done.stdout}"
    return done.stdout


async def kubectl(*words: str, text: str | None = None) -> str:
    """As `command`, of the worker's namespace."""
    return await command("kubectl", "--namespace", WORKER, *words, text=text)


def volume(claim: str, folder: Path, namespace: str = WORKER) -> str:
    """A volume on this machine for one claim, in which the worker's user may write."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.chown(folder, 1000, 1000)
    spec = {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
        "claimRef": {"namespace": namespace, "name": claim},
        "hostPath": {"path": str(folder)},
    }
    metadata = {"name": volume_name(claim, namespace)}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec})


def volume_name(claim: str, namespace: str = WORKER) -> str:
    return f"installed-{namespace}-{claim}"


def data_claim(namespace: str = WORKER) -> str:
    """The claim of Paperclip's data volume."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "paperclip-data", "namespace": namespace},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}},
        }
    )


def own_provider(folder: str, components: str) -> str:
    """What the page says of a provider of one's own: commands that add it to the overlay in this folder.

    Args:
        components: the path from that folder to deploy/components.
    """
    return rf"""
cp ../opencode.json {folder}/
sed -i -e 's|^components:|&\n  - {components}/opencode-config|' \
    -e 's|^configMapGenerator:|&\n  - name: agent-runs-opencode\n    files: [opencode.json]|' \
    {folder}/kustomization.yaml
"""


def reached_at(address: str, folder: str) -> str:
    """Commands that give the overlay in this folder another address at which pods reach workspaces."""
    url = f"env: [{{name: AGENT_RUNS_WORKSPACE_URL, value: 'http://{address}'}}]"
    return rf"""
cat >> {folder}/kustomization.yaml <<END
patches:
  - patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata: {{name: agent-runs-worker}}
      spec: {{template: {{spec: {{containers: [{{name: worker, {url}}}]}}}}}}
END
"""


async def endpoint(port: str) -> str:
    """The address of a worker behind this port of the Service: the cluster of the tests routes nothing to Services."""
    listed = await kubectl("get", "endpointslices", "--selector", f"kubernetes.io/service-name={SERVICE}", "-o", "json")
    [found] = json.loads(listed)["items"]
    [number] = [each["port"] for each in found["ports"] if each["name"] == port]
    return f"{found['endpoints'][-1]['addresses'][0]}:{number}"


@asynccontextmanager
async def opened_beside(folder: Path) -> AsyncIterator[tuple[str, str, dict[str, str]]]:
    """Temporal and a model beside the cluster.

    Yields this machine's address for pods, Temporal's address, and the variables that docs/install.md asks for.
    """
    host = await host_for_pods(Path(os.environ["KUBECONFIG"]))
    async with (
        await WorkflowEnvironment.start_local(
            ip="0.0.0.0",  # noqa: S104 - of pods and of its own parts
            ui=False,
            dev_server_existing_path=str(PROGRAMS / "temporal"),
        ) as server,
        serve(host, 0) as model,
    ):
        port = server.client.service_client.config.target_host.rpartition(":")[2]
        (folder / "opencode.json").write_text(json.dumps({"provider": provider_block(model.base_url)}))
        environment = {
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": os.environ["KUBECONFIG"],
            "TEMPORAL": f"{host}:{port}",
            "PAPERCLIP": f"http://{host}:1",
            "ANTHROPIC_API_KEY": "sk-ant-canary",
        }
        yield host, environment["TEMPORAL"], environment


@dataclass(frozen=True)
class Installation:
    """A worker that was installed, and a caller beside the cluster that has the public key."""

    temporal: Client
    data: Path
    key: Path
    settings: ClientSettings

    def wake_up(self, agent_id: str, scenario: str = "text", **runtime: Any) -> dict[str, Any]:
        """A context of Paperclip's."""
        raw = demo.context(scenario, agent_id)
        raw["runtime"] |= runtime
        shutil.chown(self.data, 1000, 1000)
        return raw

    async def start(self, raw: dict[str, Any]) -> Ticket:
        wake = build_wake(raw, Sealer(public_key(self.key)), outcome_retention_sec=0)
        return await attach(self.temporal, self.settings, wake)

    async def outcome(self, raw: dict[str, Any]) -> Outcome:
        ticket = await self.start(raw)
        return await outcome_at_close(ticket.handle(self.temporal))


INSTALLED = (
    *("jobs", "pods", "secrets", "configmaps", "deployments", "services", "networkpolicies", "poddisruptionbudgets"),
    *("roles", "rolebindings", "serviceaccounts", "persistentvolumeclaims"),
)
"""Kinds of which an installation, or a run, makes objects."""


async def left_in(namespace: str) -> set[str]:
    """What a namespace has, but for what Kubernetes itself puts into each."""
    listed = await command("kubectl", "--namespace", namespace, "get", ",".join(INSTALLED), "--output", "name")
    own = ("configmap/kube-root-ca.crt", "serviceaccount/default", "secret/default-token")
    return {each for each in listed.split() if not each.startswith(own)}


async def until_agent_runs(namespace: str) -> None:
    wait = ["wait", "--for=condition=Ready", "pod", "--selector", selector(OURS), "--timeout=120s"]
    while True:  # `wait` fails while there is no pod
        try:
            await command("kubectl", "--namespace", namespace, *wait)
        except AssertionError:
            await asyncio.sleep(1)
        else:
            return


@asynccontextmanager
async def deleted_at_the_end(*objects: tuple[str, str]) -> AsyncIterator[None]:
    """Deletes objects, each a kind and a name, in the opposite order, and waits until they are gone."""
    async with AsyncExitStack() as ends:
        for kind, name in objects:
            ends.push_async_callback(command, "kubectl", "delete", kind, name, "--ignore-not-found", "--timeout=120s")
        yield


@dataclass
class Page:
    """The commands of docs/install.md, run in a copy of the checkout by one shell that goes on from block to block.

    The first block names the reader's surroundings, which are those in `environment` here; images are pushed already.

    Attributes:
        before: commands by a text of the block before which they are run: what the page says in words.
    """

    checkout: Path
    environment: Mapping[str, str]
    before: Mapping[str, str]

    @classmethod
    def copy(
        cls, folder: Path, environment: Mapping[str, str], before: Mapping[str, str], images: InstalledImages
    ) -> "Page":
        checkout = folder / "checkout"
        shutil.copytree(ROOT, checkout, ignore=NOT_COPIED)
        shutil.copytree(images.pinned, checkout / "images")
        (checkout / "shell-state").touch()
        return cls(checkout, environment, before)

    async def follow(self, first: str, last: str = "") -> str:
        """What the blocks wrote, from the first one with the text `first` to the next one with `last`."""
        listed = blocks()
        begin = next(number for number, block in enumerate(listed) if first in block)
        end = next(number for number, block in enumerate(listed) if number >= begin and last in block)
        return "".join([await self._run(block) for block in listed[begin : end + 1]])

    async def _run(self, block: str) -> str:
        first = "\n".join(commands for text, commands in self.before.items() if text in block)
        script = f"set -e -o pipefail\n. ./shell-state\n{first}\n{block}\nexport -p > shell-state"
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", script],
            cwd=self.checkout,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            words = ["kubectl", "--namespace", WORKER, "logs", "deployment/agent-runs-worker", "--tail=30"]
            logs = await asyncio.to_thread(subprocess.run, words, env=self.environment, capture_output=True, text=True)
            raise AssertionError(f"{block}\n{done.stdout}{done.stderr}\n{logs.stdout}")
        return done.stdout + done.stderr


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@dataclass(frozen=True)
class Outside:
    """What a Paperclip outside of the cluster has of it, as docs/workspaces.md says.

    Attributes:
        environment: of commands, and of the plugin.
    """

    environment: Mapping[str, str]

    @classmethod
    @asynccontextmanager
    async def opened(cls, page: Page, sealing_key: Path) -> AsyncIterator["Outside"]:
        """The transcript service is reached through kubectl."""
        key = await kubectl("get", "secret", "agent-runs-keys", "--output", r"jsonpath={.data.transcripts-key\.json}")
        file = page.checkout / "transcripts-key.json"
        file.write_bytes(base64.b64decode(key))
        words = ["--namespace", WORKER, "port-forward", f"service/{SERVICE}", ":8090"]
        forward = await asyncio.create_subprocess_exec(
            str(PROGRAMS / "kubectl"), *words, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert forward.stdout is not None
            line = (await forward.stdout.readline()).decode()
            own = {
                "TEMPORAL_ADDRESS": page.environment["TEMPORAL"],
                "AGENT_RUNS_SEALING_KEY_FILE": str(sealing_key),
                "AGENT_RUNS_TRANSCRIPTS_KEY_FILE": str(file),
                "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL": f"http://{line.removeprefix('Forwarding from ').split()[0]}",
            }
            yield cls({**page.environment, **own})
        finally:
            forward.terminate()
            await forward.wait()

    async def send(self, raw: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """A folder goes out, as the plugin sends it before a run."""
        own = {name: value for name, value in self.environment.items() if name.startswith("AGENT_RUNS_")}
        await asyncio.to_thread(send, ClientSettings.read(own), raw, files)

    async def returned(self, raw: Mapping[str, Any], into: Path) -> dict[str, bytes]:
        """The files that the agent has left, written into a new folder."""
        await self._command("workspace", raw["runId"], "--into", str(into))
        return await asyncio.to_thread(files_in, into)

    async def tried_pod(self, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What a tried pod of this agent finds, by its code."""
        file = Path(self.environment["HOME"]) / "agent.json"
        file.write_text(json.dumps(config))
        printed = await self._command("doctor", "--agent-config", str(file), "--pod", "--json", succeeds=False)
        return {each["code"]: each for each in map(json.loads, printed.splitlines())}

    async def _command(self, *words: str, succeeds: bool = True) -> str:
        program = [str(PROGRAMS / "agent-runs"), *words]
        done = await asyncio.to_thread(subprocess.run, program, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0 or not succeeds, done.stderr
        return done.stdout
