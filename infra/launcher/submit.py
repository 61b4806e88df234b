"""``python -m infra.launcher.submit [options] -- train.py [arguments]``: a training job on SageMaker.

Machines that are not to be had are asked for again, a bounded number of times, with pauses that grow; where
several types are named, each in its turn (:mod:`infra.launcher.submitting`). What a job may be is
:mod:`infra.launcher.training_job`'s.

Exit codes: 0 the job has its machines (with ``--wait``: it is completed), 1 it failed, AWS refused, or it is
not watched any more (the message names it, and how to end it), 2 an argument is wrong, 3 no machines were to
be had.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from typing import TYPE_CHECKING

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from infra.launcher.request_model import check_request
from infra.launcher.submitting import Attempts, JobFailedError, NoCapacityError, NotWatchedError, submit
from infra.launcher.training_job import Channel, Instances, TrainingJob
from infra.session import NO_REGION, session_in
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_TRIES = 8  # of each call, by botocore
_EXIT_WRONG = 2
_EXIT_NO_CAPACITY = 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m infra.launcher.submit",
        usage="%(prog)s [options] -- train.py [arguments]",
        description="Run a training job with SUPER on SageMaker, CPU hosts beside GPU hosts.",
    )
    job = parser.add_argument_group("the job")
    job.add_argument("--name", default="", help="of the job (super- and some random digits)")
    job.add_argument("--image", required=True, help="with SUPER, its folder infra and what training needs")
    job.add_argument("--role", required=True, help="ARN of the role that the containers have")
    job.add_argument("--output", required=True, help="s3://bucket/prefix for what training leaves")
    job.add_argument(
        "--training",
        required=True,
        nargs="+",
        metavar="TYPE:COUNT",
        help="GPU hosts; further types in their turn",
    )
    job.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="TYPE:COUNT",
        help="CPU hosts; further types in their turn (none)",
    )
    job.add_argument("--volume-gb", type=int, default=50, help="disk of each host (50)")
    job.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=URI",
        help="objects for /opt/ml/input/data/NAME; NAME@dnn_group=URI for one group of hosts",
    )
    job.add_argument("--fast-file", action="store_true", help="stream channels, do not copy them first")
    job.add_argument(
        "--hyper-parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="--NAME VALUE for the script",
    )
    job.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of all hosts"
    )
    job.add_argument("--subnet", action="append", default=[], help="of the VPC to run in")
    job.add_argument(
        "--security-group", action="append", default=[], help="that lets these hosts reach each other"
    )
    job.add_argument("--checkpoints", default="", help="s3://bucket/prefix to keep /opt/ml/checkpoints in")
    job.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="a tag of the job")
    job.add_argument(
        "--launcher",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option of the launcher: --launcher=--trainer-cpus=spare",
    )
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument(
        "--max-runtime-s", type=int, default=86_400, help="then SageMaker stops the job (86400)"
    )
    bounds.add_argument(
        "--max-pending-s", type=int, default=0, help="the same without machines (SageMaker's)"
    )
    bounds.add_argument("--restarts", type=int, default=0, help="starts after faults of SageMaker's own (0)")
    bounds.add_argument("--attempts", type=int, default=5, help="how often machines are asked for (5)")
    bounds.add_argument(
        "--pause-s", type=float, default=60.0, help="between the first two; then doubled (60)"
    )
    parser.add_argument("--region", help="of the job (AWS_REGION, AWS_DEFAULT_REGION)")
    parser.add_argument(
        "--wait", action="store_true", help="until the end, not only until it has its machines"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the request, and send nothing")
    parser.add_argument("command", nargs="+", help="the training script and its arguments, after --")
    return parser


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            msg = f"{option} is NAME=VALUE, each name once; not {text[:80]!r}"
            raise ConfigError(msg)
        found[name] = value
    return found


def _channels(texts: Sequence[str]) -> tuple[Channel, ...]:
    found = []
    for place, uri in _pairs(texts, "--channel").items():
        name, _, groups = place.partition("@")
        found.append(Channel(name, uri, tuple(filter(None, groups.split(",")))))
    return tuple(found)


def _jobs(given: argparse.Namespace) -> list[TrainingJob]:
    """The job, and the same with the other types of machines that were named."""
    training = [Instances.parse(text) for text in given.training]
    data = [Instances.parse(text) for text in given.data]
    return [
        TrainingJob(
            name=given.name or f"super-{secrets.token_hex(4)}",
            role=given.role,
            image=given.image,
            command=tuple(given.command),
            output=given.output,
            training=training[number % len(training)],
            data=data[number % len(data)] if data else None,
            options=tuple(given.launcher),
            channels=_channels(given.channel),
            hyper_parameters=_pairs(given.hyper_parameter, "--hyper-parameter"),
            environment=_pairs(given.env, "--env"),
            subnets=tuple(given.subnet),
            security_groups=tuple(given.security_group),
            checkpoints=given.checkpoints,
            volume_gb=given.volume_gb,
            fast_file=given.fast_file,
            max_runtime_s=given.max_runtime_s,
            max_pending_s=given.max_pending_s,
            restarts=given.restarts,
            tags=_pairs(given.tag, "--tag"),
        )
        for number in range(max(len(training), len(data)))
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and submit; the exit code."""
    given = _parser().parse_args(argv)
    try:
        return _run(given)
    except NoRegionError:
        fault, code = NO_REGION, _EXIT_WRONG
    except ConfigError as error:
        fault, code = str(error), _EXIT_WRONG
    except NoCapacityError as error:
        fault, code = str(error), _EXIT_NO_CAPACITY
    except (JobFailedError, NotWatchedError, BotoCoreError, ClientError) as error:
        fault, code = str(error), 1
    except KeyboardInterrupt:
        fault, code = "interrupted between two attempts: no job of this call is left", 1
    sys.stderr.write(f"infra.launcher.submit: {fault}\n")
    return code


def _run(given: argparse.Namespace) -> int:
    job, *others = _jobs(given)
    attempts = Attempts(most=given.attempts, pause_s=given.pause_s)
    for wanted in (job, *others):
        check_request(wanted.request())
    if given.dry_run:
        print(json.dumps(job.request(), indent=2))
        return 0
    # Throttling is botocore's to bear; capacity is ours.
    config = Config(retries={"mode": "standard", "max_attempts": _TRIES})
    client = session_in(given.region).client("sagemaker", config=config)
    name = submit(client, job, others, attempts=attempts, wait=given.wait)
    print(f"{name}: {'completed' if given.wait else 'has its machines'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
