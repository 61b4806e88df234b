"""Create images, prefetch requests and a Lambda context, and read records back as arrays."""

import io
import json
import time
from dataclasses import replace

import numpy as np
from PIL import Image

from superdl.lambda_prefetch.fetching import Fetchers
from superdl.lambda_prefetch.handler import handler
from superdl.lambda_prefetch.image_steps import Program
from superdl.lambda_prefetch.invocation import Invocation
from superdl.lambda_prefetch.members import content_of
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.ids import id_bucket, sample_ids
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import read_tombstone, unpack
from superdl.super_wire.request import Limits, PrefetchRequest, PrefetchResult, RequestKind

PLAIN = Recipe([])


class Context:
    """A handler's context, as on Lambda."""

    function_name = "super-prefetch"
    aws_request_id = "request-1"

    def __init__(self, remaining_s=60.0):
        self.remaining_s = remaining_s

    def get_remaining_time_in_millis(self):
        return int(self.remaining_s * 1000)


def pixels(height=37, width=53, seed=0):
    """Return a smooth image with some noise, uint8 of shape (height, width, 3)."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([x * 5 + y, 200 - y * 4, np.hypot(x - 20, y - 9) * 6], axis=-1)
    return np.clip(waves + random.normal(0, 4, waves.shape), 0, 255).astype(np.uint8)


def encode(image, kind="PNG", **options):
    """Encode an image in a file format."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def file_version(path):
    """Return a file's version, as in the catalog."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def request_for(
    bucket, versions, cache, recipe=PLAIN, *, epoch=0, limits=None, expires_in_s=60.0, alias="", prefix=""
):
    """Return a request for keys in the given versions, with correct ids."""
    randomness = (recipe.augment_seed, epoch) if recipe.random else None
    keys = [key.removeprefix(prefix).encode() for key in versions]
    listed = [version.encode() for version in versions.values()]
    return PrefetchRequest(
        request_id="test",
        bucket=bucket,
        recipe=recipe.json,
        epoch=epoch,
        cache=cache,
        expires_in_s=expires_in_s,
        keys=tuple(versions),
        versions=tuple(versions.values()),
        ids=sample_ids(id_bucket(bucket, alias), keys, listed, recipe.digest, randomness),
        limits=limits or Limits(),
        alias=alias,
        prefix=prefix,
    )


def member(key, version, name, offset, length, encoding=""):
    """Return a row of a key list."""
    row = {"key": key, "version": version, "member": str(name), "offset": offset, "length": length}
    return row | {"encoding": encoding}


def member_request(bucket, rows, cache, recipe=PLAIN, **options):
    """Return a request for the members in rows of a key list, with correct ids."""
    plain = request_for(bucket, {}, cache, recipe, **options)
    columns = {
        name: tuple(row[name] for row in rows) for name in ("key", "version", "member", "offset", "length")
    }
    texts = (map(str.encode, columns[name]) for name in ("key", "version"))
    randomness = (recipe.augment_seed, plain.epoch) if recipe.random else None
    ids = sample_ids(bucket, *texts, recipe.digest, randomness, map(str.encode, columns["member"]))
    encodings = tuple(row.get("encoding", "") for row in rows)
    return replace(
        plain,
        keys=columns["key"],
        versions=columns["version"],
        ids=ids,
        members=columns["member"],
        member_offsets=columns["offset"],
        member_lengths=columns["length"],
        encodings=encodings if any(encodings) else (),
    )


def file_request(root, keys, cache, recipe=PLAIN, **options):
    """Return a request for files below ``root``. Missing files get a version, too."""
    versions = {
        key: file_version(root / key) if (root / key).exists() else "10-1234567890123456789" for key in keys
    }
    return request_for(f"file://{root.resolve()}", versions, cache, recipe, **options)


def restore_of(request, packs, pack_of, results):
    """Return a request to restore all samples of a request: sample ``n`` from ``packs[pack_of[n]]``.

    ``results`` are the results of the requests that wrote these packs, each for the same samples.
    """
    placed = [(results[place], n) for n, place in enumerate(pack_of)]
    return replace(
        request,
        kind=RequestKind.RESTORE,
        packs=tuple(packs),
        pack_of=tuple(pack_of),
        offsets=tuple(result.offsets[n] for result, n in placed),
        lengths=tuple(result.lengths[n] for result, n in placed),
    )


def program_of(recipe, *, epoch=0, limit_pixels=10**6, modules=()):
    """Return a program that runs a recipe."""
    named = {"bucket": "b", "epoch": epoch, "limit_pixels": limit_pixels}
    return Program(recipe, **named, step_modules=frozenset(modules))


def run(request, context=None):
    """Run a request, and parse the result as the coordinator does."""
    event = json.loads(request.to_json())
    answer = json.loads(json.dumps(handler(event, context or Context())))
    return PrefetchResult.from_mapping(answer)


def wait_until(condition, patience_s=20.0):
    """Wait for another thread or process. Fails after ``patience_s`` seconds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


def raw_record(valkey, request, index):
    """Return a record's bytes in the cache."""
    with valkey.client() as client:
        return client.get(f"super:r1:{request.sample_id(index).hex()}")


def array_of(valkey, request, index):
    """Return the array of a cached record."""
    record = raw_record(valkey, request, index)
    assert record is not None
    return unpack(record)[1]


def tombstone_of(valkey, request, index):
    """Return a cached tombstone."""
    record = raw_record(valkey, request, index)
    assert record is not None
    return read_tombstone(record)


class _Pusher:
    broken = ""


def fetched(request_, source):
    """Fetch a request. Return content or failure by index, and the number of GETs."""
    invocation, found = Invocation(request_, FunctionSettings.from_environment(), time.monotonic() + 60), {}
    with Fetchers(invocation, source, _Pusher()) as fetchers:
        while (arrived := fetchers.next()) is not None:
            assert arrived.index not in found
            try:
                if arrived.failure is not None:
                    raise arrived.failure
                found[arrived.index] = content_of(request_, arrived.index, arrived.data)
            except SampleFailedError as failure:
                found[arrived.index] = failure
            fetchers.release(arrived)
        assert fetchers._budget.used_bytes == 0
    return found, fetchers.requests


def outcomes_of(found):
    """Return the outcome of each sample, by index."""
    return [getattr(found[place], "outcome", "whole") for place in range(len(found))]
