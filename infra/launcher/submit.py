"""``python -m infra.launcher.submit [options] -- train.py [arguments]``: a training job on SageMaker.

Where there are no machines, ``submit`` asks again a bounded number of times, with pauses that grow; of
several types of machines each attempt takes the next. The container's entry point is the launcher itself, so
that SageMaker's SIGTERM reaches it. The platform encrypts traffic between the containers, and security groups
say who reaches them: so the launcher runs with ``--insecure``.

Exit codes: 0 the job has its machines (with ``--wait`` or ``--logs``: it is completed), 1 it failed, AWS
refused, or nobody watches it any more (the message names it, and how to end it), 2 an argument is wrong, 3
there were no machines.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoRegionError

from infra import NO_REGION, session_in
from infra.launcher.needs import spec_of
from infra.launcher.settings import DATA_GROUP, TRAINING_GROUP, as_words, parse
from superdl.experiments.data import directories_of
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.user_text import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from superdl.experiments.spec import Spec

__all__ = ["SubmitError", "main", "parser", "requests_of", "submit"]

_TRIES = 20  # of each call, by botocore: some minutes
_POLL_S = 15.0
_PAUSE_S = 60.0
_LONGEST_PAUSE_S = 900.0
_NAME_MAX = 63
_NO_CAPACITY = "CapacityError"  # how the reason of a failure begins
_PENDING_TOO_LONG = ("MaxPendingTime", "Pending")  # in the last words of a job that was stopped for it
_HAS_MACHINES = {"PreparingTrainingStack", "Downloading", "DownloadingTrainingImage", "Training", "Uploading"}
_SERVER_FAULT = 500
_LOG_GROUP = "/aws/sagemaker/TrainingJobs"
_METRICS = {
    "train:loss": r"train  step .* loss ([0-9.]+)",
    "train:lr": r"train  step .* lr ([0-9.e-]+)",
    "train:waiting_percent": r"train  step .* ([0-9]+)% waiting",
    "train:step_s": r"avg step time ([0-9.]+) s since",
    "val:accuracy": r"validation accuracy ([0-9.]+)",
    "host:cpu_cores": r"CPU of \S+: ([0-9.]+) of",
}
"""What CloudWatch takes from the lines of ``superdl run``."""


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
    add = made.add_argument
    add("--name", default="", help="of the job (super- and some random digits)")
    add("--image", required=True, help="with SUPER, its folder infra and what training needs")
    add("--role", required=True, help="ARN of the role that the containers have")
    add("--output", required=True, help="s3://bucket/prefix for what training leaves")
    add("--training", required=True, **machines, help="GPU hosts; further types in their turn")
    add("--data", default=[], **machines, help="CPU hosts; further types in their turn (none)")
    add("--hyper-parameter", **several, metavar="NAME=VALUE", help="--NAME VALUE for the script")
    add("--env", **several, metavar="NAME=VALUE", help="a variable of all hosts")
    add("--spot", action="store_true", help="machines that may be taken away; needs --checkpoints")
    add("--checkpoints", default="", help="s3://bucket/prefix of /opt/ml/checkpoints, to go on from")
    add("--kms-key", default="", help="encrypts what training leaves")
    add("--volume-kms-key", default="", help="encrypts the volumes of machines without disks of their own")
    add("--metric", **several, metavar="NAME=REGEX", help="taken from the log (superdl run: its own)")
    add("--max-runtime-s", type=int, default=86_400, help="then SageMaker stops the job (86400)")
    add("--request", type=Path, help="JSON file of further fields of CreateTrainingJob: its VPC, channels")
    add("--launcher", **several, metavar="OPTION", help="the launcher's: --launcher=--trainer-cpus=spare")
    add("--attempts", type=int, default=5, help="how often to ask for machines (5)")
    add("--region", help="of the job (AWS_REGION, AWS_DEFAULT_REGION)")
    add("--wait", action="store_true", help="until the end, not only until it has machines")
    add("--logs", action="store_true", help="print what the job's hosts print, until the end")
    add("--dry-run", action="store_true", help="print the request, and send nothing")
    add("command", nargs="*", help="the script and its arguments, after --, or hyper-parameter train-script")
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
            raise ConfigError(f"{option} is NAME=VALUE, each name once; not {text[:80]!r}")
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
        parse(words)  # else machines that are paid for would find out
    except (ConfigError, SystemExit) as error:
        msg = f"the launcher would not take its options {' '.join(parsed.launcher)}: {error}"
        raise ConfigError(msg) from error
    if parsed.attempts < 1:
        raise ConfigError("--attempts is at least 1")
    if parsed.spot and not parsed.checkpoints:
        raise ConfigError("--spot: a job whose machines are taken begins anew without --checkpoints s3://...")
    spec = _checked_spec(parsed)
    try:
        more = read_json(parsed.request) if parsed.request else {}
    except FileNotFoundError as error:
        raise ConfigError(f"--request: {error}") from error
    name = parsed.name or f"super-{secrets.token_hex(4)}"
    turns = range(max(len(parsed.training), len(parsed.data)))
    return [_merged({"TrainingJobName": name, **_request(parsed, words, turn, spec)}, more) for turn in turns]


def _checked_spec(parsed: argparse.Namespace) -> Spec | None:
    """The spec that the job trains, if it is ``superdl run``'s, with hyper-parameters and all."""
    parameters = _pairs(parsed.hyper_parameter, "--hyper-parameter")
    if not (parsed.command or parameters.get("train-script")):
        raise ConfigError("no training script: name it after --, or by --hyper-parameter train-script=FILE")
    spec = spec_of([*parsed.command, *as_words(parameters)], {})
    shared = "SUPER_RAY_SHARED_FILES" in _pairs(parsed.env, "--env")
    if spec and parsed.data and directories_of(spec.data) and not shared:
        msg = (
            f"the images of {spec.name} are files, and a job's hosts share none: add --data.kind url "
            "--data.train s3://bucket/train, or --env SUPER_RAY_SHARED_FILES=1 where they mount a file system"
        )
        raise ConfigError(msg)
    return spec


