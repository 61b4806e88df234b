"""What does not fit together is told to whoever makes the sampler, with the remedy, before training waits.

Everything is real: the embedded coordinator, functions in AWS's runtime, S3, the cache.
"""

import shutil
import tempfile

import boto3
import pytest
from moto.server import ThreadedMotoServer
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.sampler.embedded.embedded import release_all
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import (
    BadSampleError,
    CacheError,
    ConfigError,
    EmbeddedError,
    SourceForbiddenError,
)
from superdl.super_wire.protocol import installed_version
from tests.fixtures.images import SIDE
from tests.fixtures.lambda_answers import Answer

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture(autouse=True)
def embedded(lambda_service, photos, valkey, monkeypatch):
    """The embedded default with functions on Lambda."""
    lambda_service.concurrency = 2
    base = tempfile.mkdtemp(prefix="super-w-")  # short: socket paths have 107 bytes
    monkeypatch.setattr(tempfile, "tempdir", base)
    monkeypatch.setenv("SUPER_EXECUTOR", "lambda")
    monkeypatch.setenv("SUPER_CACHE", valkey.url)
    monkeypatch.setenv("SUPER_LAMBDA_WARM", "1")
    yield
    release_all()
    shutil.rmtree(base, ignore_errors=True)


def make_sampler(source="s3://photos/train", recipe=RECIPE):
    with SuperSampler(SuperDataset(source, recipe), batch_size=4, shuffle=True):
        pass


@pytest.mark.slow
def test_a_directory_of_this_machine(images):
    with pytest.raises(ConfigError, match=r"is a directory on the coordinator's machine.*s3://bucket/prefix"):
        make_sampler(images.as_uri())


def test_a_function_that_may_not_read_the_bucket(lambda_service):
    lambda_service.deploy(environment={"AWS_SECRET_ACCESS_KEY": "another"})
    with pytest.raises(
        SourceForbiddenError, match=r"functions are not allowed to read s3://photos/train: .*403.*renew"
    ):
        make_sampler()
    lambda_service.deploy(environment={})
    make_sampler()


@pytest.mark.slow
def test_a_function_that_may_not_write_to_the_cache(lambda_service, valkey):
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "idle", "on", ">word", "~super:*", "-@all", "+ping")
    environment = {"SUPER_CACHE_USERNAME": "idle", "SUPER_CACHE_PASSWORD": "word"}
    lambda_service.deploy(environment=environment)
    with pytest.raises(
        CacheError, match=r"not allowed to write to the cache .*NOPERM.*the rights of their user"
    ):
        make_sampler()


@pytest.mark.slow
def test_a_function_that_the_cache_does_not_let_in(lambda_service):
    lambda_service.deploy(environment={"SUPER_CACHE_PASSWORD": "wrong"})
    with pytest.raises(EmbeddedError, match=r"cannot use the cache .*redis://.*own SUPER_CACHE_\* settings"):
        make_sampler()


@pytest.mark.slow
def test_a_function_of_another_version(lambda_service):
    lambda_service.deploy(handler="tests.coordinator.executors.functions.of_another_version")
    remedy = rf"SUPER 9\.9\.9, but the coordinator runs SUPER {installed_version()}: deploy version"
    with pytest.raises(EmbeddedError, match=remedy):
        make_sampler()


@pytest.mark.slow
def test_no_permission_to_invoke(lambda_service):
    words = "User is not authorized to perform: lambda:InvokeFunction"
    lambda_service.answer_next(*[Answer.error(403, "AccessDeniedException", words)] * 2)
    with pytest.raises(
        EmbeddedError, match="not allowed to invoke .* grant its credentials lambda:InvokeFunction"
    ):
        make_sampler()


@pytest.mark.slow
def test_a_bucket_in_another_region(images, monkeypatch, caplog):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://{host}:{port}")
    client = boto3.session.Session().client("s3", endpoint_url=f"http://{host}:{port}")
    try:
        client.create_bucket(
            Bucket="far-wrong", CreateBucketConfiguration={"LocationConstraint": "eu-west-3"}
        )
        for path in sorted(images.glob("*/*.jpg"))[:8]:
            client.upload_file(str(path), "far-wrong", f"train/{path.parent.name}/{path.name}")
        make_sampler("s3://far-wrong/train")
    finally:
        client.close()
        server.stop()
    assert "it is in the region eu-west-3, but the functions run in us-east-1" in caplog.text


@pytest.mark.slow
def test_a_custom_step_that_the_function_does_not_have():
    recipe = Recipe([{"op": "custom", "name": "their_steps:crop@1"}])
    with pytest.raises(ConfigError, match=r"functions refused .*their_steps"):
        make_sampler(recipe=recipe)


@pytest.mark.slow
def test_a_right_that_is_lost_while_training_is_told_in_the_first_batch_that_lacks_it(lambda_service):
    dataset = SuperDataset("s3://photos/train", RECIPE)
    with SuperSampler(dataset, batch_size=4, shuffle=True) as sampler:
        lambda_service.deploy(environment={"AWS_SECRET_ACCESS_KEY": "another"})
        with pytest.raises(BadSampleError, match="403.*renew the AWS credentials"):
            for _ in DataLoader(dataset, sampler=sampler, batch_size=None):
                pass
