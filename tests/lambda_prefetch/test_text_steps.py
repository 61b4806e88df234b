"""The step on texts gives what the tokenizers library gives, and refuses what is no text."""

from __future__ import annotations

import numpy as np
import pytest

from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.errors import ConfigError, RecipeError
from superdl.super_wire.recipe import Recipe

tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["", "one", "seven seven two unknown", "three " * 1000, "zwei \u00fcber drei"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer that has learnt its parts; it would cut off and pad by itself."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["?"], show_progress=False)
    made.train_from_iterator(["one two three four five six seven"], trainer)
    made.enable_truncation(3)
    made.enable_padding(length=5)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def run(recipe, data):
    program = Program(recipe, bucket="b", epoch=0, limit_pixels=1, step_modules=frozenset())
    return program.make(data, "key")


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_the_librarys(tokenizer, text):
    own = tokenizers.Tokenizer.from_file(str(tokenizer))
    own.no_truncation()
    own.no_padding()
    ids = own.encode(text).ids
    ragged = run(Recipe.text(tokenizer), text.encode())
    assert ragged.dtype == np.int32
    assert ragged.tolist() == ids

    cut = run(Recipe.text(tokenizer, length=7, pad_id=9), text.encode())
    assert cut.tolist() == [*ids[:7], *[9] * (7 - len(ids))]

    packed = run(Recipe.text(tokenizer, length=7, packed=True, pad_id=9), text.encode())
    assert packed.shape[1] == 7
    assert packed.ravel()[: len(ids)].tolist() == ids
    assert (packed.ravel()[len(ids) :] == 9).all()
    assert packed.size - len(ids) < 7 or not ids


def test_what_is_no_text_is_a_tombstone(tokenizer):
    for data, reason in ((b"one \xff", "undecodable"), (b" " * (16 * 2**20 + 1), "too_large")):
        with pytest.raises(SampleFailedError) as failed:
            run(Recipe.text(tokenizer), data)
        assert failed.value.reason == reason


def test_a_tokenizer_that_was_replaced_or_is_gone_is_refused(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer.read_bytes())
    recipe = Recipe.text(path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"another than the recipe's"):
        run(recipe, b"one")
    path.unlink()
    with pytest.raises(ConfigError, match=r"FileNotFoundError"):
        run(recipe, b"one")
    with pytest.raises(RecipeError, match=r"cannot be read"):
        Recipe.text(path)


def test_a_tokenizer_that_draws_is_refused(tmp_path):
    drawing = tokenizers.Tokenizer(
        tokenizers.models.BPE({"o": 0, "n": 1, "on": 2}, [("o", "n")], dropout=0.5)
    )
    path = tmp_path / "tokenizer.json"
    drawing.save(str(path))
    with pytest.raises(ConfigError, match=r"has dropout"):
        run(Recipe.text(path), b"on on on")


def test_one_tokenizer_at_two_places_gives_the_same_samples(tokenizer, tmp_path):
    moved = tmp_path / "moved.json"
    moved.write_bytes(tokenizer.read_bytes())
    assert Recipe.text(moved).digest == Recipe.text(tokenizer).digest
    assert Recipe.text(moved, length=3).digest != Recipe.text(tokenizer).digest
    moved.write_bytes(tokenizer.read_bytes() + b" ")
    assert Recipe.text(moved).digest != Recipe.text(tokenizer).digest


@pytest.mark.parametrize("wrong", [{"packed": True}, {"length": 0}, {"pad_id": 2**31}])
def test_numbers_are_checked(tokenizer, wrong):
    with pytest.raises(RecipeError, match=r"length|pad_id"):
        Recipe.text(tokenizer, **wrong)