def _request(parsed: argparse.Namespace, words: list[str], turn: int, spec: Spec | None) -> dict[str, Any]:
    machines = {DATA_GROUP: parsed.data, TRAINING_GROUP: parsed.training}
    kinds = {group: turns[turn % len(turns)] for group, turns in machines.items() if turns}
    metrics = (_METRICS if spec else {}) | _pairs(parsed.metric, "--metric")
    told = [{"Name": name, "Regex": regex} for name, regex in metrics.items()]
    spot = {"EnableManagedSpotTraining": True} if parsed.spot else {}
    wait = {"MaxWaitTimeInSeconds": 2 * parsed.max_runtime_s} if parsed.spot else {}
    return {
        **spot,
        **({"CheckpointConfig": {"S3Uri": parsed.checkpoints}} if parsed.checkpoints else {}),
        "RoleArn": parsed.role,
        "AlgorithmSpecification": {
            "TrainingImage": parsed.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-m", "infra.launcher"],
            "ContainerArguments": words,
            **({"MetricDefinitions": told} if told else {}),
        },
        "HyperParameters": _pairs(parsed.hyper_parameter, "--hyper-parameter"),
        "OutputDataConfig": {"S3OutputPath": parsed.output, **_key("KmsKeyId", parsed.kms_key)},
        "ResourceConfig": {
            "InstanceGroups": [
                {"InstanceGroupName": group, "InstanceType": kind, "InstanceCount": count}
                for group, (kind, count) in kinds.items()
            ],
            "VolumeSizeInGB": 50,
            **_key("VolumeKmsKeyId", parsed.volume_kms_key),
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": parsed.max_runtime_s, **wait},
        "EnableInterContainerTrafficEncryption": True,
        "Environment": {"PYTHONUNBUFFERED": "1", **_pairs(parsed.env, "--env")},
    }


def _key(name: str, key: str) -> dict[str, str]:
    return {name: key} if key else {}


def _merged(request: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The request with further fields, also within its own; the last word is theirs."""
    both = {
        name: _merged(request[name], value) if isinstance(request.get(name), dict) else value
        for name, value in more.items()
    }
    return {**request, **both}


def submit(
    client: Any,
    requests: Sequence[Mapping[str, Any]],
    *,
    attempts: int = 5,
    wait: bool = False,
    logs: Any = None,
) -> str:
    """Have a job run; its name, which differs from the first request's after the first attempt.

    Of several requests, which want other machines, each attempt takes the next. With ``wait`` it watches the
    job until its end, not only until it has its machines; with ``logs``, a client of CloudWatch's, it prints
    what the job prints.

    Raises:
        SubmitError: there were no machines in all attempts, the job failed, or nobody watches it any more.
        ClientError: AWS refuses the request.
    """
    first, lack = str(requests[0]["TrainingJobName"]), ""
    for number in range(attempts):
        if number:
            rest_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** (number - 1))
            print(f"asking again in {rest_s:g} s")
            time.sleep(rest_s)
        suffix = f"-{number + 1}" if number else ""  # SageMaker remembers the names of jobs that failed
        name = first[: _NAME_MAX - len(suffix)].rstrip("-") + suffix
        request = {**requests[number % len(requests)], "TrainingJobName": name}
        groups = request["ResourceConfig"]["InstanceGroups"]
        machines = " and ".join(f"{group['InstanceType']}:{group['InstanceCount']}" for group in groups)
        print(f"{name}: asking for {machines} (attempt {number + 1} of {attempts})")
        try:
            client.create_training_job(**request)
            lack = _watch(client, name, wait=wait, log=_Log(logs, name) if logs else None)
        except KeyboardInterrupt:
            raise _left(client, name, "interrupted") from None
        except client.exceptions.ResourceLimitExceeded as error:
            lack = str(error)
        except HTTPClientError as error:
            raise _left(client, name, str(error)) from error
        except ClientError as error:
            told = error.response.get("ResponseMetadata", {})  # asked again, it may hear of its own job
            if told.get("HTTPStatusCode", 0) < _SERVER_FAULT and not told.get("RetryAttempts"):
                raise
            raise _left(client, name, str(error)) from error
        if not lack:
            return name
        print(f"{name}: {lack}")
    raise SubmitError(f"no machines for {first} in {attempts} attempts: {lack}", code=3)


def _left(client: Any, name: str, why: str) -> SubmitError:
    return SubmitError(
        f"nobody watches {name} any more ({why}). If AWS has taken it, it goes on and is billed: end it by "
        f"aws sagemaker stop-training-job --training-job-name {name} --region {client.meta.region_name}"
    )


class _Log:
    """What the hosts of a job print, by CloudWatch's streams, each from where it was read last."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name = client, name
        self._places: dict[str, str] = {}
        self._told = ""

    def show(self) -> None:
        """Print what is new; a log that cannot be read is told once, and the job goes on."""
        listing = self._client.get_paginator("describe_log_streams")
        try:
            for page in listing.paginate(logGroupName=_LOG_GROUP, logStreamNamePrefix=f"{self._name}/"):
                for stream in page["logStreams"]:
                    self._show(stream["logStreamName"])
        except self._client.exceptions.ResourceNotFoundException:
            return  # nothing has been printed yet
        except (BotoCoreError, ClientError) as error:
            if str(error) != self._told:
                print(f"the log of {self._name} cannot be read now: {error}", flush=True)
            self._told = str(error)

    def _show(self, stream: str) -> None:
        host = stream.removeprefix(f"{self._name}/").rpartition("-")[0] or stream  # algo-1-1699999999
        while True:
            before = self._places.get(stream)
            told = self._client.get_log_events(
                logGroupName=_LOG_GROUP,
                logStreamName=stream,
                startFromHead=True,
                **({"nextToken": before} if before else {}),
            )
            for event in told["events"]:
                print(f"[{host}] {event['message'].rstrip()}", flush=True)
            self._places[stream] = told["nextForwardToken"]
            if self._places[stream] == before:
                return


def _watch(client: Any, name: str, *, wait: bool, log: _Log | None = None) -> str:
    """Wait until the job has its machines, or its end; what was lacking, if it ended for want of them.

    SageMaker itself bounds how long a job waits for machines and runs.
    """
    before = ""
    while True:
        try:
            state = client.describe_training_job(TrainingJobName=name)
        except (BotoCoreError, ClientError) as error:
            raise _left(client, name, str(error)) from error
        if log is not None:
            log.show()
        steps = state.get("SecondaryStatusTransitions") or [{}]
        step, message = state["SecondaryStatus"], str(steps[-1].get("StatusMessage", ""))
        now = f"{step}: {message}" if message else str(step)
        if now != before:
            print(f"{name}: {now}", flush=True)
        before, status, reason = now, state["TrainingJobStatus"], str(state.get("FailureReason", ""))
        if status == "Completed" or (not wait and step in _HAS_MACHINES):
            return ""
        if status == "Failed" and reason.startswith(_NO_CAPACITY):
            return reason
        if status == "Stopped" and any(word in now for word in _PENDING_TOO_LONG):
            return now
        if status in {"Failed", "Stopped"}:
            raise SubmitError(f"{name} is {status.lower()}: {reason or now}")
        time.sleep(_POLL_S)


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
        logs = session_in(parsed.region).client("logs", config=config) if parsed.logs else None
        waits = parsed.wait or parsed.logs
        name = submit(client, requests, attempts=parsed.attempts, wait=waits, logs=logs)
    except NoRegionError:
        fault, code = NO_REGION, 2
    except ConfigError as error:
        fault, code = str(error), 2
    except SubmitError as error:
        fault, code = str(error), error.code
    except (BotoCoreError, ClientError) as error:
        fault, code = str(error), 1
    else:
        print(f"{name}: {'completed' if waits else 'has its machines'}")
        return 0
    sys.stderr.write(f"infra.launcher.submit: {fault}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
