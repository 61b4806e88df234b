"""``python -m infra.launcher.submit [options] -- train.py [arguments]``: a training job on SageMaker.

Where there are no machines, ``submit`` asks again a bounded number of times, with pauses that grow; of
several types of machines each attempt takes the next. The container's entry point is the launcher itself, so
that SageMaker's SIGTERM reaches it. The platform encrypts traffic between the containers, and security groups
say who reaches them: so the launcher runs with ``--insecure``.

Exit codes: 0 the job has its machines (with ``--wait``: it is completed), 1 it failed, AWS refused, or
nobody watches it any more (the message names it, and how to end it), 2 an argument is wrong, 3 there were no
machines.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoRegionError,
    ParamValidationError,
)

from infra import NO_REGION, session_in
from infra.launcher.cluster import DATA_GROUP, TRAINING_GROUP
from infra.launcher.options import parse, settings_of
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["SubmitError", "main", "parser", "requests_of", "submit"]

_TRIES = 8  # of each call, by botocore
_POLL_S = 15.0
_LONGEST_PAUSE_S = 900.0
_MARGIN_S = 3600.0  # beyond a job's longest run: machines, image, channels, results
_LONGEST_PENDING_S = 28 * 86_400
_FAULTS_MAX = 40  # in a row, each of them after botocore's own tries: ten minutes and more
_NAME_MAX = 63
_NO_CAPACITY = "CapacityError"  # how the reason of a failure begins
_NO_QUOTA = "ResourceLimitExceeded"
_NAME_TAKEN = "ResourceInUse"
_PENDING_TOO_LONG = ("MaxPendingTime", "Pending")  # in the last words of a job that was stopped for it
_HAS_MACHINES = {"PreparingTrainingStack", "Downloading", "DownloadingTrainingImage", "Training", "Uploading"}
_ENDED = frozenset({"Completed", "Failed", "Stopped"})
_SERVER_FAULT = 500
_MARK = "SUPER_SUBMISSION"
"""The variable by which a job is known as this command's, where the answer to its request was lost."""


class SubmitError(Exception):
    """The job did not come to what was asked for; says why. ``code`` is the command's exit code."""

    def __init__(self, reason: str, code: int = 1) -> None:
        super().__init__(reason)
        self.code = code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m infra.launcher.submit",
        usage="%(prog)s [options] -- train.py [arguments]",
        description="Run a training job with SUPER on SageMaker, CPU hosts beside GPU hosts.",
    )
    several: dict[str, Any] = {"action": "append", "default": []}
    machines: dict[str, Any] = {"nargs": "+", "metavar": "TYPE:COUNT", "type": _instances}
    add = made.add_argument_group("the job").add_argument
    add("--name", default="", help="of the job (super- and some random digits)")
    add("--image", required=True, help="with SUPER, its folder infra and what training needs")
    add("--role", required=True, help="ARN of the role that the containers have")
    add("--output", required=True, help="s3://bucket/prefix for what training leaves")
    add("--training", required=True, **machines, help="GPU hosts; further types in their turn")
    add("--data", default=[None], **machines, help="CPU hosts; further types in their turn (none)")
    add("--volume-gb", type=int, default=50, help="disk of each host (50)")
    add(
        "--channel",
        **several,
        metavar="NAME=URI",
        help="objects for /opt/ml/input/data/NAME; NAME@dnn_group=URI for one group of hosts",
    )
    add("--fast-file", action="store_true", help="stream channels, do not copy them first")
    add("--hyper-parameter", **several, metavar="NAME=VALUE", help="--NAME VALUE for the script")
    add("--env", **several, metavar="NAME=VALUE", help="a variable of all hosts")
    add("--subnet", **several, help="of the VPC to run in")
    add("--security-group", **several, help="that lets these hosts reach each other")
    add("--checkpoints", default="", help="s3://bucket/prefix to keep /opt/ml/checkpoints in")
    add("--tag", **several, metavar="KEY=VALUE", help="a tag of the job")
    add("--launcher", **several, metavar="OPTION", help="the launcher's: --launcher=--trainer-cpus=spare")
    add = made.add_argument_group("bounds").add_argument
    add("--max-runtime-s", type=int, default=86_400, help="then SageMaker stops the job (86400)")
    add("--max-pending-s", type=int, default=0, help="the same without machines (SageMaker's)")
    add("--restarts", type=int, default=0, help="starts after faults of SageMaker's own (0)")
    add("--attempts", type=int, default=5, help="how often to ask for machines (5)")
    add("--pause-s", type=float, default=60.0, help="between the first two attempts; then doubled (60)")
    made.add_argument("--region", help="of the job (AWS_REGION, AWS_DEFAULT_REGION)")
    made.add_argument("--wait", action="store_true", help="until the end, not only until it has machines")
    made.add_argument("--dry-run", action="store_true", help="print the request, and send nothing")
    made.add_argument("command", nargs="+", help="the training script and its arguments, after --")
    return made


