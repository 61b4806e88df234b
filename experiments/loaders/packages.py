"""Says which extra has the package that a loader needs, where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from superdl.super_wire.errors import ConfigError

__all__ = ["need_package"]


def need_package(module: str, kind: str, note: str = "") -> None:
    """See that a package can be imported.

    Args:
        module: what is imported.
        kind: the loader that needs it, and the name of the extra that has it.
        note: what else whoever installs it should know.

    Raises:
        ConfigError: it is not installed.

    """
    if find_spec(module) is None:
        raise ConfigError(
            f"loader.kind {kind} needs the package {module}, which is not installed: "
            f"pip install 'superdl[{kind}]'{f' ({note})' if note else ''}, or set another loader.kind"
        )
