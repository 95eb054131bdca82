# docker build -f deploy/worker.Dockerfile -t agent-runs-worker:0.1.0 .
FROM python:3.11-slim
WORKDIR /app
COPY requirements-worker.lock pyproject.toml README.md LICENSE worker.py ./
RUN pip install --no-cache-dir --require-hashes -r requirements-worker.lock
COPY activities activities
COPY agent_runs agent_runs
COPY workflows workflows
RUN pip install --no-cache-dir --no-deps .
ARG BUILD_ID=0.1.0
ENV BUILD_ID=$BUILD_ID PYTHONUNBUFFERED=1
USER 1000:1000
CMD ["python", "-m", "worker"]
