"""Builds the images of worker and agents with buildah or docker, and prints their ids, or their digests once pushed.

    ./dev images                                  agent-runs-worker:0.1.0 and agent:1.18.33
    ./dev images --only worker --prefix registry.example.com/team/
    ./dev images --prefix registry.example.com/team/ --push --pin images
                                                  also pushes them, and writes the component that deploys these digests
    ./dev images --archives DIRECTORY             also writes each as a `docker save` archive
    ./dev images --only opencode-2                agent:2.0.15
    ./dev images --only claude                    agent-claude:0.101.0; the other agents are codex, gemini, pi and qwen

Two builds of the same sources on the same bases are the same image (buildah; docker with the containerd image store).
pip, npm and apt use the bases' own configuration; certificates and pip's configuration of this machine are lent to the
build and do not get into an image. Needs only the standard library.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CERTIFICATES: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
"""Variables with a file of trusted certificates; the first that is set counts."""
INIT_IMAGE: Final = "busybox:1.36@sha256:73aaf090f3d85aa34ee199857f03fa3a95c8ede2ffd4cc2cdb5b94e566b11662"
"""Of the container that prepares an agent's pod; docs/adr/0026 says where the digest is from."""
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
COMPONENT: Final = """\
# The worker's image. `./dev images --push --pin` writes this folder with the digests of what it has pushed, so that
# what runs is what was built; a tag can be moved.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
images:
  - name: agent-runs-worker
    newName: {name}
    {version}
"""
VARIABLES: Final = """\
# The image of agents' pods, with OpenCode, git, ripgrep and sh (deploy/agent.Dockerfile).
AGENT_RUNS_IMAGE={agent}
# The image that prepares an agent's pod; it needs sh and busybox.
AGENT_RUNS_INIT_IMAGE={init}
"""


@dataclass(frozen=True)
class Image:
    """What is built: `deploy/<recipe>.Dockerfile`, tagged `<repository>:<tag>`.

    Attributes:
        recipe: None: the name.
        arguments: of the recipe.
    """

    name: str
    repository: str
    tag: str
    recipe: str | None = None
    arguments: tuple[str, ...] = ()


def version(file: str, pattern: str) -> str:
    """The version that a file of the project names."""
    found = re.search(pattern, (ROOT / file).read_text())
    if found is None:
        raise SystemExit(f"images: {file} names no version")
    return found[1]


def images() -> list[Image]:
    """The images of this version."""
    return [
        Image("worker", "agent-runs-worker", version("pyproject.toml", r'\nversion = "([^"]+)"')),
        Image("agent", "agent", version("deploy/opencode/package.json", r'"opencode-linux-[^"]+": "([^"]+)"')),
    ]


def opencode_2() -> Image:
    """The agents' image with OpenCode 2."""
    tag = version("deploy/opencode-2/package.json", r'"@opencode/cli-linux-[^"]+": "([^"]+)"')
    return Image("opencode-2", "agent", tag, "agent", ("OPENCODE=opencode-2",))


def agent_images() -> list[Image]:
    """The images of agents other than OpenCode: those of `deploy/<name>` whose package names programs."""
    found = []
    for file in sorted((ROOT / "deploy").glob("*/package.json")):
        package, name = json.loads(file.read_text()), file.parent.name
        if "programs" in package:
            tag = next(iter(package["dependencies"].values()))
            found.append(Image(name, f"agent-{name}", tag, "acp", (f"AGENT={name}",)))
    return found


def builder() -> str:
    """The program that builds: buildah, else docker with a server."""
    for program, probe in (("buildah", ["version"]), ("docker", ["version", "--format", "{{.Server.Version}}"])):
        if shutil.which(program) and not subprocess.run([program, *probe], capture_output=True, check=False).returncode:
            return program
    raise SystemExit("images: neither buildah nor a docker server is here. Install one, e.g. `apt-get install buildah`")


def build_command(program: str, image: Image, reference: str, arguments: list[str]) -> list[str]:
    """How to build one image."""
    command = ["build", "--file", f"deploy/{image.recipe or image.name}.Dockerfile", "--tag", reference]
    if program == "buildah":
        command += ["--isolation", "chroot", "--layers=false", "--timestamp", "0", "--format", "oci"]
    if certificates := next((os.environ[name] for name in CERTIFICATES if os.environ.get(name)), None):
        command += ["--secret", f"id=certificates,src={certificates}"]
    if configuration := os.environ.get("PIP_CONFIG_FILE"):
        command += ["--secret", f"id=pip.conf,src={configuration}"]
    for argument in (*image.arguments, *arguments):
        command += ["--build-arg", argument]
    return [program, *command, "."]


