# The coordinator, with functions in its local pool where --executor local is used. From the root of a checkout:
#   docker build -f infra/docker/coordinator.Dockerfile -t super-coordinator .
# It runs on a read-only file system, as uid 10001, without capabilities; docs/deploy/kubernetes.md shows how.

ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
# The package index, if not pip's default.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all: PIP_REQUIRE_HASHES=1
WORKDIR /build
# /opt/super, which the image gets, has no pip: another environment's pip installs into it.
RUN python3 -m venv tools && python3 -m venv --without-pip /opt/super
COPY infra/docker/*-requirements.txt ./
RUN tools/bin/pip install -r build-requirements.txt \
    && tools/bin/pip --python /opt/super/bin/python install -r coordinator-requirements.txt
COPY . source/
# Without dependencies: only trainers need torch.
RUN unset PIP_REQUIRE_HASHES PIP_ONLY_BINARY \
    && tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist source/ \
    && tools/bin/pip --python /opt/super/bin/python install --no-deps dist/*.whl

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="SUPER coordinator" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 super \
    && useradd --uid 10001 --gid super --no-create-home --home-dir /nonexistent super \
    && install --directory --owner super --group super --mode 0700 /run/super
COPY --from=build /opt/super /opt/super
ENV PATH=/opt/super/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /
# For key lists while they are read. Fargate's volumes belong to root unless the image declares the path.
VOLUME /tmp
USER 10001:10001
EXPOSE 50051
# Settings are SUPER_* variables or arguments. If the coordinator listens with TLS and a token, its health check
# connects here, without either.
ENV SUPER_HEALTH_LISTEN=127.0.0.1:50052
# SIGTERM drains, within ten seconds.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-m", "superdl.coordinator.probe"]
ENTRYPOINT ["python", "-P", "-m", "superdl.coordinator"]
