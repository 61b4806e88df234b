"""Hostile input for the function: near-valid requests and damaged images.

Each call makes an input from its random generator and tries it. It raises if the outcome is untyped,
unbounded or late.
"""

import contextlib
import functools
import io
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from superdl.lambda_prefetch.decode import FORMATS
from superdl.lambda_prefetch.handler import handler
from superdl.lambda_prefetch.image_steps import Program
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.errors import CacheError, ConfigError
from superdl.super_wire.ids import sample_ids, split_ids
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import pack
from superdl.super_wire.request import Outcome, PrefetchResult, RequestKind
from superdl.super_wire.store import DirectoryStore, PackMeta, collection_of
from tests.hostile.fuzz_wire import any_value, mutate
from tests.lambda_prefetch.prefetching import Context, encode, file_request, pixels

_LONGEST_S = 10.0  # per input; a slower one would block the function for others
_MAX_MESSAGE = 4000  # in an error message
_LIMIT_PIXELS = 10**6
_SIDE = 16
_CACHE = "unix:///super-fuzzing-has-no-such-cache"
_REASONS = frozenset({"empty", "not_an_image", "too_large", "undecodable"})
_RECIPES = (
    Recipe([]),
    Recipe.image(resize=_SIDE, crop=_SIDE),
    Recipe([{"op": "random_resized_crop", "size": _SIDE}, {"op": "horizontal_flip"}]),
    Recipe([{"op": "reduced_decode", "size": _SIDE}, {"op": "resize", "size": _SIDE}]),
    Recipe.mask(),
    Recipe.mask(resize=_SIDE, crop=_SIDE),
    Recipe([{"op": "mask"}, {"op": "pad", "padding": 2, "mode": "edge"}, {"op": "vertical_flip"}]),
)
_NUMBERS = frozenset({np.dtype(name) for name in ("u1", "<u2", "<i4", "<f4")})  # of masks


_KEYS = ["a.png", "b.jpg", "gone.png"]


@functools.cache
def _source():
    """A directory with images, removed when this process ends."""
    directory = tempfile.TemporaryDirectory(prefix="super-fuzz-")
    root = Path(directory.name).resolve()
    (root / "a.png").write_bytes(encode(pixels(9, 12)))
    (root / "b.jpg").write_bytes(b"no image")
    return root, directory


@functools.cache
def _restore():
    """A store with one pack, and a request for everything in it."""
    root, _ = _source()
    request, recipe = file_request(root, _KEYS, _CACHE), Recipe([])
    store = DirectoryStore.open(root / "store", create=True)
    meta = PackMeta(collection_of(request.bucket, recipe.digest), request.bucket, recipe.json, "", "")
    begun = store.begin_pack(meta)
    ids = split_ids(request.ids)
    records = [pack(pixels(9, 12), sample_id) for sample_id in ids]
    offsets = [begun.add(sample_id, *record) for sample_id, record in zip(ids, records, strict=True)]
    lengths = [len(header) + payload.nbytes for header, payload in records]
    return store, replace(
        request,
        kind=RequestKind.RESTORE,
        store=store.address,
        packs=(begun.commit(),),
        pack_of=(0,) * len(_KEYS),
        offsets=tuple(offsets),
        lengths=tuple(lengths),
    )


def _mutated_event(random):
    root, _ = _source()
    recipe = random.choice(_RECIPES)
    event = json.loads(file_request(root, _KEYS, _CACHE, recipe).to_json())
    event["store"] = random.choice(("", _restore()[0].address))
    if random.random() < 0.3:
        event = json.loads(_restore()[1].to_json())
    elif random.random() < 0.2:
        event = {"super_warm": 1, "cache": "" if random.random() < 0.5 else _CACHE}
    for _ in range(random.randrange(4)):
        name = random.choice([*event, "super_warm", "super_request", "cache"])
        held = event.get(name)
        how = random.randrange(4)
        if how == 0:
            event.pop(name, None)
        elif how == 1 and isinstance(held, (list, dict)) and held:
            places = list(held) if isinstance(held, dict) else range(len(held))
            held[random.choice(places)] = any_value(random)
        else:
            event[name] = any_value(random)
    if random.random() < 0.5:  # or the check of ids would reject them all
        _name_anew(event)
    return any_value(random) if random.random() < 0.05 else event


