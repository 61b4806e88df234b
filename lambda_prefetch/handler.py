"""The function's entry point, ``handler(event, context)``, called by every executor."""

from __future__ import annotations

import functools
import gc
import os
import reprlib
import time
from typing import TYPE_CHECKING, Any

from superdl.lambda_prefetch.decode import configure_pillow
from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from superdl.lambda_prefetch.image_steps import Program
from superdl.lambda_prefetch.invocation import Invocation
from superdl.lambda_prefetch.members import need_pyarrow
from superdl.lambda_prefetch.pipeline import produce
from superdl.lambda_prefetch.push import cache_connections
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.telemetry import log_invocation
from superdl.lambda_prefetch.transfers import restore, save
from superdl.super_wire.display import clean_text, keep_secrets_out_of_logs
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.ids import FieldColumns, sample_ids, split_ids
from superdl.super_wire.objects import ObjectError, open_bucket
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import PrefetchRequest, PrefetchResult, RequestKind, is_row
from superdl.super_wire.store import PackMeta, collection_of

if TYPE_CHECKING:
    from superdl.super_wire.objects import Bucket

WARM_VERSION = 1

_ANSWER_MARGIN_S = 2.0  # before the function's time limit, to finish running work and return the result

_MAX_MESSAGE = 2000

own_fingerprint = functools.cache(decoder_fingerprint)
_warm_processes: set[int] = set()  # a forked process starts cold again


def handler(event: object, context: Any) -> dict[str, Any]:
    """Handle a prefetch request or a warm event.

    Args:
        event: a :class:`superdl.super_wire.request.PrefetchRequest` as JSON values, or
            ``{"super_warm": 1, "cache": address or ""}`` to connect to the cache in advance.
        context: Lambda's context, or an object with the same ``function_name``, ``aws_request_id`` and
            ``get_remaining_time_in_millis()``. It also needs ``memory_limit_in_mb`` if memory is billed,
            and ``end_when_answered()`` if this process may be terminated when a decoder hangs.

    Returns:
        A :class:`superdl.super_wire.request.PrefetchResult` as JSON values, or for a warm event
            ``super_warm``, ``function_version``, ``golden`` and ``cold_start``.

    Raises:
        ConfigError: the request is invalid, or the function's settings forbid it.
        CacheError: the cache named in a warm event refuses the connection.
    """
    try:
        return _answer(event, context)
    except SuperError as error:
        # The message may quote long values of the event. Results are bounded and in UTF-8.
        message = clean_text(str(error))[:_MAX_MESSAGE]
        if message == str(error):
            raise
        raise type(error)(message) from None


def _answer(event: object, context: Any) -> dict[str, Any]:
    begun_ns = time.perf_counter_ns()
    if not isinstance(event, dict):
        raise ConfigError(
            f"an event must be a prefetch request or warm event as a JSON object, not {reprlib.repr(event)}"
        )
    settings = FunctionSettings.from_environment()
    cold_start = os.getpid() not in _warm_processes
    if cold_start:
        _warm_processes.add(os.getpid())
        configure_pillow(settings.text_bytes)
        keep_secrets_out_of_logs()
    if "super_warm" in event:
        return _warm(event, settings, cold_start=cold_start)
    return _prefetch(event, context, settings, cold_start=cold_start, begun_ns=begun_ns).to_mapping()


def _warm(event: dict[str, Any], settings: FunctionSettings, *, cold_start: bool) -> dict[str, Any]:
    if event["super_warm"] != WARM_VERSION:
        raise ConfigError(
            f"this function supports warm event version {WARM_VERSION}, not {event['super_warm']!r}. "
            "Deploy the same version of SUPER everywhere"
        )
    cache = event.get("cache", "")
    if not isinstance(cache, str):
        raise ConfigError(f"a warm event's cache must be an address or empty, not {reprlib.repr(cache)}")
    if cache:
        with cache_connections(cache, settings) as nodes:
            if not nodes.opened:
                nodes.connect()
    golden = own_fingerprint()
    gc.freeze()  # full collections skip everything loaded so far
    return {
        "super_warm": WARM_VERSION,
        "function_version": installed_version(),
        "golden": golden,
        "cold_start": cold_start,
    }


