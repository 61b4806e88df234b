"""Text, tokenised by functions: learn whether a number spelt out digit by digit is even.

``pip install superdl[text]``. For a real tokenizer, use the ``tokenizer.json`` that comes with a model.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from superdl import Recipe, SuperDataset, SuperLoader

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def make_data(folder: Path) -> None:
    """Write texts whose last word determines the label, a key list for them, and a tokenizer."""
    draw = random.Random(0)
    rows = []
    for number in range(200):
        digits = [draw.randrange(10) for _ in range(4)]
        (folder / f"{number}.txt").write_text(" ".join(DIGITS[digit] for digit in digits))
        rows.append(f"{number}.txt,{digits[-1] % 2}\n")
    (folder / "list.csv").write_text("key,label\n" + "".join(rows))
    vocabulary = {word: number for number, word in enumerate(["[PAD]", *DIGITS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))  # noqa: S106  # not a password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def main(folder: Path) -> None:
    make_data(folder)
    recipe = Recipe.text(folder / "tokenizer.json", length=4)
    dataset = SuperDataset(folder, recipe, key_list=folder / "list.csv")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(11, 16), torch.nn.Flatten(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with SuperLoader(dataset, batch_size=20, shuffle=True) as loader:
        for _ in range(4):
            for tokens, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(tokens.long()), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sys.stdout.write(f"loss {loss.item():.4f}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
