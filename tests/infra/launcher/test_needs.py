"""The launcher allows its run the spec's own directories and steps, and says first what is lacking."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.launcher import Launch
from infra.launcher.needs import file_settings, spec_of, steps_allowed
from infra.launcher.settings import Cluster, parse
from infra.launcher.trust import Trust
from superdl.super_wire.errors import ConfigError

RUN = ["-m", "superdl.main", "run"]
ROOTS, SHARED = "SUPER_FILE_ROOTS", "SUPER_RAY_SHARED_FILES"
HEAVY = "experiments.augmentations.heavy"


def settings_of(*words, data=("10.0.0.1",), training=("10.0.0.2",), options=(), environment=None):
    cluster = Cluster(data, training, (data + training)[0])
    spec = spec_of([*RUN, *words], {})
    settings = parse([*options, "--", *RUN, *words])
    return file_settings(Launch(cluster, settings, Trust(), environment or {}, RUN, Path(), "", spec))


def test_a_coordinator_that_others_reach_may_read_the_sets_of_its_spec_and_no_more(tmp_path):
    here = Path.cwd()
    drawn = [str(here / "data" / name) for name in ("mnist", "mnist-superdl", "mnist-like-4000")]
    assert settings_of("mnist_split", "--quick") == {ROOTS: os.pathsep.join(drawn), SHARED: "1"}
    own = ("digits", f"--set=data.train=file://{tmp_path}/a", f"--set=data.val={tmp_path}/b")
    assert settings_of(*own)[ROOTS] == f"{tmp_path}/a{os.pathsep}{tmp_path}/b"
    bucket = ("digits", "--set=data.train=s3://bucket/train")
    assert settings_of(*bucket) == {}
    assert settings_of("digits", "--set=loader.kind=torch") == {}
    assert settings_of("digits", data=(), training=("127.0.0.2",), options=("--executor=local",)) == {}


def test_functions_on_other_hosts_want_files_that_these_see():
    two = {"data": ("10.0.0.1", "10.0.0.3")}
    with pytest.raises(ConfigError, match=r"digits, and functions on 10\.0\.0\.3 .*SUPER_RAY_SHARED_FILES=1"):
        settings_of("digits", **two)
    with pytest.raises(ConfigError, match=r"functions on 10\.0\.0\.2 read"):
        settings_of("digits", data=(), training=("10.0.0.1", "10.0.0.2"), options=("--trainer-cpus=1",))
    with pytest.raises(ConfigError, match="functions of the executor lambda"):
        settings_of("digits", options=("--executor=lambda",))
    assert SHARED not in settings_of("digits", **two, environment={SHARED: "true"})
    assert SHARED not in settings_of("digits", **two, options=("--executor=local,ray",))


def test_roots_that_leave_the_images_out_are_told_before_anything_starts():
    assert ROOTS not in settings_of("digits", environment={ROOTS: f"/srv{os.pathsep}{Path.cwd()}"})
    with pytest.raises(ConfigError, match="digits, which is in none of SUPER_FILE_ROOTS=/srv"):
        settings_of("digits", environment={ROOTS: "/srv"})


def test_steps_that_come_along_are_allowed_where_the_spec_names_them():
    spec = spec_of(["python3", *RUN, "resnet50_heterogeneous"], {})
    assert steps_allowed(spec, {"SUPER_STEP_MODULES": "mine"}) == {"SUPER_STEP_MODULES": f"mine,{HEAVY}"}
    assert steps_allowed(spec_of([*RUN, "digits"], {}), {"A": "1"}) == {"A": "1"}


def test_a_command_that_is_no_run_has_no_needs_and_a_run_that_is_wrong_is_refused():
    assert spec_of(["train.py", "--epochs", "3"], {}) is None
    assert spec_of(["-m", "superdl.main", "compare", "digits"], {}) is None
    with pytest.raises(ConfigError, match="unrecognized arguments: --quik"):
        spec_of([*RUN, "digits", "--quik"], {})
    with pytest.raises(ConfigError, match="unknown key loader.batch"):
        spec_of([*RUN, "digits", "--set=loader.batch=1"], {})
