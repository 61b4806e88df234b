"""Files generated from the list of metrics are up to date."""

from tools import monitoring


def test_what_follows_from_the_list_is_written_down():
    assert monitoring.main(["--check"]) == 0, "python -m tools.monitoring writes it"
