# The worker's image: `./dev images`, or
#     docker build -f deploy/worker.Dockerfile -t agent-runs-worker:0.1.0 .
#
# Any image with Python 3.11 or later, its venv module and glibc is a base (--build-arg BASE_IMAGE=…). The digest is the one
# that `docker buildx imagetools inspect python:3.11-slim` prints; renew it with each release (docs/adr/0026).
ARG BASE_IMAGE=python:3.11-slim@sha256:0dd364ba7e10242f07755449e3a3d0e35f9efd987952737b90def6709ab0c5ce

# Nothing of this stage but /opt/agent-runs gets into the image: neither pip nor a build system.
FROM ${BASE_IMAGE} AS build
# Compiled files hold no time and no random order, so that two builds of the same sources are the same image.
ENV PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python3 -m venv /opt/agent-runs
COPY requirements-worker.lock pyproject.toml README.md LICENSE worker.py ./
RUN --mount=type=secret,id=certificates --mount=type=secret,id=pip.conf \
    [ ! -s /run/secrets/certificates ] || export PIP_CERT=/run/secrets/certificates; \
    PIP_CONFIG_FILE=/run/secrets/pip.conf \
    /opt/agent-runs/bin/pip install --no-compile --require-hashes -r requirements-worker.lock
COPY deploy/sbom.py deploy/sbom.py
RUN /opt/agent-runs/bin/python deploy/sbom.py requirements-worker.lock > /opt/agent-runs/sbom.cdx.json
COPY activities activities
COPY agent_runs agent_runs
COPY workflows workflows
RUN --mount=type=secret,id=certificates --mount=type=secret,id=pip.conf \
    [ ! -s /run/secrets/certificates ] || export PIP_CERT=/run/secrets/certificates; \
    PIP_CONFIG_FILE=/run/secrets/pip.conf /opt/agent-runs/bin/pip install --no-compile --no-deps . \
 && /opt/agent-runs/bin/pip uninstall --quiet --yes setuptools pip \
 # Never imported: the generated classes of the synchronous Kubernetes client (50 MB), sources in Rust. The classes of the
 # asynchronous one are imported one by one if at all, so they stay as sources.
 && rm -r /opt/agent-runs/lib/python3*/site-packages/kubernetes/client/api/*_api.py \
      /opt/agent-runs/lib/python3*/site-packages/kubernetes/client/models/v[0-9]*.py \
      /opt/agent-runs/lib/python3*/site-packages/temporalio/bridge/sdk-core \
 && python3 -m compileall -qf -x 'kubernetes/aio/client/(api|models)/' --invalidation-mode unchecked-hash /opt/agent-runs/lib \
 && /opt/agent-runs/bin/python -c 'import worker, agent_runs.cli.main'

FROM ${BASE_IMAGE}
COPY --from=build /opt/agent-runs /opt/agent-runs
ARG BUILD_ID=0.1.0
ENV BUILD_ID=$BUILD_ID PYTHONUNBUFFERED=1 PATH=/opt/agent-runs/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /opt/agent-runs
USER 1000:1000
CMD ["python", "-m", "worker"]
