"""The pages of the studies say what was measured, and the tool that writes them does."""

import json

import pytest

from superdl.experiments.spec import load_spec
from tools import studies


def test_pages_say_what_the_file_of_figures_has(monkeypatch, tmp_path, capsys):
    assert studies.main(["--check"]) == 0
    measured = json.loads(studies.FIGURES_FILE.read_text(encoding="utf-8"))
    assert list(measured) == list(studies.STUDIES)
    measured["hpo_sharing"]["arms"]["super"]["cpu_s"] = [12345.0]
    monkeypatch.setattr(studies, "FIGURES_FILE", tmp_path / "studies.json")
    studies.FIGURES_FILE.write_text(json.dumps(measured), encoding="utf-8")
    assert studies.main(["--check"]) == 1
    told = capsys.readouterr().err
    assert "hpo_sharing.md" in told
    assert "performance.md" in told
    assert "mnist_split.md" not in told


@pytest.mark.parametrize("name", studies.STUDIES)
def test_each_page_has_its_arms_and_holds_them_against_the_original(name):
    page = (studies.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"<!-- figures of {name} -->" in page
    assert "## Beside the original" in page
    meaning = page.split("## What it means")[1]
    assert any(f"**{verdict}**" in meaning for verdict in ("Confirmed", "Refuted", "Not comparable"))
    arms = load_spec(name, [], quick=True).compare.arms
    measured = json.loads(studies.FIGURES_FILE.read_text(encoding="utf-8"))[name]["arms"]
    assert list(measured) == list(arms)


def test_figures_and_ratios_are_written_where_a_page_asks():
    study = {"date": "2026-01-02", "took_s": 60, "machine": "2 cores", "warmup_epochs": 1}
    arms = {"a": {"cpu_s": [1.0, 2.0, 4.0], "accuracy": [0.5]}, "b": {"cpu_s": [8.0]}}
    page = "<!-- =s cpu_s b/a -->old<!-- -->, <!-- =s cpu_s a --><!-- -->\n"
    page += "<!-- figures of s -->\nold\n<!-- end -->\n"
    told = studies.regenerated(page, {"s": study | {"arms": arms}})
    assert "<!-- =s cpu_s b/a -->4.00<!-- -->, <!-- =s cpu_s a -->2.00<!-- -->" in told
    assert "| total CPU | s | 2.00 (1.00 to 4.00) | 8.00 |" in told
    assert "| best validation accuracy |  | 0.500 | - |" in told
    assert studies.regenerated(told, {"s": study | {"arms": arms}}) == told
    with pytest.raises(KeyError, match="absent"):
        studies.regenerated("<!-- =absent cpu_s a --><!-- -->", {})


def test_an_unknown_study_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as ended:
        studies.main(["resnet51"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("resnet51", *studies.STUDIES))
