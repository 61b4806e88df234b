"""A SageMaker training job with two instance groups, as ``CreateTrainingJob`` wants it; checked when made.

The container's entry point is the launcher itself, so that SageMaker's SIGTERM reaches it. Traffic between
the containers is encrypted by the platform, and who reaches them is said by the VPC's security groups: so the
launcher is told ``--insecure``. How a job is sent is :mod:`infra.launcher.submit`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from infra.launcher.cluster import DATA_GROUP, TRAINING_GROUP
from infra.launcher.options import parse, settings_of
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAME_MAX", "Channel", "Instances", "TrainingJob"]

NAME_MAX = 63

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_CHANNEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/?[a-zA-Z_0-9+=,.@/_-]+")
_URI = re.compile(r"s3://[^/]+(/.*)?")
_CHANNELS_MAX = 20
_WORDS_MAX = 100
_WORD_MAX = 256
_PARAMETERS_MAX = 100
_PARAMETER_NAME_MAX = 256
_PARAMETER_MAX = 2500
_VARIABLES_MAX = 100
_VARIABLE_MAX = 512
_PENDING_MIN_S = 1800
_GROUPS = (DATA_GROUP, TRAINING_GROUP)


@dataclass(frozen=True, slots=True)
class Instances:
    """How many machines of one type, such as ``ml.g5.xlarge:2``."""

    kind: str
    count: int

    @classmethod
    def parse(cls, text: str) -> Instances:
        """Read ``type`` or ``type:count``.

        Raises:
            ConfigError: it is neither.
        """
        match = re.fullmatch(r"(ml\.[a-z0-9-]+\.[a-z0-9-]+)(?::([1-9][0-9]{0,3}))?", text)
        if match is None:
            msg = f"machines are ml.TYPE.SIZE:COUNT, such as ml.g5.xlarge:2; not {text!r}"
            raise ConfigError(msg)
        return cls(match[1], int(match[2] or 1))

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}"


@dataclass(frozen=True, slots=True)
class Channel:
    """Objects that SageMaker brings to ``/opt/ml/input/data/NAME``; on the hosts of ``groups``, or on all."""

    name: str
    uri: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is asked of SageMaker.

    Attributes:
        name: unique in the account and region.
        role: ARN of the role that the containers have.
        image: with SUPER, its folder ``infra``, and the training script or what runs it.
        command: the training script and its arguments.
        options: of the launcher.
        output: ``s3://`` prefix for what training leaves in ``/opt/ml/model`` and ``/opt/ml/output/data``.
        checkpoints: ``s3://`` prefix that ``/opt/ml/checkpoints`` is kept in, if any.
        fast_file: whether channels are streamed rather than copied first.
        max_pending_s: how long the job may wait for machines; 0 for SageMaker's own bound.
        restarts: how often SageMaker starts the job again after a fault of its own.
    """

    name: str
    role: str
    image: str
    command: tuple[str, ...]
    output: str
    training: Instances
    data: Instances | None = None
    options: tuple[str, ...] = ()
    channels: tuple[Channel, ...] = ()
    hyper_parameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    checkpoints: str = ""
    volume_gb: int = 50
    fast_file: bool = False
    max_runtime_s: int = 86_400
    max_pending_s: int = 0
    restarts: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_names()
        self._check_texts()
        self._check_options()
        self._check_channels()

    def _check_names(self) -> None:
        _see(
            bool(_NAME.fullmatch(self.name)) and len(self.name) <= NAME_MAX,
            f"a job's name has up to {NAME_MAX} letters, digits and hyphens; not {self.name!r}",
        )
        _see(
            bool(_ROLE.fullmatch(self.role)),
            f"a role is an ARN, such as arn:aws:iam::123456789012:role/name; not {self.role!r}",
        )
        _see(bool(self.image and self.command), "a job has an image, and a training script after --")
        _see(
            bool(self.subnets) == bool(self.security_groups),
            "subnets and security groups belong together: name both, or neither",
        )
        for prefix in (self.output, *filter(None, [self.checkpoints])):
            _see(bool(_URI.fullmatch(prefix)), f"where results go is s3://bucket/prefix; not {prefix!r}")
        for name, least in (("volume_gb", 1), ("max_runtime_s", 1), ("restarts", 0)):
            _see(getattr(self, name) >= least, f"{name} is at least {least}; not {getattr(self, name)}")
        _see(
            not self.max_pending_s or self.max_pending_s >= _PENDING_MIN_S,
            f"max_pending_s is 0 or at least {_PENDING_MIN_S}; not {self.max_pending_s}",
        )

    def _check_texts(self) -> None:
        words = self._words()
        _see(
            len(words) <= _WORDS_MAX and all(len(word) <= _WORD_MAX for word in words),
            f"the command has up to {_WORDS_MAX} words of {_WORD_MAX} characters; hyper-parameters take more",
        )
        for name, value in self.hyper_parameters.items():
            _see(
                0 < len(name) <= _PARAMETER_NAME_MAX and len(value) <= _PARAMETER_MAX,
                f"the hyper-parameter {name[:80]!r} is too long: up to {_PARAMETER_MAX} characters",
            )
        for name, value in self.environment.items():
            _see(
                bool(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)) and len(value) <= _VARIABLE_MAX,
                f"the variable {name[:80]!r} is no name, or has more than {_VARIABLE_MAX} characters",
            )
        _see(
            len(self.hyper_parameters) <= _PARAMETERS_MAX and len(self.environment) < _VARIABLES_MAX,
            f"a job has up to {_PARAMETERS_MAX} hyper-parameters and {_VARIABLES_MAX} variables",
        )

    def _check_options(self) -> None:
        """By the launcher's own parser: machines that are paid for would hear it else."""
        try:
            settings_of(parse(self._words()))
        except (ConfigError, SystemExit) as error:
            msg = f"the launcher would not take its options {' '.join(self.options)}: {error}"
            raise ConfigError(msg) from error

    def _check_channels(self) -> None:
        names = [channel.name for channel in self.channels]
        _see(
            len(set(names)) == len(names) <= _CHANNELS_MAX,
            f"a job has up to {_CHANNELS_MAX} channels, each of another name",
        )
        groups = set(_GROUPS if self.data else _GROUPS[1:])
        for channel in self.channels:
            _see(
                bool(_CHANNEL.fullmatch(channel.name)),
                f"a channel's name has letters, digits and . _ -; not {channel.name!r}",
            )
            _see(
                bool(_URI.fullmatch(channel.uri)),
                f"the channel {channel.name} is s3://bucket/prefix; not {channel.uri!r}",
            )
            for group in channel.groups:
                _see(group in groups, f"the channel {channel.name} is for {group}, which the job has not")

    def _words(self) -> list[str]:
        return [*self.options, "--insecure", "--", *self.command]

    def request(self) -> dict[str, Any]:
        """The request of ``CreateTrainingJob``."""
        found: dict[str, Any] = {
            "TrainingJobName": self.name,
            "RoleArn": self.role,
            "AlgorithmSpecification": {
                "TrainingImage": self.image,
                "TrainingInputMode": "FastFile" if self.fast_file else "File",
                "ContainerEntrypoint": ["python3", "-m", "infra.launcher"],
                "ContainerArguments": self._words(),
            },
            "OutputDataConfig": {"S3OutputPath": self.output},
            "ResourceConfig": {"InstanceGroups": self._groups(), "VolumeSizeInGB": self.volume_gb},
            "StoppingCondition": {"MaxRuntimeInSeconds": self.max_runtime_s},
            "EnableInterContainerTrafficEncryption": True,
            "Environment": {"PYTHONUNBUFFERED": "1", **self.environment},
        }
        if self.max_pending_s:
            found["StoppingCondition"]["MaxPendingTimeInSeconds"] = self.max_pending_s
        if self.channels:
            found["InputDataConfig"] = self._channels()
        if self.hyper_parameters:
            found["HyperParameters"] = dict(self.hyper_parameters)
        if self.subnets:
            found["VpcConfig"] = {
                "Subnets": list(self.subnets),
                "SecurityGroupIds": list(self.security_groups),
            }
        if self.checkpoints:
            found["CheckpointConfig"] = {"S3Uri": self.checkpoints}
        if self.restarts:
            found["RetryStrategy"] = {"MaximumRetryAttempts": self.restarts}
        if self.tags:
            found["Tags"] = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        return found

    def _groups(self) -> list[dict[str, Any]]:
        told = [(DATA_GROUP, self.data), (TRAINING_GROUP, self.training)]
        return [
            {
                "InstanceGroupName": name,
                "InstanceType": instances.kind,
                "InstanceCount": instances.count,
            }
            for name, instances in told
            if instances is not None
        ]

    def _channels(self) -> list[dict[str, Any]]:
        """As soon as one names groups, SageMaker wants all to."""
        everyone = [group["InstanceGroupName"] for group in self._groups()]
        grouped = any(channel.groups for channel in self.channels)
        found = []
        for channel in self.channels:
            source = {
                "S3DataType": "S3Prefix",
                "S3Uri": channel.uri,
                "S3DataDistributionType": "FullyReplicated",
            }
            groups = {"InstanceGroupNames": list(channel.groups) or everyone} if grouped else {}
            found.append({"ChannelName": channel.name, "DataSource": {"S3DataSource": {**source, **groups}}})
        return found


def _see(holds: bool, otherwise: str) -> None:  # noqa: FBT001  # it is what is seen to
    if not holds:
        raise ConfigError(otherwise)
