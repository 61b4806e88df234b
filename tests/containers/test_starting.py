"""The images of coordinator and function start and work, with what their locks pin and nothing else.

No engine is needed: the Dockerfiles' commands run here. Each image is made once, in one test, which takes
longer than five seconds; it is not marked slow, since nothing else notices what a lock lacks.
"""

import hashlib
import json
import sys

import pytest
from torch.utils.data import DataLoader

from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.request import PrefetchResult
from tests.architecture.import_scan import imports_of
from tests.fixtures.dockerfiles import LaidOut, pinned_wheels
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.lambda_runtime_api import Environment, Function, Invocation
from tests.fixtures.object_store import KEY, SECRET
from tests.integration.delivery import assert_exactly_once, collect
from tests.lambda_prefetch.prefetching import array_of, encode, pixels, request_for, run
from tools.lambda_zip import project_version

pytestmark = pytest.mark.timeout(300)  # pip may have to download all that the locks pin

# Imported where a recipe or setting asks for them, and refused by name where the extra is not there.
EXTRAS = {"av", "obstore", "pyarrow", "soundfile", "soxr", "tokenizers"}
# Imports all modules of packages, but for those that want an absent one; then prints which names are absent.
IMPORT_ALL = """
import importlib, importlib.util, json, pkgutil, sys
packages, names = json.load(sys.stdin)
absent = {name for name in names if importlib.util.find_spec(name) is None}
for package in map(importlib.import_module, packages):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            absent.add((error.__cause__ or error).name)
print(json.dumps(sorted(absent)))
"""


def absent_of(image, home, folders):
    """What files of these folders of superdl import anywhere, and the image has not."""
    files = [(folder, file) for folder in folders for file in (home / "superdl" / folder).rglob("*.py")]
    imported = {
        name.name.partition(".")[0]
        for folder, file in files
        for name in imports_of(file.read_text(encoding="utf-8"), f"superdl.{folder}")
    }
    text = json.dumps(
        [[f"superdl.{folder}" for folder in folders], sorted(imported - sys.stdlib_module_names)]
    )
    return set(json.loads(image.run(["python", "-c", IMPORT_ALL], text)))


def absent_of_coordinator(image):
    (home,) = image.root.glob("opt/super/lib/python3*/site-packages")
    return absent_of(image, home, ("coordinator", "lambda_prefetch", "super_wire"))


def test_the_coordinators_image_serves_and_lacks_nothing(valkey, cache, tmp_path):
    locks = ("infra/docker/build-requirements.txt", "infra/docker/coordinator-requirements.txt")
    wheels = [pinned_wheels(lock, cache.mkdir("wheels")) for lock in locks]
    image = LaidOut("coordinator", tmp_path / "image", wheels)
    source = write_images(tmp_path / "images", 8)
    address, health = (f"unix:{valkey.directory}/{name}.sock" for name in ("coordinator", "health"))
    listening = {"SUPER_LISTEN": address, "SUPER_HEALTH_LISTEN": health}
    words = [*image.entrypoint, *image.command, "--slots", "1"]
    with image.start(words, SUPER_CACHE=valkey.unix_url, SUPER_STORE="none", **listening) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "serving on" not in said:
                said += (line := process.stdout.readline())
                assert line, f"it ended: {said}"
            assert "serves" in image.run(image.health, **listening)
            dataset = SuperDataset(source.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
            with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=address) as sampler:
                delivered = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
            assert "no open jobs" in image.run(["superdl", "stats", "--coordinator", address])
        finally:
            process.terminate()
    assert process.returncode == 0
    assert_exactly_once(delivered, expected_pixels(source, resize=SIDE, crop=SIDE))
    assert absent_of_coordinator(image) == (EXTRAS | {"ray"}) - {"pyarrow"}


def test_the_functions_image_answers_lambda_and_lacks_nothing(valkey, object_store, cache, tmp_path):
    locks = ("infra/function/requirements.txt", "infra/function/runtime-requirements.txt")
    wheels = [pinned_wheels(lock, cache.mkdir("wheels")) for lock in locks]
    image = LaidOut("function", tmp_path / "image", wheels)
    files = {"a.png": encode(pixels(seed=1)), "b.jpg": encode(pixels(seed=2), "JPEG"), "bad.jpg": b"no image"}
    (object_store.directory / "data").mkdir()
    for name, content in files.items():
        (object_store.directory / "data" / name).write_bytes(content)
    variables = image.environment | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    variables |= {"SUPER_S3_ENDPOINT_URL": object_store.url}
    etags = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in files.items()}
    request = request_for("s3://data", etags, valkey.url, Recipe([]))
    (handler,) = image.command
    function = Function(handler=handler, client=tuple(image.entrypoint), environment=variables)
    environment = Environment(1, function, {}, tmp_path, freed=lambda _: None, gone=lambda _: None)
    try:
        answers = []
        for event in (json.dumps({"super_warm": 1, "cache": valkey.url}), request.to_json()):
            invocation = Invocation(event.encode())
            environment.give(invocation)
            assert invocation.ended.wait(60), environment.printed
            assert not invocation.function_error, environment.printed
            answers.append(json.loads(invocation.payload))
    finally:
        environment.close()
    warmed, answer = answers
    assert (warmed["function_version"], warmed["golden"]) == (project_version(), decoder_fingerprint())
    assert PrefetchResult.from_mapping(answer).outcomes == ("cached", "cached", "tombstone")
    made = [array_of(valkey, request, index).tobytes() for index in range(2)]
    with valkey.client() as client:
        client.flushall()
    run(request)
    assert made == [array_of(valkey, request, index).tobytes() for index in range(2)], "as in the checkout"
    task = image.root / "var" / "task"
    # On Lambda no worker calls in.
    assert absent_of(image, task, ("lambda_prefetch", "super_wire")) == EXTRAS | {"grpc", "ray"}
