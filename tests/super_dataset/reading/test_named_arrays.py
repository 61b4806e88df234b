"""Samples of several named arrays are delivered as a dict of tensors by every read path."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from torch.utils.data import DataLoader

from superdl.super_dataset import Augment, PerSample, SuperDataset, SuperLoader
from superdl.super_dataset.reading.batch import check_records
from superdl.super_dataset.reading.delivery import sample_tensors
from superdl.super_wire import Recipe
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.record import DTYPE_CODES
from superdl.super_wire.record_kinds import pack_arrays
from superdl.super_wire.store import DirectoryStore
from tests.super_dataset.stored_batches import bound_dataset, packed, received, record, ref_of, stored

NO_ID = bytes(16)
NAMES = ("boxes", "image", "mask")


def samples(count, *, boxes=lambda at: at % 3):
    """Images of 6x8, their masks, and ``boxes(at)`` boxes."""
    rng = np.random.default_rng(count)
    return [
        {
            "image": rng.integers(0, 256, (6, 8, 3), dtype=np.uint8),
            "mask": rng.integers(0, 256, (6, 8), dtype=np.uint8),
            "boxes": rng.random((boxes(at), 4), dtype=np.float32),
        }
        for at in range(count)
    ]


def assert_delivered(batch, expected):
    """Assert that fields are stacked if arrays match, else listed; images have their channels first."""
    assert sorted(batch) == sorted(expected[0])
    for name, field in batch.items():
        arrays = [sample[name] for sample in expected]
        assert isinstance(field, torch.Tensor) == (len({(one.dtype, one.shape) for one in arrays}) == 1)
        assert len(field) == len(arrays)
        for tensor, array in zip(field, arrays, strict=True):
            image = array.dtype == np.uint8 and array.ndim == 3 and array.shape[-1] in (1, 3, 4)
            found = (tensor.movedim(0, -1) if image else tensor).numpy()
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert found.tobytes() == array.tobytes()


@given(st.data(), st.booleans(), st.booleans())
def test_any_arrays_are_delivered_as_tensors(data, uniform, shared):
    shapes = {name: data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)) for name in NAMES}
    dtypes = {name: data.draw(st.sampled_from(list(DTYPE_CODES))) for name in NAMES}
    expected = []
    for _ in range(data.draw(st.integers(1, 4))):
        if not uniform:
            shapes["boxes"] = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0))
        expected.append({name: data.draw(hnp.arrays(dtypes[name], shapes[name])) for name in NAMES})
    wholes = [pack_arrays(arrays, NO_ID) for arrays in expected]
    buffer = received(wholes, shared=shared, uniform=uniform)
    assert not check_records(buffer, NO_ID * len(expected), np.arange(len(expected)), None)
    assert_delivered(sample_tensors(buffer, None), expected)
    order = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1))
    batch = sample_tensors(buffer, order)
    assert_delivered(batch, [expected[offset] for offset in order])
    tensors = [one for field in batch.values() for one in ([field] if torch.is_tensor(field) else field)]
    assert len({one.untyped_storage().data_ptr() for one in tensors}) == 1, "workers send one block"


@pytest.mark.parametrize("way", ["cache", "packs", "threads", "workers"])
def test_every_read_path_delivers_named_arrays(valkey, tmp_path, way):
    expected = samples(5)
    if way == "packs":
        store = DirectoryStore.open(tmp_path / "store", create=True)
        ref = packed(store, ref_of(5, valkey.unix_url), expected)
    else:
        ref = stored(valkey, [pack_arrays(one, NO_ID) for one in expected])
    dataset = bound_dataset(return_info=True)
    if way == "threads":
        ((batch, labels, info),) = SuperLoader(dataset, [ref])
    elif way == "workers":
        ((batch, labels, info),) = DataLoader(dataset, sampler=[ref], batch_size=None, num_workers=1)
    else:
        batch, labels, info = dataset[ref]
    assert_delivered(batch, expected)
    assert labels.tolist() == [100, 101, 102, 103, 104]
    assert info.straight == (5 if way == "packs" else 0)


@pytest.mark.parametrize("other", [record(np.zeros(3)), pack_arrays({"mask": np.zeros(3)}, NO_ID)])
def test_samples_with_different_fields_are_rejected(valkey, other):
    with pytest.raises(UsageError, match="same fields for each sample"):
        bound_dataset()[stored(valkey, [pack_arrays(samples(1)[0], NO_ID), other])]


def test_columns_select_and_rename(valkey):
    expected = samples(2)
    ref = stored(valkey, [pack_arrays(one, NO_ID) for one in expected])
    batch = bound_dataset(columns={"pixel_values": "image", "labels": "mask", "class": "labels"})[ref]
    assert list(batch) == ["pixel_values", "labels", "class"]
    renamed = [{"pixel_values": one["image"], "labels": one["mask"]} for one in expected]
    assert_delivered({name: batch[name] for name in ("pixel_values", "labels")}, renamed)
    assert batch["class"].tolist() == [100, 101]
    picked, info = bound_dataset(columns=["mask"], return_info=True)[ref]
    assert list(picked) == ["mask"]
    assert info.batch_id == ref.batch_id
    one_array = bound_dataset(columns={"pixel_values": "images"})[
        stored(valkey, [np.zeros((8, 8, 3), np.uint8)], position=1)
    ]
    assert one_array["pixel_values"].shape == (1, 3, 8, 8)
    with pytest.raises(UsageError, match="'images', but .* only has 'boxes', 'image', 'mask'"):
        bound_dataset(columns=["images"])[ref]


@pytest.mark.parametrize("columns", ["images", [], {}, {"a": 1}, [1], 3])
def test_invalid_columns_are_rejected(columns):
    with pytest.raises(ConfigError, match="columns must list parts"):
        SuperDataset("images", Recipe([]), columns=columns)


def test_columns_cannot_be_combined_with_a_batch_transform():
    with pytest.raises(ConfigError, match="columns"):
        SuperDataset("images", Recipe([]), columns=["images"], transform=lambda images, labels, info: images)


def turned(sample):
    assert isinstance(sample["image"], Image.Image)
    assert sample["mask"].mode == "L"
    turn = Image.Transpose.ROTATE_90
    return {
        "image": np.array(sample["image"].transpose(turn)),
        "mask": np.array(sample["mask"].transpose(turn)),
        "boxes": sample["boxes"] + 1,
    }


def test_a_transform_gets_all_fields_of_a_sample(valkey):
    expected = samples(3)
    ref = stored(valkey, [pack_arrays(one, NO_ID) for one in expected])
    batch, _ = bound_dataset(transform=turned)[ref]
    assert np.array_equal(batch["image"].numpy(), np.stack([np.rot90(one["image"]) for one in expected]))
    assert np.array_equal(batch["mask"].numpy(), np.stack([np.rot90(one["mask"]) for one in expected]))
    assert [len(one) for one in batch["boxes"]] == [0, 1, 2]
    assert torch.equal(batch["boxes"][1], torch.from_numpy(expected[1]["boxes"]) + 1)

    def by_keyword(*, image, mask, boxes):
        assert (image.shape, mask.shape, type(boxes)) == ((6, 8, 3), (6, 8), torch.Tensor)
        return {"image": image[::-1], "mask": mask[::-1]}

    batch, _ = bound_dataset(transform=PerSample(by_keyword))[ref]
    assert np.array_equal(batch["mask"].numpy(), np.stack([one["mask"][::-1] for one in expected]))


def test_augment_rejects_samples_of_several_arrays(valkey):
    ref = stored(valkey, [pack_arrays(one, NO_ID) for one in samples(2)])
    with pytest.raises(UsageError, match=r"several arrays \(boxes, image, mask\)\. Pass SuperDataset"):
        bound_dataset(transform=Augment(4))[ref]
