"""The registry of executors, which run functions."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from superdl.super_wire.errors import ConfigError

_HERE = "superdl.coordinator.executors"


class RunsOn(enum.Enum):
    """The place where functions run, which determines what they can reach and how they are billed."""

    THIS_HOST = "processes on the coordinator's machine"
    OTHER_HOSTS = "machines that are billed by the hour"
    SERVICE = "a service that is billed by use"


@dataclass(frozen=True, slots=True)
class ExecutorKind:
    """An entry in the registry."""

    name: str  # in settings, prices and reports
    implementation: str  # the class in the coordinator, as module:attribute
    runs_on: RunsOn
    location: str  # runs_on as text, for messages: functions run on ...
    # Embedded runs that differ in these settings use different coordinators.
    chosen_by: tuple[str, ...] = ()


# Sampler, coordinator and experiments each read the setting in their own process.
EXECUTORS = {
    kind.name: kind
    for kind in (
        ExecutorKind("local", f"{_HERE}.local_worker:LocalExecutor", RunsOn.THIS_HOST, "this host"),
        ExecutorKind(
            "workers",
            f"{_HERE}.workers:WorkersExecutor",
            RunsOn.OTHER_HOSTS,
            "workers that call in",
            chosen_by=("shared_files",),
        ),
        ExecutorKind(
            "lambda",
            f"{_HERE}.aws_lambda:LambdaExecutor",
            RunsOn.SERVICE,
            "Lambda",
            chosen_by=("lambda_function", "lambda_region", "lambda_endpoint_url"),
        ),
    )
}


def executor_names(text: str, setting: str = "executor") -> tuple[str, ...]:
    """Parse a setting that lists executors, cheapest first.

    >>> executor_names("local, lambda")
    ('local', 'lambda')
    """
    names = tuple(name.strip() for name in text.split(","))
    if "ray" in names:
        raise ConfigError(
            f"{setting}: 'ray' was replaced by 'workers'; start them on a cluster with superdl worker --ray "
            "HEAD:6379 --num 8 (docs/deploy/clusters.md)"
        )
    if not set(names) <= set(EXECUTORS) or len(set(names)) < len(names):
        raise ConfigError(
            f"{setting} must be one of {', '.join(EXECUTORS)}, or several of them separated by commas, the "
            f"cheapest first; got {text!r}"
        )
    return names