def _instances(text: str) -> tuple[str, int]:
    """Machines of one type and how many, such as ``ml.g5.xlarge:2``."""
    match = re.fullmatch(r"(ml\.[a-z0-9-]+\.[a-z0-9-]+)(?::([1-9][0-9]{0,3}))?", text)
    if match is None:
        msg = f"machines are ml.TYPE.SIZE:COUNT, such as ml.g5.xlarge:2; not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return match[1], int(match[2] or 1)


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            msg = f"{option} is NAME=VALUE, each name once; not {text[:80]!r}"
            raise ConfigError(msg)
        found[name] = value
    return found


def requests_of(parsed: argparse.Namespace) -> list[dict[str, Any]]:
    """The requests of ``CreateTrainingJob``: one for each turn of the types of machines.

    AWS checks lengths, patterns and numbers itself, before it starts anything.

    Raises:
        ConfigError: an argument is wrong, or the launcher would not take its options.
    """
    words = [*parsed.launcher, "--insecure", "--", *parsed.command]
    try:
        settings_of(parse(words))  # else machines that are paid for would find out
    except (ConfigError, SystemExit) as error:
        msg = f"the launcher would not take its options {' '.join(parsed.launcher)}: {error}"
        raise ConfigError(msg) from error
    if parsed.attempts < 1 or not 0 <= parsed.pause_s <= _LONGEST_PAUSE_S:
        msg = f"--attempts is at least 1, and --pause-s from 0 to {_LONGEST_PAUSE_S:g}"
        raise ConfigError(msg)
    name = parsed.name or f"super-{secrets.token_hex(4)}"
    turns = max(len(parsed.training), len(parsed.data))
    return [
        _request(
            parsed,
            name,
            words,
            parsed.training[turn % len(parsed.training)],
            parsed.data[turn % len(parsed.data)],
        )
        for turn in range(turns)
    ]


def _request(
    parsed: argparse.Namespace,
    name: str,
    words: list[str],
    training: tuple[str, int],
    data: tuple[str, int] | None,
) -> dict[str, Any]:
    machines = {DATA_GROUP: data, TRAINING_GROUP: training}
    groups = [
        {"InstanceGroupName": group, "InstanceType": wanted[0], "InstanceCount": wanted[1]}
        for group, wanted in machines.items()
        if wanted is not None
    ]
    optional = {
        "InputDataConfig": _inputs(parsed.channel, [str(group["InstanceGroupName"]) for group in groups]),
        "HyperParameters": _pairs(parsed.hyper_parameter, "--hyper-parameter"),
        "VpcConfig": {"Subnets": parsed.subnet, "SecurityGroupIds": parsed.security_group}
        if parsed.subnet or parsed.security_group
        else {},
        "CheckpointConfig": {"S3Uri": parsed.checkpoints} if parsed.checkpoints else {},
        "RetryStrategy": {"MaximumRetryAttempts": parsed.restarts} if parsed.restarts else {},
        "Tags": [{"Key": key, "Value": value} for key, value in _pairs(parsed.tag, "--tag").items()],
    }
    pending = {"MaxPendingTimeInSeconds": parsed.max_pending_s} if parsed.max_pending_s else {}
    variables = _pairs(parsed.env, "--env")
    return {
        "TrainingJobName": name,
        "RoleArn": parsed.role,
        "AlgorithmSpecification": {
            "TrainingImage": parsed.image,
            "TrainingInputMode": "FastFile" if parsed.fast_file else "File",
            "ContainerEntrypoint": ["python3", "-m", "infra.launcher"],
            "ContainerArguments": words,
        },
        "OutputDataConfig": {"S3OutputPath": parsed.output},
        "ResourceConfig": {"InstanceGroups": groups, "VolumeSizeInGB": parsed.volume_gb},
        "StoppingCondition": {"MaxRuntimeInSeconds": parsed.max_runtime_s, **pending},
        "EnableInterContainerTrafficEncryption": True,
        "Environment": {"PYTHONUNBUFFERED": "1", _MARK: secrets.token_hex(8), **variables},
        **{field: value for field, value in optional.items() if value},
    }


