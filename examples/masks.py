"""Segmentation: crop and flip images together with their masks, in Pascal VOC's folder layout."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from superdl import Recipe, SuperDataset, SuperLoader
from superdl.main import main as superdl

# Masks are palette PNGs, whose colour indices are the classes.
CLASSES = ["background", "red", "green"]
CROPS = [{"op": "random_crop", "size": 48}, {"op": "horizontal_flip"}, {"op": "vertical_flip"}]
# Functions crop the image and its mask identically.
RECIPE = Recipe.fields(image=Recipe(CROPS), mask=Recipe([{"op": "mask"}, *CROPS]))


def make_data(folder: Path) -> None:
    """Write images of circles on a grey background, each with a mask of the circles."""
    draw = random.Random(0)
    for name in ("JPEGImages", "SegmentationClass"):
        (folder / name).mkdir()
    for number in range(120):
        image, mask = Image.new("RGB", (64, 56), "gray"), Image.new("P", (64, 56))
        mask.putpalette([0, 0, 0, 200, 40, 40, 40, 160, 60])
        for _ in range(3):
            x, y, kind = draw.randrange(44), draw.randrange(36), draw.randrange(1, 3)
            box = (x, y, x + 20, y + 20)
            ImageDraw.Draw(image).ellipse(box, fill=[None, (200, 40, 40), (40, 160, 60)][kind])
            ImageDraw.Draw(mask).ellipse(box, fill=kind)
        image.save(folder / "JPEGImages" / f"{number:03d}.jpg")
        mask.save(folder / "SegmentationClass" / f"{number:03d}.png")


def main(folder: Path) -> None:
    make_data(folder)
    key_list, fields = folder / "list.jsonl", "image=JPEGImages/*.jpg,mask=SegmentationClass/*.png"
    superdl(["index", str(folder), "-o", str(key_list), "--fields", fields, "--labels", "none"])
    dataset = SuperDataset(folder, RECIPE, key_list=key_list)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 16, 5, 1, 2), torch.nn.ReLU()),
        *(torch.nn.Conv2d(16, 16, 5, 1, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, len(CLASSES), 1)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with SuperLoader(dataset, batch_size=24, shuffle=True) as loader:
        for _ in range(5):
            for batch, _ in loader:  # uint8: "image" (24, 3, 48, 48), "mask" (24, 48, 48)
                logits = model(batch["image"].float() / 255)
                loss = torch.nn.functional.cross_entropy(logits, batch["mask"].long())
                accuracy = (logits.argmax(dim=1) == batch["mask"]).float().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sys.stdout.write(f"loss {loss.item():.4f} pixels {accuracy.item():.3f}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
