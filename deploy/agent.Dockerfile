# The image of agents (x86-64): OpenCode, git, ripgrep, busybox, certificates; `./dev images`, or
#     docker build -f deploy/agent.Dockerfile -t agent:1.18.33 .
# OpenCode 2: `./dev images --only opencode-2`, or `--build-arg OPENCODE=opencode-2`.
#
# A recipe to copy: add the compilers and tools that your agents work with. What the product needs is `opencode` and `sh`
# on PATH, and that nothing in the image needs root.
#
# Both digests are renewed with each release of these images (docs/adr/0026).
ARG BASE_IMAGE=debian:bookworm-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251
ARG NPM_IMAGE=node:22-bookworm-slim@sha256:43ac6c60b8f89723f746e8a92ce91abd5017e627ce1ddfe4238355d3a30b772c

# The package with OpenCode's program, by the hash in the lock file; its build for CPUs without AVX2 runs on every node.
FROM ${NPM_IMAGE} AS opencode
ARG OPENCODE=opencode
WORKDIR /opencode
COPY deploy/${OPENCODE}/package.json deploy/${OPENCODE}/package-lock.json ./
RUN --mount=type=secret,id=certificates \
    [ ! -s /run/secrets/certificates ] || export NODE_EXTRA_CA_CERTS=/run/secrets/certificates; \
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error \
 && cp "$(find node_modules -path '*/bin/opencode')" /usr/local/bin/opencode \
 && HOME=/tmp opencode --version

FROM ${BASE_IMAGE}
# Logs and caches hold times.
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends busybox ca-certificates git ripgrep \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache \
      /var/cache/apt/*.bin /var/cache/debconf/*-old /var/lib/dpkg/*-old \
 && echo 'agent:x:1000:1000:agent:/home/agent:/bin/sh' >> /etc/passwd \
 && echo 'agent:x:1000:' >> /etc/group \
 && mkdir -p /home/agent /workspace \
 && chown 1000:1000 /home/agent /workspace \
 # A workspace on the shared volume often belongs to Paperclip's user, and git refuses other users' folders. A pod has
 # no folders but its agent's.
 && git config --system --add safe.directory '*'
COPY --from=opencode /usr/local/bin/opencode /usr/local/bin/opencode
ENV HOME=/home/agent LANG=C.UTF-8 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
WORKDIR /workspace
USER 1000:1000
CMD ["opencode", "--version"]