def _inputs(channels: Sequence[str], everyone: list[str]) -> list[dict[str, Any]]:
    """The channels ``NAME@GROUP=URI``. As soon as one names groups, SageMaker wants all to."""
    found = []
    grouped = any("@" in text.partition("=")[0] for text in channels)
    for place, uri in _pairs(channels, "--channel").items():
        name, _, groups = place.partition("@")
        named = [group for group in groups.split(",") if group]
        for group in named:
            if group not in everyone:
                msg = f"the channel {name} is for {group}, which the job has not"
                raise ConfigError(msg)
        source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
        of_groups = {"InstanceGroupNames": named or everyone} if grouped else {}
        found.append({"ChannelName": name, "DataSource": {"S3DataSource": {**source, **of_groups}}})
    return found


def submit(
    client: Any,
    requests: Sequence[Mapping[str, Any]],
    *,
    attempts: int = 5,
    pause_s: float = 60.0,
    wait: bool = False,
    pause: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = print,
) -> str:
    """Have a job run; its name, which differs from the first request's after the first attempt.

    Args:
        client: boto3's, for SageMaker.
        requests: what is wanted, and the same with other machines, taken in turn where there are none.
        attempts: how often to ask for machines.
        pause_s: between the first two attempts; then doubled, up to a quarter of an hour.
        wait: until the end, not only until the job has its machines.
        pause: waits for so many seconds.
        say: shows a person how it goes.

    Raises:
        SubmitError: there were no machines in all attempts, the job failed, or nobody watches it any more.
        ClientError: AWS refuses the request.
    """
    first, lack = str(requests[0]["TrainingJobName"]), ""
    for number in range(attempts):
        if number:
            rest_s = min(_LONGEST_PAUSE_S, pause_s * 2 ** (number - 1))
            say(f"asking again in {rest_s:g} s")
            pause(rest_s)
        suffix = f"-{number + 1}" if number else ""  # SageMaker remembers the names of jobs that failed
        name = first[: _NAME_MAX - len(suffix)].rstrip("-") + suffix
        request = {**requests[number % len(requests)], "TrainingJobName": name}
        groups = request["ResourceConfig"]["InstanceGroups"]
        machines = " and ".join(f"{group['InstanceType']}:{group['InstanceCount']}" for group in groups)
        say(f"{name}: asking for {machines} (attempt {number + 1} of {attempts})")
        try:
            lack = _create(client, request) or _watch(client, request, wait=wait, pause=pause, say=say)
        except KeyboardInterrupt:
            raise _left(client, name, "interrupted") from None
        if not lack:
            return name
        say(f"{name}: {lack}")
    raise SubmitError(f"no machines for {first} in {attempts} attempts: {lack}", code=3)


def _create(client: Any, request: Mapping[str, Any]) -> str:
    """Ask for the job; what was lacking, if it was machines.

    Where an answer is lost, botocore asks again, and hears then that there is a job of that name: this one,
    if it has this request's mark.
    """
    try:
        client.create_training_job(**request)
    except (BotoCoreError, ClientError) as error:
        if _code(error) == _NO_QUOTA:
            return str(error)
        if _code(error) != _NAME_TAKEN and not _is_passing(error):
            raise
        try:
            state = client.describe_training_job(TrainingJobName=request["TrainingJobName"])
        except (BotoCoreError, ClientError) as unknown:
            if _is_passing(unknown):
                why = f"nobody knows whether AWS has taken it: {error}; {unknown}"
                raise _left(client, request["TrainingJobName"], why) from unknown
            raise error from unknown
        if state.get("Environment", {}).get(_MARK) != request["Environment"][_MARK]:
            raise
    return ""


