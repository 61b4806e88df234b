"""docs/monitoring.md and what else follows from the list of metrics agrees with it."""

from tools import monitoring


def test_what_follows_from_the_list_is_written_down():
    assert monitoring.main(["--check"]) == 0, "python -m tools.monitoring writes it"


def test_what_is_old_is_found_and_mended(tmp_path, monkeypatch, capsys):
    page = tmp_path / "monitoring.md"
    page.write_text("before\n<!-- metrics -->\n| old |\n<!-- end -->\nafter\n")
    monkeypatch.setattr(monitoring, "PAGE", page)
    monkeypatch.setattr(monitoring, "ROOT", tmp_path)
    assert monitoring.main(["--check"]) == 1
    assert "monitoring.md is out of date: run python -m tools.monitoring" in capsys.readouterr().err
    assert monitoring.main([]) == 0
    assert monitoring.main(["--check"]) == 0
    assert "super_batches_read_total" in page.read_text()
