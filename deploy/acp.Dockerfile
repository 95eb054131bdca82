# The image of an agent that speaks ACP (x86-64): its program, Node.js, git, ripgrep, busybox, certificates;
# `./dev images --only claude`, or
#     docker build -f deploy/acp.Dockerfile --build-arg AGENT=claude -t agent-claude:0.101.0 .
#
# A recipe to copy, as deploy/agent.Dockerfile is. What the product needs is the agent's program and `sh` on PATH, and that
# nothing in the image needs root. One image for each agent, because all together have 1 GB.
ARG NPM_IMAGE=node:22-bookworm-slim@sha256:43ac6c60b8f89723f746e8a92ce91abd5017e627ce1ddfe4238355d3a30b772c

# The packages, by the hashes in the lock file. `npm ci` would want optional packages that the registry does not have.
FROM ${NPM_IMAGE} AS packages
ARG AGENT
WORKDIR /opt/agent
COPY deploy/${AGENT}/package.json deploy/${AGENT}/package-lock.json ./
RUN --mount=type=secret,id=certificates \
    [ ! -s /run/secrets/certificates ] || export NODE_EXTRA_CA_CERTS=/run/secrets/certificates; \
    npm install --no-save --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error \
 && rm -rf /root/.npm

FROM ${NPM_IMAGE}
# Logs and caches hold times.
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends busybox ca-certificates git ripgrep \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache \
      /var/cache/apt/*.bin /var/cache/debconf/*-old /var/lib/dpkg/*-old \
 && mkdir -p /home/agent /workspace \
 && chown 1000:1000 /home/agent /workspace \
 # A workspace on the shared volume often belongs to Paperclip's user, and git refuses other users' folders. A pod has
 # no folders but its agent's.
 && git config --system --add safe.directory '*'
COPY --from=packages /opt/agent /opt/agent
# `programs` in package.json says which files are on PATH, by which names.
RUN cd /opt/agent \
 && node -e 'for (const [name, file] of Object.entries(require("./package.json").programs)) { const target = `/opt/agent/node_modules/${file}`; fs.chmodSync(target, 0o755); fs.symlinkSync(target, `/usr/local/bin/${name}`); }'
ENV HOME=/home/agent LANG=C.UTF-8 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
WORKDIR /workspace
USER 1000:1000
CMD ["node", "--version"]
