"""The whole function: it reads real files and fills a real cache, or refuses with a typed error."""

import json
import shutil
import time

import pytest
from PIL import Image

from superdl.lambda_prefetch.handler import handler
from superdl.super_wire.errors import CacheUnreachableError, ConfigError
from superdl.super_wire.objects.directory import Directory
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Limits
from tests.lambda_prefetch.prefetching import (
    Context,
    array_of,
    encode,
    file_request,
    pixels,
    raw_record,
    run,
    tombstone_of,
)

GOOD = [f"{n}.png" for n in range(5)]


def test_the_wall_clock_does_not_matter(root, valkey, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert set(run(file_request(root, GOOD, valkey.unix_url)).outcomes) == {"cached"}


def event_of(root, valkey, keys=GOOD, **changes):
    return json.loads(file_request(root, list(keys), valkey.unix_url).to_json()) | changes


def test_an_alias_gives_equal_ids_and_random_pixels(root, tmp_path_factory, valkey):
    recipe = Recipe([{"op": "random_resized_crop", "size": 16}, {"op": "horizontal_flip"}], augment_seed=5)
    deeper = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(root, deeper / "train")  # with its times
    first = file_request(root, GOOD, valkey.unix_url, recipe, alias="pets")
    keys = [f"train/{name}" for name in GOOD]
    second = file_request(deeper, keys, valkey.unix_url, recipe, alias="pets", prefix="train/")
    assert first.ids == second.ids
    made = []
    for request in (first, second):
        assert run(request).outcomes == ("cached",) * 5
        made.append([array_of(valkey, request, n).tobytes() for n in range(5)])
        with valkey.client() as client:
            client.flushall()
    assert made[0] == made[1]
    assert first.ids != file_request(root, GOOD, valkey.unix_url, recipe).ids


WHOLE = encode(pixels(300, 300), "JPEG")
SPOILED = {
    "truncated.jpg": (WHOLE[: len(WHOLE) // 2], "undecodable"),
    "zero.jpg": (b"", "empty"),
    "text.jpg": (b"this is no image", "not_an_image"),
    "of_another_format.jpg": (encode(pixels(), "PDF"), "not_an_image"),
    "bomb.png": (encode(Image.new("1", (3000, 3000))), "too_large"),
    "heavy.bmp": (encode(pixels(400, 400), "BMP"), "too_large"),
}


@pytest.mark.parametrize("name", list(SPOILED))
def test_an_undecodable_object_becomes_a_tombstone_with_its_key(root, valkey, name):
    body, reason = SPOILED[name]
    (root / "cats").mkdir()
    (root / "cats" / name).write_bytes(body)
    limits = Limits(object_bytes=300_000, image_pixels=1_000_000)
    request = file_request(root, ["0.png", f"cats/{name}", "1.png"], valkey.unix_url, limits=limits)
    result = run(request)
    assert result.outcomes == ("cached", "tombstone", "cached")
    tombstone = tombstone_of(valkey, request, 1)
    assert (tombstone.key, tombstone.reason, tombstone.permanent) == (f"cats/{name}", reason, True)
    assert f"cats/{name}" in tombstone.message
    assert result.messages == {"1": tombstone.message}
    assert result.record_bytes[1] == len(raw_record(valkey, request, 1))


def test_no_sample_is_started_shortly_before_the_function_times_out(root, valkey):
    request = file_request(root, GOOD, valkey.unix_url)
    assert run(request, Context(remaining_s=1.0)).outcomes == ("expired",) * 5


def test_a_record_over_the_caches_limit_becomes_a_tombstone(root, valkey, monkeypatch):
    monkeypatch.setattr("superdl.lambda_prefetch.pipeline.MAX_BULK_BYTES", 1000)
    request = file_request(root, ["0.png"], valkey.unix_url)
    assert run(request).outcomes == ("tombstone",)
    assert tombstone_of(valkey, request, 0).reason == "too_large"


def test_running_out_of_memory_leaves_no_tombstone(root, valkey, monkeypatch):
    def decode(data, **_):
        raise MemoryError

    monkeypatch.setattr("superdl.lambda_prefetch.image_steps.decode", decode)
    result = run(file_request(root, ["0.png"], valkey.unix_url))
    assert result.outcomes == ("source_error",)
    assert "memory" in result.messages["0"]


def test_expiry_is_checked_before_each_sample(root, valkey, monkeypatch):
    """The request expires while its first sample is read. Nothing is decoded, and no other read starts."""
    monkeypatch.setenv("SUPER_FETCH_THREADS", "1")
    read, expires_in_s = Directory.read, 0.5

    def slow_read(self, *arguments, **options):
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + expires_in_s:
            time.sleep(0.01)
        return read(self, *arguments, **options)

    monkeypatch.setattr(Directory, "read", slow_read)
    request = file_request(root, GOOD, valkey.unix_url, expires_in_s=expires_in_s)
    result = run(request)
    assert set(result.outcomes) == {"expired"}
    assert "before this sample was decoded" in result.messages["0"]
    assert "before this sample was read" in result.messages["1"]


def test_a_request_with_a_wrong_id_is_refused(root, valkey):
    event = event_of(root, valkey)
    event["ids"] = event["ids"][:96] + "0" * 32 + event["ids"][128:]
    with pytest.raises(ConfigError, match=r"3\.png has the id 0{32} in the request"):
        handler(event, Context())
    with valkey.client() as client:
        assert client.dbsize() == 0


def test_only_ids_of_random_recipes_depend_on_the_epoch(root, valkey):
    assert handler(event_of(root, valkey, epoch=4), Context())["outcomes"] == ("cached",) * 5
    recipe = Recipe([{"op": "horizontal_flip"}])
    event = json.loads(file_request(root, GOOD, valkey.unix_url, recipe, epoch=4).to_json())
    with pytest.raises(ConfigError, match="in this function"):
        handler({**event, "epoch": 5}, Context())


def test_a_warm_event_needs_the_right_version_and_a_reachable_cache(tmp_path):
    with pytest.raises(ConfigError, match="warm event version 1, not 2"):
        handler({"super_warm": 2, "cache": ""}, Context())
    with pytest.raises(CacheUnreachableError):
        handler({"super_warm": 1, "cache": f"unix://{tmp_path}/none.sock"}, Context())


def test_a_function_with_another_version_or_decoder_writes_nothing(root, valkey):
    warmed = handler({"super_warm": 1, "cache": ""}, Context())
    golden, version = warmed["golden"], warmed["function_version"]
    for wanted, words in (
        ({"golden": "0" * 32}, f"{golden}.* 0{{32}}"),
        ({"function_version": "9.9.9"}, rf"{version}.* 9\.9\.9"),
    ):
        with pytest.raises(ConfigError, match=words):
            handler(event_of(root, valkey, **wanted), Context())
    with valkey.client() as client:
        assert client.dbsize() == 0
    event = event_of(root, valkey, golden=golden, function_version=version)
    assert handler(event, Context())["outcomes"] == ("cached",) * 5


@pytest.mark.parametrize(("limit", "memory_mb"), [(512, 512), ("1769", 1769), (None, 0)])
def test_a_result_reports_the_billed_memory(root, valkey, limit, memory_mb):
    context = Context()
    context.memory_limit_in_mb = limit  # awslambdaric has it as a text
    assert handler(event_of(root, valkey), context)["memory_mb"] == memory_mb
