"""An operator's policy for tests of what it does not concern: an agent may choose anything."""

from pathlib import Path

ANYTHING = """\
serviceAccountNames: ["*"]
namespaces: ["*"]
labels: ["*"]
nodeSelectors: ["*"]
tolerations: ["*"]
annotations: ["*"]
runtimeClassNames: ["*"]
priorityClassNames: ["*"]
podAffinities: ["*"]
topologyKeys: ["*"]
podTemplateKeys: ["*"]
volumes: {configMaps: ["*"], secrets: ["*"], claims: ["*"], hostPaths: ["*"]}
paperclipApiUrls: ["*"]
storageClasses: ["*"]
"""


def anything_allowed(folder: Path) -> Path:
    file = folder / "policy.yaml"
    file.write_text(ANYTHING)
    return file
