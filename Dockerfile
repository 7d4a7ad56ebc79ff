# attnd-server as a container image.
#
#   docker build -t attnd .                  the runtime image
#   docker build --target test .             compiles and runs the unit tests as well
#   docker build --build-arg CUDA=1 ...      for NVIDIA GPUs, on NVIDIA's runtime image
#
# Podman 4 reads the default of CUDA too late: give it --build-arg CUDA=0.
# deploy/compose.yaml runs it with Prometheus and Grafana.
ARG BASE=debian:bookworm-20260824-slim
# 0 or 1: the stages below that end in this number. Images of NVIDIA are pulled for 1 alone.
ARG CUDA=0
ARG CUDA_COMPILER=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG CUDA_RUNTIME=nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04

FROM ${BASE} AS deps
WORKDIR /src
COPY deploy/install-deps deploy/
RUN deploy/install-deps --compile && rm -rf /var/lib/apt/lists/*

FROM deps AS compiler-0
ENV ATTND_CUDA=OFF

FROM ${CUDA_COMPILER} AS cuda-toolkit
# NVIDIA builds one toolkit for all distributions: it runs on Debian's libraries and compiler as well.
FROM deps AS compiler-1
COPY --from=cuda-toolkit /usr/local/cuda-13.0 /usr/local/cuda
ENV ATTND_CUDA=ON PATH=/usr/local/cuda/bin:${PATH}

FROM compiler-${CUDA} AS build
ENV CCACHE_DIR=/var/cache/ccache
COPY CMakeLists.txt ./
COPY .ci/cmake .ci/cmake
COPY kernels kernels
COPY proto proto
COPY server server
COPY client/cpp client/cpp
RUN --mount=type=cache,target=/var/cache/ccache \
    cmake -S . -B build -G Ninja -DATTND_TESTS=OFF -DATTND_BENCH=OFF -DATTND_CUDA=${ATTND_CUDA} \
    && cmake --build build --target attnd-server \
    && strip -o /attnd-server build/server/attnd-server
# The shared libraries that it needs, without those of the compiler and the C library.
RUN mkdir /attnd-libraries \
    && ldd /attnd-server | awk '$2 == "=>" { print $3 }' \
      | grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|libgcc_s|libstdc[+][+])[.]so' \
      | xargs cp -L -t /attnd-libraries

FROM deps AS test
RUN deploy/install-deps --compile --test && rm -rf /var/lib/apt/lists/*
COPY --from=build /src /src
COPY tests tests
RUN --mount=type=cache,target=/var/cache/ccache \
    cmake -S . -B build -G Ninja -DATTND_TESTS=ON -DATTND_BENCH=OFF -DATTND_CUDA=OFF \
    && cmake --build build --target kernels_tests server_tests \
    && { ctest --test-dir build -j "$(nproc)" -L '^(kernels|server)_tests$' --no-tests=error \
           --output-on-failure >tests.log || { grep -v 'Passed\|Start' tests.log; false; }; } \
    && grep 'tests passed' tests.log

FROM ${BASE} AS runtime-0
# Packages where security updates are frequent: they arrive by rebuilding, and scanners see them.
# gRPC, protobuf and Abseil are inside the binary (.ci/cmake/archives.cmake).
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
      libc-ares2 libhwy1 libmicrohttpd12 libprometheus-cpp-core1.0 libre2-9 libspdlog1.10 libssl3 \
      zlib1g \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log

# The driver's libraries are mounted by NVIDIA's container toolkit, which the image asks for them. It
# has cuBLASLt, cuFFT and cuDNN, which the server opens where they are: own kernels serve without
# them (CUDA_RUNTIME=nvidia/cuda:13.0.1-base-ubuntu24.04 is much smaller). Its C library and
# libstdc++ are newer than those of the build; the other libraries come from the build.
FROM ${CUDA_RUNTIME} AS runtime-1
COPY --from=build /attnd-libraries /usr/local/lib/attnd
RUN echo /usr/local/lib/attnd >/etc/ld.so.conf.d/attnd.conf && ldconfig

FROM runtime-${CUDA} AS runtime
COPY --from=build /attnd-server /usr/local/bin/attnd-server
# Fails the build, not the first start, when a library is missing.
RUN ["attnd-server", "--version"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title="attnd" \
      org.opencontainers.image.description="Attention as a service: batched gRPC server" \
      org.opencontainers.image.revision="${REVISION}"
# Within the container every interface: who may reach them is decided by the published ports.
ENV ATTND_GRPC=0.0.0.0:8001 ATTND_HTTP=0.0.0.0:8002
EXPOSE 8001 8002
# Results of self-tests of GPUs: a volume here keeps them (compose.yaml). The server writes no other
# file, and does without these where the file system is read-only.
ENV ATTND_CACHE_DIR=/var/cache/attnd
# Where the driver keeps what it compiles for GPUs that are newer than the machine code: minutes of
# a start, the root file system is read-only.
ENV CUDA_CACHE_PATH=/var/cache/attnd/cuda
RUN install -d -o 10001 -g 10001 /var/cache/attnd
# A number, so that Kubernetes can verify runAsNonRoot.
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["attnd-server", "--probe"]
ENTRYPOINT ["attnd-server"]
