"""Shipped text step: token ids, by the tokenizers of Hugging Face's models."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.lambda_prefetch.custom_steps import custom_step
from superdl.lambda_prefetch.sources import spoiled

try:
    from tokenizers import Tokenizer
except ImportError as error:
    raise ImportError("texts need the package tokenizers: pip install superdl[text]") from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Making tokens takes about a hundred times a text's bytes.
MAX_TEXT_BYTES = 16 * 2**20

_MAX_FILE_BYTES = 128 * 2**20
_FILES = 4  # tokenizers that a function keeps


def _check(*, file: str, sha256: str, **_: object) -> None:
    _tokenizer(file, sha256)


@custom_step("1", check=_check)
def tokenize(
    array: NDArray[Any], *, file: str, sha256: str, length: int = 0, packed: bool = False, pad_id: int = 0
) -> NDArray[Any]:
    """Return the token ids of a text in UTF-8, int32, with the tokenizer's own special tokens.

    Args:
        array: the text's bytes.
        file: the path of the tokenizer's JSON, on the function's machine.
        sha256: of that file, in hex.
        length: 0 gives all tokens, (tokens,); else the first ``length`` of them, padded to (length,).
        packed: cut nothing off: (rows, length), with the last row padded.
        pad_id: the padding's id.
    """
    if array.size > MAX_TEXT_BYTES:
        raise spoiled("too_large", f"a text of {array.size} bytes is over the limit of {MAX_TEXT_BYTES}")
    try:
        text = array.tobytes().decode()
    except UnicodeDecodeError as error:
        raise spoiled("undecodable", f"it is no text in UTF-8: {error}") from error
    ids = np.array(_tokenizer(file, sha256).encode(text).ids, dtype=np.int32)
    if not length:
        return ids
    rows = max(1, -(-ids.size // length)) if packed else 1
    padded = np.full(rows * length, pad_id, dtype=np.int32)
    padded[: ids.size] = ids[: padded.size]
    return padded.reshape(rows, length) if packed else padded


@functools.lru_cache(maxsize=_FILES)
def _tokenizer(file: str, sha256: str) -> Tokenizer:
    if not Path(file).is_file():
        raise FileNotFoundError(f"the tokenizer {file} is no regular file here")
    with Path(file).open("rb") as opened:
        data = opened.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"the tokenizer {file} is over the limit of {_MAX_FILE_BYTES} bytes")
    digest = hashlib.sha256(data).hexdigest()
    # Another tokenizer would give other samples under the same ids.
    if digest != sha256:
        raise ValueError(f"the tokenizer {file} is another than the recipe's, of SHA-256 {sha256}")
    tokenizer: Tokenizer = Tokenizer.from_str(data.decode())
    if getattr(tokenizer.model, "dropout", None):
        raise ValueError(f"the tokenizer {file} has dropout: a text would have other tokens each time")
    # The step's `length` decides both.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