def _name_anew(event):
    """Recompute the sample ids to match the event, where its fields permit."""
    try:
        recipe = Recipe.from_json(event["recipe"])
        keys, versions = ([text.encode() for text in event[name]] for name in ("keys", "versions"))
        randomness = (recipe.augment_seed, event["epoch"]) if recipe.random else None
        ids = sample_ids(event["bucket"], keys, versions, recipe.digest, randomness)
        event["ids"] = ids.hex()
    except (AttributeError, ConfigError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return


def _try_event(random):
    (root, _), (store, restore) = _source(), _restore()
    event = _mutated_event(random)
    shown = repr(event)[:_MAX_MESSAGE]
    began_s = time.monotonic()
    try:
        with (
            mock.patch.dict(os.environ, {"SUPER_FILE_ROOTS": str(root), "SUPER_STORE": store.address}),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            answer = handler(event, Context(30.0))
    except (ConfigError, CacheError) as error:
        words = str(error)
        assert len(words) <= _MAX_MESSAGE, f"{len(words)} characters for {shown}"
        # Messages go to logs and tombstones, which are UTF-8.
        assert words == words.encode(errors="replace").decode(), f"{words!r} for {shown}"
    else:
        reply = json.loads(json.dumps(answer, allow_nan=False))
        if "super_warm" not in reply:
            result = PrefetchResult.from_mapping(reply)
            assert all(len(message) <= _MAX_MESSAGE for message in result.messages.values()), shown
            assert Outcome.CACHED not in result.outcomes, shown  # there is no cache
            assert len(result.store_trouble) <= _MAX_MESSAGE, shown
            assert set(store.packs()) == set(restore.packs), shown
    assert time.monotonic() - began_s < _LONGEST_S, f"slow input: {shown}"


@functools.cache
def _images():
    """Valid images of all formats and of most of their variants."""
    colour = Image.fromarray(pixels(24, 40))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "maker"
    frames = [Image.fromarray(pixels(24, 40, seed=n)) for n in range(3)]
    deep = Image.fromarray(np.arange(24 * 40, dtype=np.uint16).reshape(24, 40))
    kinds = [
        (colour, "JPEG", {}),
        (colour, "JPEG", {"progressive": True, "exif": exif, "comment": b"words"}),
        (colour, "JPEG", {"restart_marker_blocks": 1, "subsampling": 0, "icc_profile": b"x" * 200}),
        (colour.convert("CMYK"), "JPEG", {}),
        (colour.convert("L"), "JPEG", {}),
        (colour, "PNG", {"exif": exif}),
        (colour.quantize(16), "PNG", {"transparency": bytes(range(16))}),
        (colour.convert("RGBA"), "PNG", {}),
        (deep, "PNG", {}),
        (frames[0], "PNG", {"save_all": True, "append_images": frames[1:]}),
        (colour.quantize(16), "GIF", {"save_all": True, "append_images": frames[1:]}),
        (colour, "BMP", {}),
        (colour.quantize(16), "BMP", {}),
        (colour, "PPM", {}),
        (colour.convert("L"), "PPM", {}),
        (colour, "TIFF", {"compression": "raw", "exif": exif}),
        (colour, "TIFF", {"compression": "tiff_lzw"}),
        (colour, "TIFF", {"compression": "jpeg"}),
        (deep, "TIFF", {"compression": "tiff_adobe_deflate"}),
        (colour.convert("1"), "TIFF", {"compression": "group4"}),
        (colour, "WEBP", {}),
        (colour.convert("RGBA"), "WEBP", {"lossless": True, "exif": exif}),
        (frames[0], "WEBP", {"save_all": True, "append_images": frames[1:]}),
    ]
    kinds += [(colour, kind, {}) for kind in ("AVIF", "JPEG2000") if kind in FORMATS]
    assert {kind for _, kind, _ in kinds} == set(FORMATS)
    return tuple(encode(image, kind, **options) for image, kind, options in kinds)


def _mutated_bytes(random):
    """An image with a few changes, mostly near the start, which decoders trust, or with part of another."""
    data = random.choice(_images())
    head = random.choice((32, 256, 2**20))
    data = mutate(random, data[:head]) + data[head:]
    if random.random() < 0.3:
        other = random.choice(_images())
        at, piece, size = (random.randrange(n) for n in (len(data) + 1, len(other), 200))
        new = random.choice((other[piece : piece + size], data[at : at + size] * random.randrange(1, 300)))
        data = data[:at] + new + data[at:]
    return data


def _try_image(random):
    data, recipe = _mutated_bytes(random), random.choice(_RECIPES)
    program = Program(recipe, bucket="b", epoch=0, limit_pixels=_LIMIT_PIXELS, step_modules=frozenset())
    began_s = time.thread_time()
    try:
        array = program.make(data, "key")
    except SampleFailedError as failure:
        verdict = (failure.outcome, failure.reason in _REASONS, len(failure.message) <= _MAX_MESSAGE)
        assert verdict == (Outcome.TOMBSTONE, True, True), (verdict, data)  # a permanent failure
    except MemoryError:
        pass  # allowed: a function with more memory may decode it
    else:
        if recipe.steps and recipe.steps[0]["op"] == "mask":
            assert array.dtype in _NUMBERS, data
            assert array.ndim == 2, data
        else:
            assert (array.dtype, array.ndim, array.shape[-1]) == (np.uint8, 3, 3), data
        assert 0 < array.size <= 3 * _LIMIT_PIXELS, data
    assert time.thread_time() - began_s < _LONGEST_S, f"slow input: {data!r}"


FUZZERS = {"handler events": _try_event, "images": _try_image}
