# A trainer: torch and all of SUPER. From the root of a checkout:
#   docker build -f infra/docker/trainer.Dockerfile -t super-trainer .
# pip's default index has torch with CUDA on Linux; for another build of torch, pass an index:
#   --build-arg PIP_INDEX_URL=...  Put your training code into an image FROM this one.

ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
ARG TORCH=torch==2.13.0
# The package index, if not pip's default.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all:
WORKDIR /build
RUN python3 -m venv tools && python3 -m venv --without-pip /opt/super
COPY infra/docker/build-requirements.txt ./
RUN tools/bin/pip install --require-hashes -r build-requirements.txt \
    && tools/bin/pip --python /opt/super/bin/python install "${TORCH}"
COPY . source/
RUN unset PIP_ONLY_BINARY \
    && tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist source/ \
    && tools/bin/pip --python /opt/super/bin/python install --only-binary :all: "${TORCH}" \
        "superdl[train] @ file://$(ls /build/dist/*.whl)"

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="SUPER trainer" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"
# New volumes mounted at /data and /runs inherit the owner of these directories.
RUN groupadd --gid 10001 super \
    && useradd --uid 10001 --gid super --no-create-home --home-dir /nonexistent super \
    && install --directory --owner super --group super /data /runs \
    && install --directory --owner super --group super --mode 0700 /run/super
COPY --from=build /opt/super /opt/super
ENV PATH=/opt/super/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /runs
USER 10001:10001
ENTRYPOINT ["superdl"]
CMD ["doctor"]
