"""Make a Lambda executor for the tests' Lambda service, and run it around a coroutine."""

import contextlib

import boto3

from superdl.coordinator.executors.aws_lambda import LambdaExecutor, LambdaSettings
from superdl.coordinator.executors.base import ExecutorContext
from tests.coordinator.executors import functions
from tests.coordinator.executors.asking import ask
from tests.fixtures.images import write_images


def executor_for(service, cache="", request_timeout_s=60.0, **changes):
    """Make an executor. Settings are given without their ``lambda_`` prefix."""
    facts = {"warm": 1, "endpoint_url": service.url}
    settings = LambdaSettings(**{f"lambda_{name}": value for name, value in (facts | changes).items()})
    context = ExecutorContext(cache, request_timeout_s=request_timeout_s)
    return LambdaExecutor(settings, context)


def handler_of(name):
    """Return Lambda's name for a handler in :mod:`tests.coordinator.executors.functions`."""
    return f"{functions.MODULE}.{name}"


@contextlib.asynccontextmanager
async def using(executor):
    """Start an executor, and close it at the end."""
    try:
        await executor.start()
        yield executor
    finally:
        await executor.close()


async def start_and_close(executor):
    async with using(executor):
        pass


def request_for_objects(store, cache, count, request_id="r"):
    """Put ``count`` images into the store's bucket ``photos`` and return a request for them."""
    directory = write_images(store.directory / "photos", count)
    keys = sorted(path.relative_to(directory).as_posix() for path in directory.glob("*/*.jpg"))
    client = boto3.session.Session().client("s3", endpoint_url=store.url)  # avoids another test's credentials
    listed = client.list_objects_v2(Bucket="photos")["Contents"]
    client.close()
    etags = {entry["Key"]: entry["ETag"].strip('"') for entry in listed}
    return ask(request_id, "s3://photos", keys, [etags[key] for key in keys], cache)
