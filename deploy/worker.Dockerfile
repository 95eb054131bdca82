# docker build -f deploy/worker.Dockerfile -t agent-runs-worker:0.1.0 .
#
# Pin the base image here, or with --build-arg BASE_IMAGE=python:3.11-slim@sha256:DIGEST. The digest is the one that
# `docker buildx imagetools inspect python:3.11-slim` prints; renew it with each release of the base (docs/adr/0016).
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
WORKDIR /app
COPY requirements-worker.lock pyproject.toml README.md LICENSE worker.py ./
RUN pip install --no-cache-dir --require-hashes -r requirements-worker.lock
COPY deploy/sbom.py deploy/sbom.py
RUN python deploy/sbom.py requirements-worker.lock > /app/sbom.cdx.json
COPY activities activities
COPY agent_runs agent_runs
COPY workflows workflows
RUN pip install --no-cache-dir --no-deps .
ARG BUILD_ID=0.1.0
ENV BUILD_ID=$BUILD_ID PYTHONUNBUFFERED=1
USER 1000:1000
CMD ["python", "-m", "worker"]
