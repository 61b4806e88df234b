"""Having a SageMaker job run: machines that are not to be had are asked for again, with bounds, and what
becomes of the job is told. What is asked for is :mod:`infra.launcher.training_job`'s.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from infra.launcher.training_job import NAME_MAX, TrainingJob
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Attempts", "JobFailedError", "NoCapacityError", "NotWatchedError", "submit"]

_POLL_S = 15.0
_MARGIN_S = 3600.0  # beyond a job's longest run: machines, image, channels, results
_NO_CAPACITY = "CapacityError"  # how the reason of a failure begins
_NO_QUOTA = "ResourceLimitExceeded"
_NAME_TAKEN = "ResourceInUse"
_TOLD = (  # what DescribeTrainingJob tells of a request
    "RoleArn",
    "AlgorithmSpecification",
    "OutputDataConfig",
    "ResourceConfig",
    "HyperParameters",
    "Environment",
)
_CLOCKS_DIFFER = dt.timedelta(minutes=5)
_FAULTS_MAX = 40  # in a row, each of them after botocore's own tries: ten minutes and more
_SERVER_FAULT = 500
_HAS_MACHINES = frozenset(
    {
        "PreparingTrainingStack",
        "Downloading",
        "DownloadingTrainingImage",
        "Training",
        "Uploading",
        "Completed",
    }
)
_ENDED = frozenset({"Completed", "Failed", "Stopped"})
_PENDING_TOO_LONG = ("MaxPendingTime", "Pending")  # in the last words of a job that was stopped for it


class JobFailedError(Exception):
    """The job ended otherwise than well; the message says how, and why."""


class NotWatchedError(Exception):
    """What becomes of the job is not known; the message names it, why, and how to end it."""


class NoCapacityError(Exception):
    """No machines were to be had in all attempts; the message says of what."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attempts:
    """How often machines are asked for, and how long is waited in between: longer each time."""

    most: int = 5
    pause_s: float = 60.0
    longest_pause_s: float = 900.0

    def __post_init__(self) -> None:
        if self.most < 1 or not 0 <= self.pause_s <= self.longest_pause_s:
            msg = f"attempts are at least one, pauses not negative; not {self}"
            raise ConfigError(msg)

    def pauses(self) -> Iterator[float]:
        """After each attempt but the last."""
        for number in range(self.most - 1):
            yield min(self.longest_pause_s, self.pause_s * 2**number)


def submit(
    client: Any,
    job: TrainingJob,
    alternatives: Sequence[TrainingJob] = (),
    *,
    attempts: Attempts = Attempts(),
    wait: bool = False,
    pause: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = print,
) -> str:
    """Have the job run; its name, which differs from the given one after the first attempt.

    Args:
        client: boto3's, for SageMaker.
        job: what is wanted.
        alternatives: the same with other machines, taken in turn where there is no capacity.
        attempts: how often machines are asked for.
        wait: until the end, not only until the job has its machines.
        pause: waits for so many seconds.
        say: tells a person how it goes.

    Raises:
        NoCapacityError: there were no machines in all attempts.
        JobFailedError: the job failed or was stopped.
        NotWatchedError: it goes on, or may, and is not watched any more.
        ClientError: AWS refuses the request.
    """
    choices, lack = [job, *alternatives], ""
    pauses = attempts.pauses()
    for number in range(attempts.most):
        chosen = choices[number % len(choices)]
        asked = dataclasses.replace(chosen, name=_name(job.name, number))
        machines = " and ".join(str(group) for group in (asked.data, asked.training) if group)
        say(f"{asked.name}: asking for {machines} (attempt {number + 1} of {attempts.most})")
        lack = _try(client, asked, wait=wait, pause=pause, say=say)
        if not lack:
            return asked.name
        say(f"{asked.name}: {lack}")
        rest_s = next(pauses, None)
        if rest_s is not None:
            say(f"asking again in {rest_s:g} s")
            pause(rest_s)
    msg = f"no machines for {job.name} in {attempts.most} attempts: {lack}"
    raise NoCapacityError(msg)


def _name(name: str, number: int) -> str:
    """A name of its own for each attempt: SageMaker remembers those of jobs that failed."""
    suffix = f"-{number + 1}" if number else ""
    return name[: NAME_MAX - len(suffix)].rstrip("-") + suffix


def _try(
    client: Any, job: TrainingJob, *, wait: bool, pause: Callable[[float], None], say: Callable[[str], None]
) -> str:
    """One attempt; the empty text if it came to something, else what was lacking."""
    try:
        lack = _create(client, job)
        return lack or _watch(client, job, wait=wait, pause=pause, say=say)
    except KeyboardInterrupt:
        raise NotWatchedError(_left(client, job, "interrupted")) from None