def _code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def _is_passing(error: Exception) -> bool:
    """Whether the same call may succeed later: the network's fault, or AWS's own."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= _SERVER_FAULT or "Throttl" in _code(error)
    return isinstance(error, HTTPClientError)  # connections and time-outs; not credentials, not parameters


def _left(client: Any, name: str, why: str) -> SubmitError:
    return SubmitError(
        f"nobody watches {name} any more ({why}). If AWS has taken it, it goes on and is billed: end it by "
        f"aws sagemaker stop-training-job --training-job-name {name} --region {client.meta.region_name}"
    )


def _watch(
    client: Any,
    request: Mapping[str, Any],
    *,
    wait: bool,
    pause: Callable[[float], None],
    say: Callable[[str], None],
) -> str:
    """Wait until the job has its machines, or its end; what was lacking, if it ended for want of them."""
    name, bounds = request["TrainingJobName"], request["StoppingCondition"]
    pending_s = bounds.get("MaxPendingTimeInSeconds", _LONGEST_PENDING_S)
    longest_s = bounds["MaxRuntimeInSeconds"] + pending_s + _MARGIN_S
    before, faults = "", 0
    for _ in range(int(longest_s / _POLL_S)):
        try:
            state = client.describe_training_job(TrainingJobName=name)
        except (BotoCoreError, ClientError) as error:
            faults += 1
            if not _is_passing(error) or faults > _FAULTS_MAX:
                raise _left(client, name, str(error)) from error
            say(f"{name}: {error}; asking again")
            pause(_POLL_S)
            continue
        faults = 0
        steps = state.get("SecondaryStatusTransitions") or [{}]
        step, message = state["SecondaryStatus"], str(steps[-1].get("StatusMessage", ""))
        now = f"{step}: {message}" if message else str(step)
        if now != before:
            say(f"{name}: {now}")
        before = now
        if state["TrainingJobStatus"] in _ENDED:
            return _end(name, state, now)
        if not wait and step in _HAS_MACHINES:
            return ""
        pause(_POLL_S)
    raise _left(client, name, f"still {before} after {longest_s:g} s")


def _end(name: str, state: Mapping[str, Any], last: str) -> str:
    """What was lacking, if that is why the job ended; else the empty text where it ended well."""
    status, reason = state["TrainingJobStatus"], str(state.get("FailureReason", ""))
    if status == "Completed":
        return ""
    if status == "Failed" and reason.startswith(_NO_CAPACITY):
        return reason
    if status == "Stopped" and any(word in last for word in _PENDING_TOO_LONG):
        return last
    raise SubmitError(f"{name} is {status.lower()}: {reason or last}")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and submit; the exit code."""
    parsed = parser().parse_args(argv)
    try:
        requests = requests_of(parsed)
        if parsed.dry_run:
            print(json.dumps(requests[0], indent=2))
            return 0
        # Throttling is botocore's to bear; capacity is ours.
        config = Config(retries={"mode": "standard", "max_attempts": _TRIES})
        client = session_in(parsed.region).client("sagemaker", config=config)
        name = submit(client, requests, attempts=parsed.attempts, pause_s=parsed.pause_s, wait=parsed.wait)
    except NoRegionError:
        fault, code = NO_REGION, 2
    except (ConfigError, ParamValidationError) as error:
        fault, code = str(error), 2
    except SubmitError as error:
        fault, code = str(error), error.code
    except (BotoCoreError, ClientError) as error:
        fault, code = str(error), 2 if _code(error) == "ValidationException" else 1
    except KeyboardInterrupt:
        fault, code = "interrupted between two attempts: no job of this call is left", 1
    else:
        print(f"{name}: {'completed' if parsed.wait else 'has its machines'}")
        return 0
    sys.stderr.write(f"infra.launcher.submit: {fault}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
