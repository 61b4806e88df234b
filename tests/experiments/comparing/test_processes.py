"""The processes of a round: one that fails ends the others, also one that does not listen."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

from superdl.experiments.comparing import processes
from superdl.experiments.comparing.processes import RunProcess, run_together

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_RUN = """#!{python}
import signal, sys
spec = sys.argv[-1]
if spec.endswith("fails"):
    open("{fifo}").close()  # until the other one no longer listens
    sys.exit(3)
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("{fifo}", "w").close()
while True:
    signal.pause()
"""


def test_a_run_that_does_not_end_when_asked_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in a collective, or in a call of C, whose turn to look at signals never comes."""
    fifo, stand_in = tmp_path / "fifo", tmp_path / "run"
    os.mkfifo(fifo)
    stand_in.write_text(_RUN.format(python=sys.executable, fifo=fifo))
    stand_in.chmod(0o700)
    monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=str(stand_in)))
    runs = [RunProcess(name, tmp_path / name, tmp_path / f"{name}.txt") for name in ("fails", "hangs")]
    run_together(runs, lambda: None, end_wait_s=0.1)
    failed, hung = runs
    assert (failed.code, failed.was_told_to) == (3, False)
    assert (hung.code, hung.was_told_to) == (-signal.SIGKILL, True)