def _create(client: Any, job: TrainingJob) -> str:
    """Ask for it; what was lacking, if it was machines.

    botocore asks again where an answer is lost, and is then told that there is such a job: this one.
    """
    since = dt.datetime.now(tz=dt.UTC) - _CLOCKS_DIFFER
    try:
        client.create_training_job(**job.request())
    except (BotoCoreError, ClientError) as error:
        code = _code(error)
        if code == _NO_QUOTA:
            return str(error)
        if code != _NAME_TAKEN and not _is_passing(error):
            raise
        try:
            state = client.describe_training_job(TrainingJobName=job.name)
        except (BotoCoreError, ClientError) as unknown:
            if _is_passing(unknown):
                msg = _left(client, job, f"whether AWS has taken it is not known: {error}; {unknown}")
                raise NotWatchedError(msg) from unknown
            raise error from unknown
        if not _is_asked_for(job.request(), state, since):
            raise
    return ""


def _is_asked_for(request: Mapping[str, Any], state: Mapping[str, Any], since: dt.datetime) -> bool:
    """Whether a job that is there is what was asked for, and as new."""
    return state["CreationTime"] >= since and all(_has(state.get(name), request.get(name)) for name in _TOLD)


def _has(told: Any, asked: Any) -> bool:
    """Whether what AWS tells is what was asked, be there more of it."""
    if isinstance(asked, dict):
        return isinstance(told, dict) and all(_has(told.get(name), value) for name, value in asked.items())
    if isinstance(asked, list):
        return (
            isinstance(told, list)
            and len(told) == len(asked)
            and all(_has(one, other) for one, other in zip(told, asked, strict=True))
        )
    return asked is None or bool(told == asked)


def _code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def _is_passing(error: Exception) -> bool:
    """Whether the same call may be answered later: the network's fault, or AWS's own."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= _SERVER_FAULT or "Throttl" in _code(error)
    return isinstance(error, HTTPClientError)  # connections and time-outs; not credentials, not parameters


def _left(client: Any, job: TrainingJob, why: str) -> str:
    region = client.meta.region_name
    return (
        f"{job.name} is not watched any more ({why}). If AWS has taken it, it goes on and is billed: end it "
        f"by aws sagemaker stop-training-job --training-job-name {job.name} --region {region}"
    )


def _watch(
    client: Any, job: TrainingJob, *, wait: bool, pause: Callable[[float], None], say: Callable[[str], None]
) -> str:
    """Until it has its machines, or its end; what was lacking, if it ended for want of them."""
    told: tuple[str, str] = ("", "")
    longest_s = job.max_runtime_s + (job.max_pending_s or 28 * 86_400) + _MARGIN_S
    faults = 0
    for _ in range(int(longest_s / _POLL_S)):
        try:
            state = client.describe_training_job(TrainingJobName=job.name)
        except (BotoCoreError, ClientError) as error:
            faults += 1
            if not _is_passing(error) or faults > _FAULTS_MAX:
                raise NotWatchedError(_left(client, job, str(error))) from error
            say(f"{job.name}: {error}; asking again")
            pause(_POLL_S)
            continue
        faults = 0
        told = _tell(job.name, state, told, say)
        status = state["TrainingJobStatus"]
        if status in _ENDED:
            return _end(job.name, state)
        if not wait and state["SecondaryStatus"] in _HAS_MACHINES:
            return ""
        pause(_POLL_S)
    raise NotWatchedError(_left(client, job, f"still {told[0]} after {longest_s:g} s"))


def _tell(
    name: str, state: Mapping[str, Any], before: tuple[str, str], say: Callable[[str], None]
) -> tuple[str, str]:
    steps = state.get("SecondaryStatusTransitions") or [{}]
    now = (state["SecondaryStatus"], str(steps[-1].get("StatusMessage", "")))
    if now != before:
        say(f"{name}: {now[0]}{f': {now[1]}' if now[1] else ''}")
    return now


def _end(name: str, state: Mapping[str, Any]) -> str:
    """What was lacking, if that is why it ended; else the empty text where it ended well."""
    status, reason = state["TrainingJobStatus"], str(state.get("FailureReason", ""))
    if status == "Completed":
        return ""
    if status == "Failed" and reason.startswith(_NO_CAPACITY):
        return reason
    steps = state.get("SecondaryStatusTransitions") or [{}]
    last = f"{state['SecondaryStatus']} {steps[-1].get('StatusMessage', '')}"
    if status == "Stopped" and any(word in last for word in _PENDING_TOO_LONG):
        return last.strip()
    msg = f"{name} is {status.lower()}: {reason or last.strip()}"
    raise JobFailedError(msg)
