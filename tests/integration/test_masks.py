"""Images with masks from key lists: aligned dicts of identical bytes, wherever the parts are stored."""

import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from superdl import Recipe, SuperDataset, SuperSampler
from superdl.main import main
from superdl.sampler.embedded.embedded import release_all
from superdl.super_wire.errors import BadSampleError, SourceError
from tests.coordinator.catalog.key_lists import written
from tests.fixtures.stack import Stack
from tests.fixtures.web import web_server
from tests.integration.delivery import reading, settled_stats, spoil

__all__ = ["web_server"]

COUNT, SIDE = 12, 16
RECIPE = Recipe.fields(image=Recipe.image(resize=20, crop=SIDE), mask=Recipe.mask(resize=20, crop=SIDE))
CROPS = [
    {"op": "random_resized_crop", "size": [12, 18], "interpolation": "nearest"},
    {"op": "horizontal_flip"},
    {"op": "pad", "padding": 3},
    {"op": "random_crop", "size": SIDE},
    {"op": "vertical_flip"},
]


@pytest.fixture
def scenes(tmp_path):
    """Images whose red channel equals the mask's class, which reveals any misalignment."""
    rng = np.random.default_rng(5)
    palette = rng.integers(0, 256, 768, dtype=np.uint8).tolist()
    directory = tmp_path / "scenes"
    for folder in ("images", "masks"):
        (directory / folder).mkdir(parents=True)
    for number in range(COUNT):
        classes = rng.integers(0, 21, (24 + number, 40), dtype=np.uint8)
        pixels = np.stack([classes, *rng.integers(0, 256, (2, *classes.shape), dtype=np.uint8)], axis=2)
        Image.fromarray(pixels).save(directory / "images" / f"{number:02d}.png")
        mask = Image.fromarray(classes, "P")
        mask.putpalette(palette)
        mask.save(directory / "masks" / f"{number:02d}.png")
    return directory


def loose(scenes, extension):
    """Write a key list of images and masks that are separate objects."""
    rows = [
        {"key": f"images/{number:02d}.png", "label": number, "mask.key": f"masks/{number:02d}.png"}
        for number in range(COUNT)
    ]
    return written(scenes.parent, extension, rows).as_uri()


def tarred(scenes, *, apart=False):
    """Write tars of image-mask pairs, or one tar of images and one of masks. Return their key list too."""
    directory, rows = scenes.parent / "tars", []
    directory.mkdir()
    files = [directory / "a.tar", directory / ("b.tar" if apart else "a.tar")]
    for file in dict.fromkeys(files):
        with tarfile.open(file, "w") as archive:
            for number in range(COUNT):
                for folder, where in zip(("images", "masks"), files, strict=True):
                    if where == file:
                        archive.add(scenes / folder / f"{number:02d}.png", f"{number:02d}.{folder}.png")
    for number in range(COUNT):
        row = {"key": "a.tar", "label": number}
        for folder, file, prefix in zip(("images", "masks"), files, ("", "mask."), strict=True):
            with tarfile.open(file) as archive:
                entry = archive.getmember(f"{number:02d}.{folder}.png")
            place = {"member": entry.name, "offset": entry.offset_data, "length": entry.size}
            row |= {prefix + name: value for name, value in place.items()}
        rows.append(row | ({"mask.key": "b.tar"} if apart else {}))
    key_list = scenes.parent / "members.jsonl"
    key_list.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory, key_list.as_uri()


def expected(scenes, number):
    """The sample that torchvision would make, computed with Pillow alone."""
    found = {}
    for name, folder in (("image", "images"), ("mask", "masks")):
        image = Image.open(scenes / folder / f"{number:02d}.png")
        by = Image.Resampling.BILINEAR if name == "image" else Image.Resampling.NEAREST
        width = int(20 * image.width / image.height) if image.width > image.height else 20
        image = image.resize((width, int(20 * image.height / image.width) if width == 20 else 20), by)
        left, top = round((image.width - SIDE) / 2), round((image.height - SIDE) / 2)
        array = torch.from_numpy(np.array(image.crop((left, top, left + SIDE, top + SIDE))))
        found[name] = array.permute(2, 0, 1) if name == "image" else array
    return found


def assert_batches(batches, scenes):
    """Assert that an epoch has every sample once, with the expected pixels."""
    seen = []
    for images, labels in batches:
        assert list(images) == ["image", "mask"]
        assert images["image"].shape[1:] == (3, SIDE, SIDE)
        assert images["image"].is_contiguous(memory_format=torch.channels_last)
        assert (images["mask"].shape[1:], images["mask"].dtype) == ((SIDE, SIDE), torch.uint8)
        for row, label in enumerate(labels.tolist()):
            wanted = expected(scenes, label)
            assert all(torch.equal(images[name][row], wanted[name]) for name in wanted)
            seen.append(label)
    assert sorted(seen) == list(range(COUNT))


