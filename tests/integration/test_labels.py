"""Labels that are arrays or have named fields, from the key list to the trainer's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from pyarrow import parquet
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.stack import Stack

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def rows_of(images: Path, label_of: Any) -> list[dict[str, Any]]:
    """A row for every image, whose name is a number."""
    paths = sorted(images.glob("*/*.jpg"))
    return [
        {"key": str(path.relative_to(images)), "label": label_of(int(path.stem), path.parent.name)}
        for path in paths
    ]


def test_fields_come_as_a_dict_of_tensors(shared_stack: Stack, images: Path, tmp_path: Path) -> None:
    rows = rows_of(
        images, lambda number, kind: {"kind": kind, "box": [0.5, 1.0, 2.0, number / 2], "number": number}
    )
    key_list = tmp_path / "boxes.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), key_list)
    dataset = SuperDataset(images, RECIPE, key_list=key_list, return_info=True)
    with SuperSampler(dataset, batch_size=16, coordinator=shared_stack.address) as sampler:
        assert dataset.classes == ("ant", "bee", "cat", "dog")
        numbers = []
        for pixels, labels, info in DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2):
            assert {name: (one.dtype, tuple(one.shape[1:])) for name, one in labels.items()} == {
                "kind": (torch.int64, ()),
                "box": (torch.float64, (4,)),
                "number": (torch.int64, ()),
            }
            assert len(pixels) == len(labels["kind"])
            for at, key in enumerate(info.keys):
                number = int(key.rpartition("/")[2].removesuffix(".jpg"))
                assert labels["number"][at] == number
                assert labels["box"][at].tolist() == [0.5, 1.0, 2.0, number / 2]
                assert dataset.classes[labels["kind"][at]] == key.split("/")[-2]
            numbers += labels["number"].tolist()
    assert sorted(numbers) == list(range(150))
