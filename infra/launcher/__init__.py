"""The cluster launcher: one entry point that is started on every host of a training run, and ends on all of
them together. Not in the wheel; docs/clusters.md tells how it is used.

``python -m infra.launcher`` (:mod:`infra.launcher.__main__`) runs one host's part. Which part that is says
:mod:`infra.launcher.cluster`; hosts agree on beginning and end through :mod:`infra.launcher.leader` and
:mod:`infra.launcher.member`. ``python -m infra.launcher.submit`` makes a SageMaker job of it,
``python -m infra.launcher.local`` starts all hosts of a run as processes of one machine.
"""

from __future__ import annotations

__all__: list[str] = []
