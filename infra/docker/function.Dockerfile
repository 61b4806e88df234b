# The function as an image for AWS Lambda, in place of the zip that `make lambda-zip` builds. From the root of a
# checkout:
#   docker build -f infra/docker/function.Dockerfile -t super-prefetch .
# /var/task contains the files of the zip, compiled. /opt/runtime contains what Lambda's own runtime would provide: AWS's
# runtime client and boto3.

ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
# The package index, if not pip's default.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all: PIP_REQUIRE_HASHES=1
WORKDIR /build
RUN python3 -m venv tools && python3 -m venv --without-pip /opt/runtime
COPY infra/function/ infra/function/
RUN tools/bin/pip --python /opt/runtime/bin/python install -r infra/function/runtime-requirements.txt
COPY . .
RUN tools/bin/python -m tools.lambda_zip --unpacked /var/task \
    && /opt/runtime/bin/python -m compileall -q --invalidation-mode unchecked-hash /var/task

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="SUPER function" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/runtime /opt/runtime
COPY --from=build /var/task /var/task
ENV PATH=/opt/runtime/bin:/usr/local/bin:/usr/bin:/bin \
    LAMBDA_TASK_ROOT=/var/task PYTHONPATH=/var/task PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /var/task
# Lambda runs it as a separate user; elsewhere it does not need root either.
USER 10001:10001
ENTRYPOINT ["python", "-m", "awslambdaric"]
CMD ["superdl.lambda_prefetch.handler.handler"]
