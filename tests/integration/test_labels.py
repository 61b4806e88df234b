"""Array labels and labels with named fields, from the key list to the trainer's tensors."""

import json

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from superdl import SuperDataset, SuperLoader, SuperMix, SuperSampler
from superdl.super_wire.errors import ConfigError
from tests.fixtures.images import SIDE
from tests.integration.delivery import RECIPE, reading


def rows_of(images, label_of):
    """A key-list row for every image; each image's name is a number."""
    paths = sorted(images.glob("*/*.jpg"))
    return [
        {"key": str(path.relative_to(images)), "label": label_of(int(path.stem), path.parent.name)}
        for path in paths
    ]


def test_fields_come_as_a_dict_of_tensors(shared_stack, images, tmp_path):
    rows = rows_of(
        images, lambda number, kind: {"kind": kind, "box": [0.5, 1.0, 2.0, number / 2], "number": number}
    )
    key_list = tmp_path / "boxes.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), key_list)
    how = {"batch_size": 16, "workers": 2, "key_list": key_list, "return_info": True}
    with reading(images, shared_stack.address, **how) as (_, loader):
        classes = loader.dataset.classes
        assert classes == ("ant", "bee", "cat", "dog")
        numbers = []
        for pixels, labels, info in loader:
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
                assert classes[labels["kind"][at]] == key.split("/")[-2]
            numbers += labels["number"].tolist()
    assert sorted(numbers) == list(range(150))


def boxes_of(number):
    """``number % 5`` boxes, so sometimes none."""
    return [[float(number), float(place), 1.0, 2.5] for place in range(number % 5)]


def detected(images, path):
    """Write a key list of boxes and the names of their classes."""
    rows = rows_of(
        images,
        lambda number, kind: {
            "number": number,
            "boxes[]": boxes_of(number),
            "kinds[]": [kind] * (number % 5),
        },
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def assert_detected(labels, classes):
    """Assert that each sample has its own boxes. Return the samples' numbers."""
    numbers = labels["number"].tolist()
    assert len(labels["boxes"]) == len(labels["kinds"]) == len(numbers)
    for number, boxes, kinds in zip(numbers, labels["boxes"], labels["kinds"], strict=True):
        assert (boxes.dtype, kinds.dtype, boxes.shape[1:]) == (torch.float64, torch.int64, (4,))
        assert boxes.tolist() == boxes_of(number)
        assert len({classes[kind] for kind in kinds}) == (1 if number % 5 else 0)
    return numbers


def test_boxes_come_as_a_list_of_tensors(shared_stack, images, tmp_path):
    how = {"batch_size": 16, "workers": 2, "key_list": detected(images, tmp_path / "boxes.jsonl")}
    with reading(images, shared_stack.address, **how) as (_, loader):
        dataset = loader.dataset
        assert dataset.classes == ("ant", "bee", "cat", "dog")
        numbers = [number for _, labels in loader for number in assert_detected(labels, dataset.classes)]
    assert sorted(numbers) == list(range(150))
    assert [dataset.targets[place]["boxes"].tolist() for place in range(150)] == [
        boxes_of(int(path.rpartition("/")[2].removesuffix(".jpg"))) for path, _ in dataset.samples
    ]
    assert len(dataset.targets["kinds"]) == 150


def test_boxes_go_with_padding_columns_transforms_and_mixes(shared_stack, images, tmp_path):
    how = {"key_list": detected(images, tmp_path / "boxes.jsonl")}
    how |= {"coordinator": shared_stack.address}
    a, b = (SuperDataset(images, RECIPE, **how) for _ in range(2))
    with SuperLoader(SuperMix([a, b]), batch_size=16, shuffle=True) as loader:
        numbers = [number for _, labels in loader for number in assert_detected(labels, a.classes)]
    assert sorted(numbers) == sorted([*range(150)] * 2)
    columns = SuperDataset(
        images,
        RECIPE,
        columns={"pixels": "images", "boxes": "labels.boxes", "number": "labels.number"},
        transform=lambda image: torch.tensor(image.size),
        **how,
    )
    seen = []
    for rank in range(4):  # 150 samples are padded to 152 for 4 ranks
        ranks = {"rank": rank, "num_replicas": 4, "job": "boxes"}
        with SuperSampler(columns, batch_size=16, shuffle=True, **ranks) as sampler:
            for batch in map(columns.__getitem__, sampler):
                assert batch["pixels"].tolist() == [[SIDE, SIDE]] * len(batch["number"])
                assert [one.tolist() for one in batch["boxes"]] == [
                    boxes_of(n) for n in batch["number"].tolist()
                ]
                seen += batch["number"].tolist()
    assert len(seen) == 152
    assert set(seen) == set(range(150))


@pytest.mark.parametrize(("policy", "batches"), [("skip", [7, 8]), ("replace", [8, 8])])
def test_boxes_follow_the_samples_that_are_delivered(shared_stack, images, tmp_path, policy, batches):
    rows, source = [], tmp_path / "source"
    source.mkdir()
    for number, path in enumerate(sorted(images.glob("*/*.jpg"))[:16]):
        content = path.read_bytes() if number != 3 else b"no image"
        (source / f"{number:02d}.jpg").write_bytes(content)
        rows.append({"key": f"{number:02d}.jpg", "label": {"number": number, "boxes[]": boxes_of(number)}})
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = {"batch_size": 8, "shuffle": False, "on_bad_sample": policy}
    with reading(source, shared_stack.address, key_list=tmp_path / "list.jsonl", **how) as (_, loader):
        found = []
        for pixels, labels in loader:
            assert len(pixels) == len(labels["boxes"])
            assert [one.tolist() for one in labels["boxes"]] == [
                boxes_of(n) for n in labels["number"].tolist()
            ]
            found.append(labels["number"].tolist())
    assert list(map(len, found)) == batches
    assert 3 not in found[0]
    assert found[0].count(4) == (2 if policy == "replace" else 1)


def test_a_batch_whose_labels_may_not_fit_is_refused_when_the_sampler_is_made(shared_stack, images, tmp_path):
    rows = rows_of(images, lambda number, _: [0] * (8000 if number % 2 else 1))
    (tmp_path / "list.jsonl").write_text(
        "".join(json.dumps({"key": row["key"], "label[]": row["label"]}) + "\n" for row in rows)
    )
    where = {"source": images, "address": shared_stack.address, "key_list": tmp_path / "list.jsonl"}
    with (
        pytest.raises(ConfigError, match=r"a batch of 128 samples take up to .* lower batch_size"),
        reading(batch_size=128, **where),
    ):
        pass
    with reading(batch_size=60, **where) as (_, loader):
        _, labels = next(iter(loader))
    assert set(map(len, labels)) == {1, 8000}
