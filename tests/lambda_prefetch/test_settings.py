"""Settings come from the environment, and invalid values are refused by name."""

import os

import pytest

from superdl.lambda_prefetch.settings import FunctionSettings, decoding_threads
from superdl.super_wire.errors import ConfigError


def test_lists_switches_and_paths_are_parsed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    settings = FunctionSettings.from_environment(
        {
            "SUPER_STEP_MODULES": "a.b, c,",
            "SUPER_FILE_ROOTS": os.pathsep.join([str(tmp_path / "link"), "/data"]),
            "SUPER_STORE": str(tmp_path / "link" / "store"),
            "SUPER_STORE_READ_ONLY": "true",
            "SUPER_LOG_LEVEL": "warning",
        }
    )
    assert settings.step_modules == {"a.b", "c"}
    assert settings.file_roots == (os.path.realpath(tmp_path), "/data")
    assert (settings.store, settings.store_read_only) == (os.path.realpath(tmp_path / "store"), True)
    assert settings.log_level == "WARNING"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SUPER_FETCH_THREADS", "many"),
        ("SUPER_FETCH_THREADS", "65"),
        ("SUPER_FETCH_BYTES", "1000"),
        ("SUPER_LOG_LEVEL", "loud"),
        ("SUPER_STORE_READ_ONLY", "maybe"),
        ("SUPER_STORE", "gs://bucket/packs"),
    ],
)
def test_an_invalid_value_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=name):
        FunctionSettings.from_environment({name: value})


@pytest.mark.parametrize("value", ["", " ", "none", "auto", "NONE"])
def test_a_store_may_be_turned_off(value):
    assert FunctionSettings.from_environment({"SUPER_STORE": value, "SUPER_STORE_READ_ONLY": "0"}).store == ""


def test_a_secret_excludes_a_password():
    assert FunctionSettings.from_environment({"SUPER_CACHE_SECRET": "a/b"}).cache_secret == "a/b"
    for name in ("SUPER_CACHE_PASSWORD", "SUPER_CACHE_USERNAME"):
        with pytest.raises(ConfigError, match=f"SUPER_CACHE_SECRET and {name}") as caught:
            FunctionSettings.from_environment({"SUPER_CACHE_SECRET": "stack/function", name: "hunter2"})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("memory_mb", "cores", "threads"),
    [
        ("128", 2, 1),
        ("1769", 2, 1),
        ("1770", 2, 2),
        ("10240", 6, 6),
        ("10240", 2, 2),
        ("", 6, 1),
    ],
)
def test_lambdas_memory_and_the_usable_cores_limit_the_decoders(memory_mb, cores, threads, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory_mb)
    assert (decoding_threads(0), decoding_threads(7)) == (threads, 7)
