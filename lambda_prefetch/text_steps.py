"""Built-in text step, which returns token ids from Hugging Face tokenizers."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.lambda_prefetch.custom_steps import custom_step
from superdl.lambda_prefetch.sources import fatal

try:
    from tokenizers import Tokenizer
except ImportError as error:
    raise ImportError("text steps need the package tokenizers: pip install superdl[text]") from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Tokenizing takes about a hundred times the memory of the text.
MAX_TEXT_BYTES = 16 * 2**20

_MAX_FILE_BYTES = 128 * 2**20
_MAX_TOKENIZERS = 4  # in memory


def _check(*, file: str, sha256: str, **_: object) -> None:
    _tokenizer(file, sha256)


@custom_step("1", check=_check)
def tokenize(
    array: NDArray[Any], *, file: str, sha256: str, length: int = 0, packed: bool = False, pad_id: int = 0
) -> NDArray[Any]:
    """Return the token ids of UTF-8 text as int32, including the tokenizer's special tokens.

    Args:
        array: the text's bytes.
        file: path to the tokenizer's JSON file on the function's machine.
        sha256: SHA-256 of that file in hex.
        length: truncate or pad the result to shape (length,); 0 returns all tokens, as (tokens,).
        packed: return all tokens in shape (rows, length), with the last row padded.
        pad_id: token id for padding.
    """
    if array.size > MAX_TEXT_BYTES:
        raise fatal("too_large", f"the text of {array.size} bytes exceeds the limit of {MAX_TEXT_BYTES}")
    try:
        text = array.tobytes().decode()
    except UnicodeDecodeError as error:
        raise fatal("undecodable", f"not valid UTF-8: {error}") from error
    ids = np.array(_tokenizer(file, sha256).encode(text).ids, dtype=np.int32)
    if not length:
        return ids
    rows = max(1, -(-ids.size // length)) if packed else 1
    padded = np.full(rows * length, pad_id, dtype=np.int32)
    padded[: ids.size] = ids[: padded.size]
    return padded.reshape(rows, length) if packed else padded


@functools.lru_cache(maxsize=_MAX_TOKENIZERS)
def _tokenizer(file: str, sha256: str) -> Tokenizer:
    if not Path(file).is_file():
        raise FileNotFoundError(f"the tokenizer {file} is not a regular file on this machine")
    with Path(file).open("rb") as opened:
        data = opened.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"the tokenizer {file} exceeds the limit of {_MAX_FILE_BYTES} bytes")
    digest = hashlib.sha256(data).hexdigest()
    # A different tokenizer would produce different samples with the same ids.
    if digest != sha256:
        raise ValueError(f"the tokenizer {file} does not match the recipe's SHA-256, {sha256}")
    tokenizer: Tokenizer = Tokenizer.from_str(data.decode())
    if getattr(tokenizer.model, "dropout", None):
        raise ValueError(f"the tokenizer {file} uses dropout, so it would return different tokens each time")
    # The step's `length` controls truncation and padding.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
