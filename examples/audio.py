"""Audio as spectrograms, computed by functions: learn to distinguish steady from rising tones.

``pip install superdl[audio]``
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import torch

from superdl import Recipe, SuperDataset, SuperLoader


def make_data(folder: Path) -> None:
    """Write half-second WAV files at 22.05 kHz and a key list with their labels."""
    draw = random.Random(0)
    times = np.arange(11025) / 22050
    rows = []
    for number in range(120):
        pitch, rises = draw.uniform(300, 1500), number % 2
        cycles = pitch * (times + 2 * rises * times**2)
        soundfile.write(folder / f"{number}.wav", 0.5 * np.sin(2 * np.pi * cycles), 22050)
        rows.append(f"{number}.wav,{rises}\n")
    (folder / "list.csv").write_text("key,label\n" + "".join(rows))


def main(folder: Path) -> None:
    make_data(folder)
    recipe = Recipe.audio(16000, samples=8000, mel=40)  # float32, (40, 51)
    dataset = SuperDataset(folder, recipe, key_list=folder / "list.csv")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.BatchNorm1d(40),
        torch.nn.Conv1d(40, 32, 9, stride=4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(2),
    )
    # Initialise the lazy layer before the optimiser gets its parameters.
    model(torch.zeros(2, 40, 51))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with SuperLoader(dataset, batch_size=20, shuffle=True) as loader:
        for _ in range(4):
            for spectra, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(spectra), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sys.stdout.write(f"loss {loss.item():.4f}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
