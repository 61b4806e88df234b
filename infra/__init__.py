"""SUPER on AWS: the template, and the commands that it needs before (:mod:`infra.make_secrets`) and after
(:mod:`infra.teardown`), which docs/deploy.md walks through; and on clusters: :mod:`infra.launcher`, of which
docs/clusters.md tells. Not in the wheel.
"""

from __future__ import annotations

__all__: list[str] = []