def _prefetch(
    event: dict[str, Any], context: Any, settings: FunctionSettings, *, cold_start: bool, begun_ns: int
) -> PrefetchResult:
    request = PrefetchRequest.from_mapping(event)
    _check_deployed(request)
    recipe = Recipe.from_json(request.recipe)
    _check_ids(request, recipe)
    remaining_s = context.get_remaining_time_in_millis() / 1000
    # Leave time to return the result before the platform ends the function.
    expires_at_s = time.monotonic() + min(request.expires_in_s, remaining_s - _ANSWER_MARGIN_S)
    invocation = Invocation(request, settings, expires_at_s)
    if request.kind is RequestKind.RESTORE:
        restore(invocation)
    elif request.kind is RequestKind.SAVE:
        save(invocation, _pack_meta(request, recipe, settings))
    else:
        program = Program(
            recipe,
            bucket=request.id_bucket,
            prefix=request.prefix,
            epoch=request.epoch,
            limit_pixels=settings.max_pixels or request.limits.image_pixels,
            step_modules=settings.step_modules,
        )
        # Fail the whole request at once, instead of each sample.
        if any(map(is_row, set(request.encodings))):
            need_pyarrow()
        bucket = open_source(request.bucket, settings)
        produce(invocation, program, bucket, _pack_meta(request, recipe, settings))
    if invocation.stuck and hasattr(context, "end_when_answered"):  # not on Lambda
        context.end_when_answered()
    result = PrefetchResult(
        request_id=request.request_id,
        function_version=installed_version(),
        cold_start=cold_start,
        **invocation.fields(),
        duration_us=(time.perf_counter_ns() - begun_ns) // 1000,
        memory_mb=_memory_mb(context),
    )
    log_invocation(result, context, settings.log_level)
    return result


def _pack_meta(request: PrefetchRequest, recipe: Recipe, settings: FunctionSettings) -> PackMeta | None:
    """Return the fields that all records of a pack share, or ``None`` if no pack should be written."""
    # A random recipe's samples are useless in any other epoch.
    if not request.kind.writes_pack or recipe.random or settings.store_read_only:
        return None
    collection = collection_of(request.id_bucket, recipe.digest)
    fingerprint = own_fingerprint() if request.kind.decodes else request.golden
    return PackMeta(collection, request.id_bucket, recipe.json, fingerprint, installed_version())


def open_source(bucket: str, settings: FunctionSettings) -> Bucket:
    """Open a source such as ``s3://name``. Raises ``ConfigError`` if the settings do not allow it."""
    try:
        return open_bucket(bucket, settings.http_hosts, settings.file_roots)
    except ObjectError as error:
        raise ConfigError(f"this function cannot read {bucket}: {error}") from error


def _memory_mb(context: Any) -> int:
    # Lambda's limit is text.
    limit_mb = getattr(context, "memory_limit_in_mb", None)
    return int(limit_mb) if limit_mb is not None and str(limit_mb).isdecimal() else 0


def _check_deployed(request: PrefetchRequest) -> None:
    expected, own = request.function_version[:80], installed_version()
    if expected and expected != own:
        raise ConfigError(
            f"this function runs SUPER {own}, but the coordinator runs SUPER {expected}. Deploy version "
            f"{expected} of the function, or start version {own} of the coordinator"
        )
    if request.golden and request.kind.decodes and request.golden != own_fingerprint():
        raise ConfigError(
            f"this function's decoder has the fingerprint {own_fingerprint()}, but the request expects "
            f"{request.golden[:80]}: the function was redeployed while the coordinator was running. Deploy "
            "the previous function, or restart the coordinator with an empty cache"
        )


def _check_ids(request: PrefetchRequest, recipe: Recipe) -> None:
    if request.fields != recipe.beside:
        raise ConfigError(
            f"the request has the fields {request.fields}, but its recipe has {recipe.beside}. Deploy the "
            "same version of SUPER everywhere"
        )
    count, parts = request.count, []
    keys, versions, members = (
        [text.encode() for text in texts] for texts in (request.id_keys, request.versions, request.members)
    )
    for at in range(0, len(keys), count):
        part = slice(at, at + count)
        parts.append((keys[part], versions[part], members[part] if any(members[part]) else None))
    fields = [FieldColumns(name, *part) for name, part in zip(request.fields, parts[1:], strict=True)]
    randomness = (recipe.augment_seed, request.epoch) if recipe.random else None
    own_keys, own_versions, own_members = parts[0]
    derived = sample_ids(
        request.id_bucket, own_keys, own_versions, recipe.digest, randomness, own_members, fields
    )
    # Comparing all ids at once is much faster than comparing each.
    if derived != request.ids:
        derived_ids = split_ids(derived)
        at = next(at for at in range(count) if request.sample_id(at) != derived_ids[at])
        raise ConfigError(
            f"{request.bucket}/{request.name_of(at)} has the id {request.sample_id(at).hex()} in the "
            f"request, but {derived_ids[at].hex()} in this function. Deploy the same version of SUPER "
            "everywhere"
        )
