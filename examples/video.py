"""Video clips, decoded by functions: learn whether a square moves right or left.

``pip install superdl[video]``
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import av
import numpy as np
import torch

from superdl import Recipe, SuperDataset, SuperLoader


def make_data(folder: Path) -> None:
    """Write two-second MP4 files and a key list with their labels."""
    draw = random.Random(0)
    rows = []
    for number in range(80):
        goes_right, begin = number % 2, draw.randrange(8, 24)
        with av.open(folder / f"{number}.mp4", "w") as file:
            stream = file.add_stream("mpeg4", rate=10)
            stream.width = stream.height = 64
            for frame in range(20):
                image = np.zeros((64, 64, 3), np.uint8)
                x = begin + (frame if goes_right else 20 - frame)
                image[24:40, x : x + 16] = 255
                file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            file.mux(stream.encode(None))
        rows.append(f"{number}.mp4,{goes_right}\n")
    (folder / "list.csv").write_text("key,label\n" + "".join(rows))


def main(folder: Path) -> None:
    make_data(folder)
    recipe = Recipe.video(frames=8, size=32)  # uint8, (8, 32, 32, 3)
    dataset = SuperDataset(folder, recipe, key_list=folder / "list.csv")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv3d(3, 16, (3, 5, 5), stride=(1, 2, 2)),
        torch.nn.ReLU(),
        torch.nn.Conv3d(16, 16, (3, 5, 5), stride=(1, 2, 2)),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(2),
    )
    # Initialise the lazy layer before the optimiser gets its parameters.
    model(torch.zeros(1, 3, 8, 32, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    with SuperLoader(dataset, batch_size=16, shuffle=True) as loader:
        for _ in range(5):
            for clips, labels in loader:
                pictures = clips.permute(0, 4, 1, 2, 3).float() / 255
                loss = torch.nn.functional.cross_entropy(model(pictures), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sys.stdout.write(f"loss {loss.item():.4f}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
