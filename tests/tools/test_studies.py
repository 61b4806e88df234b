"""The studies' pages agree with the recorded measurements."""

import json

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
