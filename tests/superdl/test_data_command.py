"""``superdl data``: what it makes, lists and refuses."""

import json

import pytest

from superdl.experiments.data import MADE_SETS, PUBLISHED_SETS
from superdl.main import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_set_is_made_where_its_name_says_and_listed(tmp_path, capsys):
    assert main(["data", "make", "mnist-like", "--samples", "20"]) == 0
    told = capsys.readouterr()
    place = tmp_path / "data" / "mnist-like-20"
    assert f"mnist-like is in {place}\n" in told.out
    assert "20 training and 10 validation images" in told.err
    assert len(list(place.glob("train/*/*.png"))) == 20

    assert main(["data", "make", "mnist-like", "--samples", "20", "--seed", "5", "--directory", "mine"]) == 0
    told = capsys.readouterr()
    assert f"mnist-like is in {tmp_path / 'mine'}" in told.out
    assert "superdl run digits --set data.kind=mnist-like" in told.out

    assert main(["data", "list", "--json"]) == 0
    sets = {one["name"]: one for one in json.loads(capsys.readouterr().out)["sets"]}
    assert sets.keys() == {"digits", *MADE_SETS}
    assert sets["mnist-like"]["there"] == ["data/mnist-like-20"]
    assert sets["mnist-like"]["stands_in_for"] == "mnist"
    assert (sets["imagenet-like"]["train"], sets["imagenet-like"]["quick"]) == (12_800, 1_000)
    assert 1.4e9 < sets["imagenet-like"]["bytes"] < 1.8e9


def test_the_list_names_every_set_for_people(capsys):
    assert main(["data", "list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("digits", *MADE_SETS, *PUBLISHED_SETS))


def test_digits_are_made_and_counted_as_the_list_says(tmp_path, capsys):
    assert main(["data", "make", "digits"]) == 0
    capsys.readouterr()
    main(["data", "list", "--json"])
    digits = json.loads(capsys.readouterr().out)["sets"][0]
    counts = json.loads((tmp_path / "data" / "digits" / "manifest.json").read_text())["counts"]
    assert {split: digits[split] for split in counts} == counts
    assert digits["there"] == ["data/digits"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny-imagenet"], "must be downloaded: unpack it to data/tiny-imagenet-200"),
        (["imagenette"], "NAME must be one of digits, tiny-imagenet-like"),
        (["digits", "--samples", "5"], "the digits are 1,797 real scans"),
        (["mnist-like", "--seed", "-1"], "--seed must be a whole number of at least 0"),
        (["mnist-like", "--samples", "9"], "mnist-like has 10 classes"),
    ],
)
def test_what_cannot_be_made_is_said(words, message, capsys):
    assert main(["data", "make", *words]) == 2
    assert message in capsys.readouterr().err
