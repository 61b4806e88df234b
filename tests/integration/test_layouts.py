"""Every line in docs/data.md's table of layouts works as printed, from a bucket or the Hub."""

import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from superdl import Recipe, SuperDataset, SuperLoader
from superdl.main import main
from tests.fixtures.images import CLASSES, SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.fixtures.web import hub_server
from tests.integration.delivery import assert_exactly_once, collect, pixels_of
from tests.superdl.index.shards import litdata_of, mds_of, tar_of, tfrecord_of

__all__ = ["hub_server"]

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
ROW = re.compile(
    r"^\| (?P<peer>[^|]+) \| (?P<layout>[^|]+) \| [^|]+ \| `(?P<line>(?:SuperDataset|superdl)[^`]+)` \|$",
    re.MULTILINE,
)
ROWS = [found.groupdict() for found in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def write(directory, files):
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def folders(directory, images):
    write(directory, {f"{CLASSES[label]}/{name}": content for name, (content, label) in images.items()})


def flat(directory, images):
    write(directory, {name: content for name, (content, _) in images.items()})


def labels_csv(directory, images):
    flat(directory, images)
    lines = ["key,label", *(f"{name},{label}" for name, (_, label) in images.items())]
    Path("labels.csv").write_text("\n".join(lines) + "\n")


def label_files(directory, images):
    flat(directory, images)
    write(directory, {name.replace(".jpg", ".cls"): str(label) for name, (_, label) in images.items()})


def coco(directory, images):
    flat(directory, images)
    shape = {"width": SIDE, "height": SIDE}
    pictures = [{"id": place, "file_name": name, **shape} for place, name in enumerate(images)]
    boxes = [
        {"id": place, "image_id": place, "category_id": label, "bbox": [1, 2, 3, 4], "iscrowd": 0}
        for place, (_, label) in enumerate(images.values())
    ]
    categories = [{"id": place, "name": name} for place, name in enumerate(CLASSES)]
    Path("instances.json").write_text(
        json.dumps({"images": pictures, "annotations": boxes, "categories": categories})
    )


def masks(directory, images):
    write(directory, {f"JPEGImages/{name}": content for name, (content, _) in images.items()})
    (directory / "SegmentationClass").mkdir()
    for name, (_, label) in images.items():
        Image.new("L", (8, 8), label).save(directory / "SegmentationClass" / name.replace(".jpg", ".png"))


def yolo(directory, images):
    write(directory, {f"images/{name}": content for name, (content, _) in images.items()})
    lines = {name: f"{label} 0.5 0.5 0.25 0.5\n" for name, (_, label) in images.items()}
    write(directory, {f"labels/{name.replace('.jpg', '.txt')}": line for name, line in lines.items()})


def tars(directory, images):
    directory.mkdir(parents=True)
    for shard in range(2):
        files = {}
        for name, (content, label) in list(images.items())[shard::2]:
            files |= {name: content, name.replace(".jpg", ".cls"): str(label).encode()}
        tar_of(directory / f"{shard:06d}.tar", files)


def tfrecords(directory, images):
    directory.mkdir(parents=True)
    examples = [{"image/encoded": content, "image/class/label": label} for content, label in images.values()]
    tfrecord_of(directory / "train-00000-of-00001", examples)


def mds(directory, images):
    directory.mkdir(parents=True)
    mds_of(directory, list(images.values()))


def litdata(directory, images):
    directory.mkdir(parents=True)
    litdata_of(directory, list(images.values()))


def table_of(images):
    # Longer than the footer's first read: this S3 server rejects ranges that start before the object.
    noise = iter(np.random.default_rng(0).integers(2**62, size=(len(images), 1000)).tolist())
    rows = [
        {"image": {"bytes": content, "path": name}, "label": label, "noise": next(noise)}
        for name, (content, label) in images.items()
    ]
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), sink, row_group_size=5)
    return sink.getvalue()


def tables(directory, images):
    write(directory, {"0.parquet": table_of(images)})


MAKERS = {
    "class folders": folders,
    "a CSV of files and labels": labels_csv,
    "label files": label_files,
    "COCO": coco,
    "YOLO": yolo,
    "images and masks": masks,
    "`.tar`, `.zip`": tars,
    "TFRecord": tfrecords,
    "MDS": mds,
    "chunks": litdata,
    "Parquet": tables,
}


@pytest.mark.slow  # one loader per row
def test_the_line_of_every_row_loads_all_images_with_their_labels(
    object_store, hub_server, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    photos = write_images(tmp_path / "photos", 12)
    images = {
        path.name: (path.read_bytes(), CLASSES.index(path.parent.name))
        for path in sorted(photos.glob("*/*.jpg"), key=lambda path: path.name)
    }
    expected = expected_pixels(photos, resize=SIDE, crop=SIDE)
    # Write all layouts before the first listing: the server caches listings.
    for number, row in enumerate(ROWS):
        MAKERS[row["layout"]](object_store.directory / "bucket" / str(number) / "train", images)
    hub_server.commit({"data/train-00000.parquet": table_of(images)})
    assert {row["layout"] for row in ROWS} == set(MAKERS)
    with Stack(arguments=("--slots", "1")) as stack:
        for number, row in enumerate(ROWS):
            line = row["line"].replace("s3://bucket/", f"s3://bucket/{number}/")
            if line.startswith("superdl "):
                words = shlex.split(line)[1:]
                assert main([*words, "--force"]) == 0, line
                line = f"SuperDataset({words[1]!r}, recipe, key_list='list.jsonl')"
            of_masks = row["layout"] == "images and masks"
            recipe = Recipe.fields(image=RECIPE, mask=Recipe.mask()) if of_masks else RECIPE
            dataset = eval(line, {"SuperDataset": SuperDataset, "recipe": recipe})  # noqa: S307 - of our page
            with SuperLoader(dataset, batch_size=5, shuffle=True, coordinator=stack.address) as loader:
                if row["layout"] in {"COCO", "YOLO"}:
                    batches = [(pixels_of(pictures), labels["classes"]) for pictures, labels in loader]
                    delivered = [
                        (pixels, int(classes[0]))
                        for all_pixels, all_classes in batches
                        for pixels, classes in zip(all_pixels, all_classes, strict=True)
                    ]
                elif of_masks:
                    batches = [(pixels_of(both["image"]), both["mask"][:, 0, 0]) for both, _ in loader]
                    delivered = [
                        (pixels, int(label))
                        for all_pixels, labels in batches
                        for pixels, label in zip(all_pixels, labels, strict=True)
                    ]
                else:
                    delivered = collect(loader)
            assert_exactly_once(delivered, expected)
