"""What a run of ``superdl run`` needs of its hosts, beyond options: which directories, which custom steps.

The launcher reads the spec that it is to start, with the same parser. So it allows its coordinator and its
functions what that spec names, and nothing else; what it cannot know, it demands before anything starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from infra.launcher.settings import OptionParser
from superdl import run_command
from superdl.experiments.augmentations import shipped_modules
from superdl.experiments.data import directories_of
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import executor_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.launcher import Launch
    from superdl.experiments.spec import Spec

__all__ = ["file_settings", "spec_of", "steps_allowed"]

_MODULE = "superdl.main"
_ROOTS, _SHARED, _STEPS = "SUPER_FILE_ROOTS", "SUPER_RAY_SHARED_FILES", "SUPER_STEP_MODULES"


def spec_of(command: Sequence[str], environment: Mapping[str, str]) -> Spec | None:
    """The spec that ``[python] -m superdl.main run SPEC ...`` trains; ``None`` of any other command.

    Raises:
        ConfigError: ``superdl run`` would refuse it.
    """
    words = list(command)
    if _MODULE not in words[:3] or words[words.index(_MODULE) + 1 :][:1] != ["run"]:
        return None
    parser = OptionParser(prog="superdl run", add_help=False)
    run_command.add_arguments(parser)
    return run_command.spec_of(parser.parse_args(words[words.index(_MODULE) + 2 :]), environment)


def steps_allowed(spec: Spec | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which functions import the steps that come with SUPER and that the spec names."""
    listed = [*environment.get(_STEPS, "").split(","), *shipped_modules(spec.recipe.steps if spec else ())]
    modules = ",".join(dict.fromkeys(filter(None, listed)))
    return {**environment, _STEPS: modules} if modules else dict(environment)


def file_settings(launch: Launch) -> dict[str, str]:
    """The variables with which the run's coordinator reads the spec's images, where these are files.

    Raises:
        ConfigError: it may not, or functions would not see them; the message says what to set.
    """
    spec, environment = launch.spec, launch.environment
    if spec is None or not spec.loader.runs_functions:
        return {}
    directories = [str(directory) for directory in directories_of(spec.data)]
    if not directories:
        return {}
    return _roots(launch, directories) | _shared(launch, directories[0], environment.get(_SHARED, ""))


def _roots(launch: Launch, directories: Sequence[str]) -> dict[str, str]:
    """Others reach a coordinator beyond loopback, so that it reads what is named to it, and no more."""
    told = launch.environment.get(_ROOTS, "")
    if launch.cluster.on_loopback or not told:
        return {} if launch.cluster.on_loopback else {_ROOTS: os.pathsep.join(directories)}
    roots = [Path(os.path.realpath(root)) for root in told.split(os.pathsep) if root]
    if any(Path(os.path.realpath(directories[0])).is_relative_to(root) for root in roots):
        return {}
    msg = f"the images are in {directories[0]}, which is in none of {_ROOTS}={told}: add it, or leave it out"
    raise ConfigError(msg)


def _shared(launch: Launch, directory: str, told: str) -> dict[str, str]:
    """Ray's functions get files only where all of their hosts see the same ones."""
    names = executor_names(launch.settings.executor)
    if "local" in names or told.lower() in {"1", "true", "yes", "on"}:
        return {}
    cluster = launch.cluster
    hosts = {*cluster.data_hosts, *(cluster.training_hosts if launch.settings.trainer_cpus else ())}
    others = ", ".join(sorted(hosts - {cluster.leader}))
    if "ray" in names and not others:
        return {_SHARED: "1"}
    where = f"on {others}" if "ray" in names else f"of the executor {launch.settings.executor}"
    msg = (
        f"the images are in {directory}, and functions {where} read them: mount it at the same place on "
        f"every host and set {_SHARED}=1 (for ray), name a bucket (--set data.train=s3://bucket/prefix), or "
        f"have {cluster.leader} decode all (--executor local)"
    )
    raise ConfigError(msg)
