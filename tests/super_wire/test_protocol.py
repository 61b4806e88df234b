"""The function tells the installed version, or that it was not installed."""

from __future__ import annotations

from importlib import metadata

from superdl.super_wire.protocol import installed_version


def test_installed(tmp_path, monkeypatch):
    info = tmp_path / "superdl-12.34.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: superdl\nVersion: 12.34\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version.__wrapped__() == "12.34"


def test_not_installed(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("superdl.super_wire.protocol.version", version)
    assert installed_version.__wrapped__().startswith("0+unpackaged")
