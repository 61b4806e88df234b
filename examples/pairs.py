"""Images with captions: learn contrastively, as CLIP does, which caption belongs to which image."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image

from superdl import Recipe, SuperDataset, SuperLoader

COLOURS = ["red", "lime", "blue", "yellow", "cyan", "magenta", "white", "gray"]
PLACES = {"left": (0, 8), "right": (32, 8)}


def make_data(folder: Path) -> None:
    """Write images of squares, and a key list with their captions as tokens, padded to the same length."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "a", "square", *COLOURS, *PLACES])}
    draw = random.Random(0)
    rows = []
    for number in range(240):
        colour, place = draw.choice(COLOURS), draw.choice(list(PLACES))
        image = Image.new("RGB", (64, 48), "black")
        image.paste(Image.new("RGB", (32, 32), colour), PLACES[place])
        image.save(folder / f"{number}.jpg")
        tokens = [vocabulary[word] for word in f"a {colour} square {place}".split()]
        padded = tokens + [vocabulary["[PAD]"]] * (6 - len(tokens))
        # Token ids from the key list arrive as a tensor.
        rows.append(json.dumps({"key": f"{number}.jpg", "label": padded}) + "\n")
    (folder / "list.jsonl").write_text("".join(rows))


def main(folder: Path) -> None:
    make_data(folder)
    dataset = SuperDataset(folder, Recipe.image(resize=24, crop=24), key_list=folder / "list.jsonl")
    torch.manual_seed(0)
    images_side = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(24 * 24 * 3, 32))
    texts_side = torch.nn.Sequential(torch.nn.Embedding(13, 16), torch.nn.Flatten(), torch.nn.Linear(96, 32))
    optimizer = torch.optim.Adam([*images_side.parameters(), *texts_side.parameters()], lr=0.005)
    with SuperLoader(dataset, batch_size=24, shuffle=True) as loader:
        for _ in range(5):
            for images, captions in loader:  # uint8 (24, 3, 24, 24), int64 (24, 6)
                image_vectors = images_side(images.float() / 255)
                logits = image_vectors @ texts_side(captions).T / 32**0.5
                targets = (
                    (captions[:, None] == captions[None]).all(dim=2).float()
                )  # identical captions are not negatives
                loss = torch.nn.functional.cross_entropy(logits, targets / targets.sum(dim=1, keepdim=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sys.stdout.write(f"loss {loss.item():.4f}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
