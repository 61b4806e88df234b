"""Fills real stores by the real function, and asks ``superdl store`` as a shell would."""

from __future__ import annotations

import json
from dataclasses import replace

from superdl.coordinator.catalog import list_source
from superdl.main import main
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import RequestKind
from tests.fixtures.images import SIDE
from tests.lambda_prefetch.prefetching import Context, request_for, run

__all__ = ["RECIPE", "asked", "fill"]

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
_AT_A_TIME = 16


def fill(
    monkeypatch,
    store,
    images,
    cache,
    recipe=RECIPE,
):
    """What the function answered, asked for all images, 16 in a request; one pack is written for each."""
    monkeypatch.setenv("SUPER_STORE", store)
    catalog, answers = list_source(str(images)), []
    samples = list(zip(map(bytes.decode, catalog.keys), map(bytes.decode, catalog.versions), strict=True))
    for at in range(0, len(samples), _AT_A_TIME):
        some = dict(samples[at : at + _AT_A_TIME])
        request = request_for(catalog.bucket, some, cache, recipe)
        answers.append(run(replace(request, kind=RequestKind.DECODE_TO_STORE, store=store), Context()))
    monkeypatch.delenv("SUPER_STORE")
    assert all(answer.pack and not answer.store_trouble for answer in answers), answers
    return answers


def asked(capsys, *words):
    """The exit code of ``superdl store`` and what it printed as JSON."""
    capsys.readouterr()  # what functions log goes there too
    code = main(["store", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)
