"""Detection: convert YOLO labels to a key list and train with any number of boxes per image."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from superdl import Recipe, SuperDataset, SuperLoader
from superdl.main import main as superdl

SIDE, CELLS = 48, 6
# torchvision's v2 transforms flip an image together with its boxes.
FLIP = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.SanitizeBoundingBoxes()])


def make_data(folder: Path) -> None:
    """Write images with zero to three squares each, and their boxes, in the YOLO layout."""
    draw = random.Random(0)
    for name in ("images", "labels"):
        (folder / name).mkdir()
    for number in range(144):
        image, lines = Image.new("RGB", (96, 96), "black"), []
        for _ in range(number % 4):
            x, y, colour = draw.randrange(80), draw.randrange(80), draw.randrange(2)
            image.paste(Image.new("RGB", (16, 16), ["red", "lime"][colour]), (x, y))
            lines.append(f"{colour} {(x + 8) / 96} {(y + 8) / 96} {16 / 96} {16 / 96}\n")
        image.save(folder / "images" / f"{number:03d}.jpg")
        if lines:  # an image without a label file has no boxes
            (folder / "labels" / f"{number:03d}.txt").write_text("".join(lines))


def flipped(image: torch.Tensor, boxes: torch.Tensor, classes: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a randomly flipped sample whose boxes, of shape (n, 4), are centres and sizes in pixels."""
    boxes = tv_tensors.BoundingBoxes(boxes * SIDE, format="CXCYWH", canvas_size=(SIDE, SIDE))
    return FLIP({"image": tv_tensors.Image(image), "boxes": boxes, "labels": classes})


def goal(sample: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return one mask per class, which marks the cells that contain the centre of a box."""
    cells = torch.zeros(2, CELLS, CELLS)
    x, y = (sample["boxes"][:, :2] * CELLS / SIDE).long().clamp(0, CELLS - 1).T
    cells[sample["labels"], y, x] = 1
    return cells


def main(folder: Path) -> None:
    make_data(folder)
    key_list = folder / "list.jsonl"
    superdl(["index", str(folder), "-o", str(key_list), "--labels", "yolo", "--missing-label", ""])
    # Whole images are resized, so that boxes relative to the image stay correct.
    dataset = SuperDataset(folder, Recipe([{"op": "resize", "size": [SIDE, SIDE]}]), key_list=key_list)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(
            torch.nn.Conv2d(3, 16, 5, 2, 2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 5, 2, 2),
            torch.nn.ReLU(),
        ),
        *(torch.nn.Conv2d(32, 32, 5, 2, 2), torch.nn.ReLU(), torch.nn.Conv2d(32, 2, 3, 1, 1)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    with SuperLoader(dataset, batch_size=24, shuffle=True) as loader:
        for _ in range(6):
            for images, labels in loader:  # uint8 (24, 3, 48, 48); lists of (n, 4) and of (n,)
                samples = [
                    flipped(*sample)
                    for sample in zip(images, labels["boxes"], labels["classes"], strict=True)
                ]
                targets = torch.stack([goal(sample) for sample in samples])
                predictions = model(torch.stack([sample["image"] for sample in samples]).float() / 255)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(predictions, targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sys.stdout.write(f"loss {loss.item():.4f}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
