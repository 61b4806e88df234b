"""Builds the package for this machine's Python, and runs the handler out of it with nothing else at hand.

The child sees the unzipped package, what Lambda's runtime has (boto3) and the standard library: no site
packages, no checkout. So what the package lacks, it lacks here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import PrefetchResult
from tests.lambda_prefetch.prefetching import array_of, encode, pixels, raw_record, request_for, run
from tools.lambda_zip import Platform, build

IN_LAMBDAS_RUNTIME = ("boto3", "botocore", "s3transfer", "urllib3", "dateutil", "six", "jmespath")
CHILD = """
import sys
sys.path[:0] = sys.argv[1:3]
import json, sysconfig
from superdl.lambda_prefetch.handler import handler
class Context:
    function_name = aws_request_id = "packaged"
    def get_remaining_time_in_millis(self):
        return 60000
answers = [handler(json.loads(line), Context()) for line in sys.stdin]
homes = (*sys.argv[1:3], sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
files = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
strangers = [file for file in files if not file.startswith(homes) or "site-packages" in file]
print(json.dumps({"answers": answers, "strangers": strangers}))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The package of this Python and machine, unzipped."""
    if platform.system() != "Linux":
        pytest.skip("the package is Linux's")
    folder = tmp_path_factory.mktemp("package")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = build(folder / "one.zip", Platform(python, platform.machine()))
    assert build(folder / "elsewhere" / "two.zip", Platform(python, platform.machine())) == digest
    with zipfile.ZipFile(folder / "one.zip") as archive:
        archive.extractall(folder / "task")
    return folder / "task"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    """What Lambda's runtime has, taken from this environment."""
    folder = tmp_path_factory.mktemp("runtime")
    for name in IN_LAMBDAS_RUNTIME:
        origin = Path(importlib.util.find_spec(name).origin)
        place = origin.parent if origin.name == "__init__.py" else origin
        (folder / place.name).symlink_to(place)
    return folder


@pytest.mark.slow
def test_the_package_does_what_the_checkout_does(bundle, runtime, object_store, valkey, tmp_path):
    bucket = object_store.directory / "data"
    bucket.mkdir()
    (bucket / "a.jpg").write_bytes(encode(pixels(seed=1), "JPEG"))
    (bucket / "b.png").write_bytes(encode(pixels(seed=2), "PNG"))
    (bucket / "bad.jpg").write_bytes(b"no image")
    versions = {path.name: _etag(path) for path in sorted(bucket.iterdir())}
    recipe = Recipe([{"op": "resize", "size": 20}, {"op": "center_crop", "size": 16}])
    request = request_for("s3://data", versions, valkey.unix_url, recipe)
    warm = {"super_warm": 1, "cache": valkey.unix_url}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CHILD, str(bundle), str(runtime)],
        input=f"{json.dumps(warm)}\n{request.to_json()}\n",
        cwd=tmp_path,
        env={**os.environ, "SUPER_LOG_LEVEL": "ERROR", "POWERTOOLS_METRICS_DISABLED": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    warmed, answer = said["answers"]
    assert said["strangers"] == []
    assert warmed["function_version"] == metadata.version("superdl")
    assert warmed["golden"] == decoder_fingerprint()
    assert PrefetchResult.from_mapping(answer).outcomes == ("cached", "cached", "tombstone")
    packaged = [raw_record(valkey, request, index) for index in range(2)]
    arrays = [array_of(valkey, request, index) for index in range(2)]
    with valkey.client() as client:
        client.flushall()
    assert run(request).outcomes == ("cached", "cached", "tombstone")
    for index in range(2):
        np.testing.assert_array_equal(array_of(valkey, request, index), arrays[index])
        assert len(packaged[index]) == len(raw_record(valkey, request, index))


def _etag(path):
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
