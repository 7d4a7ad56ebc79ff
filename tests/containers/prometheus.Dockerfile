# Debian's Prometheus with the entry point, user and paths of the official image.
ARG BASE=debian:bookworm-20260824-slim
FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends prometheus wget \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o nobody -g nogroup /prometheus
USER nobody
WORKDIR /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
