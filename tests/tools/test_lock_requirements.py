"""The locks pin what pyproject.toml declares, in versions that it allows, by hash; those of an image fit."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from packaging.requirements import Requirement

from tools.lock_requirements import ROOT, locks


def pinned(file):
    """Versions by name."""
    return dict(re.findall(r"(?m)^([\w.-]+)==(\S+) ", (ROOT / file).read_text(encoding="ascii")))


@pytest.mark.parametrize("file", locks())
def test_pins_are_hashed_and_what_pyproject_allows(file):
    declared = {name: Requirement(text) for name, text in locks()[file].items()}
    text = (ROOT / file).read_text(encoding="ascii")
    pins = pinned(file)
    wrong = [name for name in declared if not declared[name].specifier.contains(pins.get(name, "0"))]
    assert not wrong, "run make lock"
    entries = re.split(r"(?m)^(?=\w)", text)[1:]
    assert len(entries) == len(pins)
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text, "addresses of an index"


def test_what_is_installed_together_agrees():
    docker = [pinned(file) for file in locks() if "/docker/" in file]
    function = [pinned(file) for file in locks() if "/function/" in file]
    assert docker
    assert function
    for first, second in [*combinations(docker, 2), *combinations(function, 2)]:
        assert all(first[name] == second[name] for name in first.keys() & second.keys())


def test_the_coordinators_functions_and_lambdas_decode_alike():
    function = pinned("infra/function/requirements.txt")
    assert function.items() <= pinned("infra/docker/coordinator-requirements.txt").items()
    assert not function.keys() & {"boto3", "botocore", "s3transfer", "urllib3"}, "Lambda's runtime has them"
