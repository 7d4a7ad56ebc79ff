# attnd-server as a container image.
#
#   docker build -t attnd .                  the runtime image
#   docker build --target test .             compiles and runs the unit tests as well
#   docker build --build-arg CUDA=1 ...      refused: this version has no CUDA code
#
# deploy/compose.yaml runs it with Prometheus and Grafana.
ARG BASE=debian:bookworm-20260824-slim

FROM ${BASE} AS deps
ARG CUDA=0
# An image that ignored the argument would compute on the CPU under the name of a GPU image.
RUN case "${CUDA}" in \
      0) ;; \
      1) echo "CUDA=1: this version of attnd has no CUDA code; build with CUDA=0" >&2; exit 1 ;; \
      *) echo "CUDA must be 0 or 1, got ${CUDA}" >&2; exit 1 ;; \
    esac
WORKDIR /src
COPY deploy/install-deps deploy/
RUN deploy/install-deps --compile && rm -rf /var/lib/apt/lists/*

FROM deps AS build
ENV CCACHE_DIR=/var/cache/ccache
COPY CMakeLists.txt ./
COPY .ci/cmake .ci/cmake
COPY kernels kernels
COPY proto proto
COPY server server
COPY client/cpp client/cpp
RUN --mount=type=cache,target=/var/cache/ccache \
    cmake -S . -B build -G Ninja -DATTND_TESTS=OFF -DATTND_BENCH=OFF \
    && cmake --build build --target attnd-server \
    && strip -o /attnd-server build/server/attnd-server

FROM deps AS test
RUN deploy/install-deps --compile --test && rm -rf /var/lib/apt/lists/*
COPY --from=build /src /src
COPY tests tests
RUN --mount=type=cache,target=/var/cache/ccache \
    cmake -S . -B build -G Ninja -DATTND_TESTS=ON -DATTND_BENCH=OFF \
    && cmake --build build --target kernels_tests server_tests \
    && build/tests/kernels_tests --gtest_brief=1 \
    && build/tests/server_tests --gtest_brief=1

FROM ${BASE} AS runtime
# Packages where security updates are frequent: they arrive by rebuilding, and scanners see them.
# gRPC, protobuf and Abseil are inside the binary (.ci/cmake/archives.cmake).
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
      libc-ares2 libhwy1 libmicrohttpd12 libprometheus-cpp-core1.0 libre2-9 libspdlog1.10 libssl3 \
      zlib1g \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log
COPY --from=build /attnd-server /usr/local/bin/attnd-server
# Fails the build, not the first start, when the list above lacks a library.
RUN ["attnd-server", "--version"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title="attnd" \
      org.opencontainers.image.description="Attention as a service: batched gRPC server, CPU" \
      org.opencontainers.image.revision="${REVISION}"
# Within the container every interface: who may reach them is decided by the published ports.
ENV ATTND_GRPC=0.0.0.0:8001 ATTND_HTTP=0.0.0.0:8002
EXPOSE 8001 8002
# A number, so that Kubernetes can verify runAsNonRoot. The server writes no file.
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["attnd-server", "--probe"]
ENTRYPOINT ["attnd-server"]
