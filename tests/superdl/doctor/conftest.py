"""Nothing is named by the environment that these tests run in."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_named(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SUPER_", "AWS_")) and name not in {"SUPER_STORE", "SUPER_STATE"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