def image_id(program: str, reference: str) -> str:
    """The digest of an image's configuration, which names its layers."""
    template = "{{.FromImageID}}" if program == "buildah" else "{{.Id}}"
    command = [program, "inspect", "--type", "image", "--format", template, reference]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def push(program: str, reference: str) -> str:
    """Push an image; returns the digest by which its registry has it."""
    if program == "buildah":
        with tempfile.NamedTemporaryFile("r") as file:
            _push([program, "push", "--quiet", "--digestfile", file.name, reference, f"docker://{reference}"])
            digest = file.read().strip()
    else:
        _push([program, "push", "--quiet", reference])
        template = "{{range .RepoDigests}}{{println .}}{{end}}"
        command = [program, "image", "inspect", "--format", template, reference]
        known = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        repository = reference.rpartition(":")[0]
        digest = next((each.rpartition("@")[2] for each in known if each.startswith(f"{repository}@")), "")
    if not DIGEST.fullmatch(digest):
        raise SystemExit(f"images: {program} names no digest of {reference}, so nothing is pinned. Push it again")
    return digest


def _push(command: list[str]) -> None:
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise SystemExit("images: the push has failed, so nothing is pinned. Correct what is shown above")


def pin(folder: Path, worker: str, worker_digest: str, agent: str, init_image: str) -> None:
    """Write the component of an overlay that names all images by digest.

    Args:
        worker: registry and name, without a tag.
        agent: the agents' image, with its digest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kustomization.yaml").write_text(COMPONENT.format(name=worker, version=f"digest: {worker_digest}"))
    (folder / "images.env").write_text(VARIABLES.format(agent=agent, init=init_image))


def archive(program: str, reference: str, directory: Path, image: Image) -> None:
    """Write an image as an archive that `docker load`, `ctr images import` and other tools read."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{image.name}.tar"
    file.unlink(missing_ok=True)
    if program == "buildah":
        command = [program, "push", "--quiet", reference, f"docker-archive:{file}:{reference}"]
    else:
        command = [program, "save", "--output", str(file), reference]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="./dev images", description="Builds the images of worker and agents.")
    names = [image.name for image in (*images(), opencode_2(), *agent_images())]
    parser.add_argument("--only", choices=names, help="build one of them, or that of another agent")
    parser.add_argument(
        "--prefix", default="", help="registry and path before the name, such as registry.example/team/"
    )
    parser.add_argument(
        "--build-arg", action="append", default=[], metavar="NAME=VALUE", help="for example BASE_IMAGE=…"
    )
    parser.add_argument("--push", action="store_true", help="push them, and print the digests that the registry has")
    parser.add_argument(
        "--pin", type=Path, metavar="FOLDER", help="write an overlay's folder `images` there, with these digests"
    )
    parser.add_argument(
        "--init-image", default=INIT_IMAGE, metavar="IMAGE", help="as --pin writes it, such as a mirror's"
    )
    parser.add_argument("--archives", type=Path, metavar="DIRECTORY", help="write `docker save` archives there, too")
    options = parser.parse_args()
    if options.pin and (options.only or not options.push):
        parser.error("--pin needs --push, because only a registry gives an image its digest, and both images")
    return options


def main() -> None:
    """Build what the arguments ask for; a failed build ends with its builder's exit code."""
    options = arguments()
    program = builder()
    digests: dict[str, str] = {}
    for image in images() if options.only is None else (*images(), opencode_2(), *agent_images()):
        if options.only in (None, image.name):
            reference = f"{options.prefix}{image.repository}:{image.tag}"
            environment = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
            command = build_command(program, image, reference, options.build_arg)
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
            if done.returncode:
                raise SystemExit(done.returncode)
            if options.archives:
                archive(program, reference, options.archives, image)
            if options.push:
                digests[image.name] = push(program, reference)
            print(f"{reference} {digests.get(image.name) or image_id(program, reference)}", flush=True)
    if options.pin:
        worker, agent = (f"{options.prefix}{image.repository}" for image in images())
        pin(options.pin, worker, digests["worker"], f"{agent}@{digests['agent']}", options.init_image)


if __name__ == "__main__":
    main()
