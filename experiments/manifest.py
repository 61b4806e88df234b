"""``manifest.json``: what a run was, so that it can be repeated and its figures be compared.

It may be shown to anyone: no path of the machine, no host or user name, no variable of the environment. How
the run went is in `experiments.report`.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.price_table import load_prices
from superdl.experiments.checkout import checkout_at
from superdl.experiments.environment import describe_environment
from superdl.experiments.hardware import describe_hardware
from superdl.experiments.strict_json import write_json
from superdl.super_wire.discretion import without_credentials

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from superdl.experiments.spec import Spec

__all__ = ["LOCAL_PATH", "MANIFEST_FORMAT", "Manifest"]

MANIFEST_FORMAT = 1

LOCAL_PATH = "<path of the machine>"
"""Stands for an absolute path; the run's spec.yaml has it."""

_SOFTWARE = ("python", "platform", "torch_threads", "device", "cuda", "packages")
_LOCAL = ("/", "\\", "~", "file:", "unix:")


class Manifest:
    """The manifest of one run: looked up once, at its start, since files and commits move on meanwhile."""

    def __init__(
        self, directory: Path, spec: Spec, device: torch.device, *, started_at: str, ranks: int = 1
    ) -> None:
        """Write ``manifest.json`` in ``directory``, with status ``running``.

        Raises:
            ConfigError: the price table that SUPER_PRICES names cannot be read.

        """
        checkout = checkout_at()
        environment = describe_environment(device)
        self._path = directory / "manifest.json"
        self._known: dict[str, Any] = {
            "format": MANIFEST_FORMAT,
            "name": spec.name,
            "status": "running",
            "started_at": started_at,
            "ended_at": None,
            "ranks": ranks,
            "seed": spec.seed,
            "commit": None if checkout is None else checkout.commit,
            "dirty": None if checkout is None else checkout.dirty,
            "software": {name: environment[name] for name in _SOFTWARE},
            "hardware": describe_hardware(),
            "spec": _shareable(spec.to_mapping()),
            "prices": asdict(load_prices(os.environ.get("SUPER_PRICES"))),
        }
        write_json(self._known, self._path)

    def end(self, status: str, ended_at: str) -> None:
        """Write it again, with how and when the run ended."""
        write_json(self._known | {"status": status, "ended_at": ended_at}, self._path)


def _shareable(value: Any) -> Any:
    """A spec's values without paths of the machine and without credentials in addresses."""
    if isinstance(value, dict):
        return {key: _shareable(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.startswith(_LOCAL) or value[1:3] == ":\\":
        return LOCAL_PATH
    return without_credentials(value)