def test_random_steps_move_image_and_mask_alike(scenes, shared_stack):
    still = [step for step in CROPS if "interpolation" not in step]
    mask = Recipe([{"op": "mask"}, {"op": "random_resized_crop", "size": [12, 18]}, *still], augment_seed=9)
    recipe = Recipe.fields(image=Recipe(CROPS, augment_seed=9), mask=mask)
    with reading(scenes, shared_stack.address, recipe, key_list=loose(scenes, "parquet")) as (_, loader):
        epochs = [images for _ in range(2) for images, _ in loader]
    seen = set()
    for images in epochs:
        assert torch.equal(images["image"][:, 0], images["mask"])
        seen |= {mask.numpy().tobytes() for mask in images["mask"]}
    assert len(seen) == 2 * COUNT


def test_crops_of_unequal_sizes_are_refused(scenes, shared_stack):
    crop = {"op": "random_crop", "size": 8}
    mask = Recipe([{"op": "mask"}, {"op": "resize", "size": 12}, crop])
    recipe = Recipe.fields(image=Recipe([crop]), mask=mask)
    with (
        reading(scenes, shared_stack.address, recipe, key_list=loose(scenes, "jsonl")) as (_, loader),
        pytest.raises(BadSampleError, match="field .* would crop"),
    ):
        list(loader)


@pytest.mark.slow
def test_pairs_in_tars_come_back_out_of_the_store(scenes, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SUPER_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory, key_list = tarred(scenes, apart=True)
    produced = []
    for _ in range(2):
        with reading(directory, None, RECIPE, key_list=key_list) as (sampler, loader):
            assert_batches(loader, scenes)
            produced.append(settled_stats(sampler).samples_produced)
        release_all()
        if len(produced) == 1:
            store = str(tmp_path / "cache" / "superdl" / "store")
            assert main(["store", "verify", store, "--share", "1", "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            assert (told["checked"], told["wrong"]) == (COUNT, [])
        spoil(directory.glob("*.tar"))
    assert produced == [COUNT, 0]


def test_lists_whose_fields_cannot_be(scenes, shared_stack):
    def told(recipe, **columns):
        rows = [{"key": "images/00.png", "label": 0} | columns]
        key_list = scenes.parent / f"{len(list(scenes.parent.iterdir()))}.jsonl"
        key_list.write_text("".join(json.dumps(row) + "\n" for row in rows))
        dataset = SuperDataset(scenes, recipe, key_list=key_list.as_uri())
        with pytest.raises(SourceError) as caught:
            SuperSampler(dataset, batch_size=1, shuffle=True, coordinator=shared_stack.address)
        return str(caught.value)

    assert "the recipe has the field 'mask'" in told(RECIPE, **{"depth.key": "masks/00.png"})
    assert "1 of the 1 keys" in told(RECIPE, **{"mask.key": "masks/99.png"})
    assert "is not a path below the source" in told(RECIPE, **{"mask.key": "../secret.png"})
    assert "field mask: the key '' is empty" in told(RECIPE, **{"mask.key": None})
    assert "got only member and offset" in told(RECIPE, **{"mask.member": "a", "mask.offset": 0})
    place = {"mask.member": "a", "mask.offset": 0, "mask.length": 10**7}
    assert "the member 'a' of 'masks/00.png' ends at 10000000" in told(
        RECIPE, **{"mask.key": "masks/00.png"}, **place
    )
    assert "none of them named image" in told(RECIPE, **{"image.key": "masks/00.png"})


def test_pairs_in_a_bucket_take_one_get_for_neighbours(scenes, object_store):
    directory, key_list = tarred(scenes)
    lists = {"pairs": key_list, "scenes": loose(scenes, "jsonl")}
    directory.rename(object_store.directory / "pairs")
    scenes = scenes.rename(object_store.directory / "scenes")
    requests, how = {}, {"batch_size": COUNT}
    with Stack(arguments=("--slots", "1")) as stack:
        for bucket, named in lists.items():
            with reading(f"s3://{bucket}", stack.address, RECIPE, key_list=named, **how) as (sampler, loader):
                assert_batches(loader, scenes)
                requests[bucket] = settled_stats(sampler).source_requests
    assert requests == {"pairs": 1, "scenes": 2 * COUNT}


def test_masks_on_a_web_server(scenes, web_server, shared_stack):
    for path in scenes.rglob("*.png"):
        web_server.files[f"set/{path.relative_to(scenes)}"] = path.read_bytes()
    key_list = loose(scenes, "csv")
    with reading(f"{web_server.url}/set", shared_stack.address, RECIPE, key_list=key_list) as (_, loader):
        assert_batches(loader, scenes)
