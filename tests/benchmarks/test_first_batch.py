"""The rows of ``superdl bench first-batch`` tell medians and spread, by loader, workers and state."""

from __future__ import annotations

import pytest

from benchmarks.contenders import PILLOW, SUPER
from benchmarks.first_batch import COLD, FILES, WARM, Taken, rows_of
from benchmarks.first_batch_probe import ProbeResult


def taken(contender: str, workers: int, state: str, *first_batch_s: float) -> list[Taken]:
    return [
        Taken(number, contender, workers, state, ProbeResult(2 * seconds, seconds, seconds / 2, 10, 0))
        for number, seconds in enumerate(first_batch_s)
    ]


def test_rows_tell_medians_and_spread():
    plain, cold, warm = rows_of(
        [
            *taken(PILLOW, 2, FILES, 0.3, 0.5, 0.4),
            *taken(SUPER, 2, COLD, 0.2),
            *taken(SUPER, 2, WARM, 0.01, 0.03),
        ]
    )
    assert (plain["loader"], plain["state"], plain["count"]) == ("DataLoader + Pillow", "files", 3)
    assert [plain[f"first_batch_ms{end}"] for end in ("", "_min", "_max")] == pytest.approx([400, 300, 500])
    assert plain["open_ms"] == pytest.approx(800)
    assert plain["next_epoch_ms"] == pytest.approx(200)
    assert (cold["state"], cold["first_batch_ms"]) == ("cold", pytest.approx(200))
    assert (warm["state"], warm["first_batch_ms"]) == ("warm", pytest.approx(20))
