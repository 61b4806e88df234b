"""SUPER on AWS: the template, and the commands that it needs before (:mod:`infra.make_secrets`) and after
(:mod:`infra.teardown`). Not in the wheel; docs/deploy.md walks through it.
"""

from __future__ import annotations

__all__: list[str] = []
