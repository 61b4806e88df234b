"""A split that lacks a class never gets shifted labels silently: warn the user, or take the classes given."""

import logging

import pytest

from superdl import SuperDataset, SuperSampler
from superdl.super_wire.errors import ConfigError, SourceError
from tests.fixtures.images import CLASSES, write_images
from tests.integration.delivery import RECIPE


@pytest.fixture
def val(tmp_path):
    """Images of ant and dog, and an empty folder for bee; cat is missing."""
    images = write_images(tmp_path / "val", 16, seed=35)
    for path in [*images.glob("bee/*"), *images.glob("cat/*")]:
        path.unlink()
    (images / "cat").rmdir()
    return images


def warned(caplog):
    """The names in each listing warning since the last call."""
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    records = [record for record in told if record.name.startswith("superdl.sampler")]
    caplog.clear()
    return [record.getMessage().rpartition(": ")[2] for record in records]


def test_given_classes_decide_names_and_labels(shared_stack, val, tmp_path, caplog):
    where = {"coordinator": shared_stack.address}
    found = SuperDataset(val, RECIPE, **where)
    assert (found.class_to_idx, len(found)) == ({"ant": 0, "dog": 1}, 8)
    assert warned(caplog) == ["bee"]
    with SuperSampler(found, batch_size=8, shuffle=False) as sampler:
        (of_found,) = sampler
    assert warned(caplog) == [], "warned twice"

    given = SuperDataset(val, RECIPE, classes=list(CLASSES), return_info=True, **where)
    assert given.classes == CLASSES
    assert warned(caplog) == ["bee, cat"]
    with SuperSampler(given, batch_size=8, shuffle=False) as sampler:
        (of_given,) = sampler
        _, labels, info = given[of_given]
    assert of_given.sample_ids == of_found.sample_ids, "a label changed an id"
    assert [CLASSES[label] for label in labels.tolist()] == [key.split("/")[-2] for key in info.keys]
    assert given.targets.tolist() == [0] * 4 + [3] * 4

    rows = [f"{path.relative_to(val)},{path.parent.name}\n" for path in val.glob("*/*")]
    key_list = tmp_path / "list.csv"
    key_list.write_text("key,label\n" + "".join(rows))
    listed = SuperDataset(val, RECIPE, key_list=key_list, classes=CLASSES[::-1], **where)
    assert (listed.classes, listed.targets.tolist()) == (CLASSES[::-1], [3] * 4 + [0] * 4)
    assert warned(caplog) == ["bee, cat"]


@pytest.mark.parametrize("label", ["dog", "1"])
def test_labels_of_other_classes_are_refused(shared_stack, val, tmp_path, label):
    key_list = tmp_path / "list.csv"
    key_list.write_text(f"key,label\nant/00000.jpg,{label}\n")
    for source in ({}, {"key_list": key_list}):
        dataset = SuperDataset(
            val, RECIPE, classes=["ant", "bee"], coordinator=shared_stack.address, **source
        )
        with pytest.raises(SourceError, match=r"'dog'|labels are not names"):
            len(dataset)
    for classes in ([], "ant", ["ant", "ant"], ["ant", 1], {"ant": 0}, ["caf\udce9"]):
        with pytest.raises(ConfigError, match="classes must be distinct names"):
            SuperDataset(val, RECIPE, classes=classes)
