"""``superdl data make`` and ``superdl data list``."""

import json

from superdl.experiments.data import MADE_SETS, PUBLISHED_SETS
from superdl.main import main


def test_a_set_is_made_where_its_name_says_and_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "make", "mnist-like", "--samples", "20"]) == 0
    place = tmp_path / "data" / "mnist-like-20"
    told = capsys.readouterr().out
    assert f"superdl run digits --set data.kind=mnist-like --set 'data.directory={place}'" in told
    assert [len(list(place.glob(f"{split}/*/*.png"))) for split in ("train", "val")] == [20, 10]
    assert main(["data", "make", "digits"]) == 0
    capsys.readouterr()

    assert main(["data", "list", "--json"]) == 0
    sets = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sets"]}
    assert sets.keys() == {"digits", *MADE_SETS}
    assert sets["mnist-like"]["there"] == ["data/mnist-like-20"]
    assert sets["mnist-like"]["stands_in_for"] == "mnist"
    assert (sets["imagenet-like"]["train"], sets["imagenet-like"]["quick"]) == (12_800, 1_000)
    assert 1.4e9 < sets["imagenet-like"]["bytes"] < 1.8e9
    counts = json.loads((tmp_path / "data" / "digits" / "manifest.json").read_text())["counts"]
    assert {split: sets["digits"][split] for split in counts} == counts
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("digits", *MADE_SETS, *PUBLISHED_SETS))
