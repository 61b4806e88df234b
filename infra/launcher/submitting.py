"""Having a SageMaker job run: machines that are not to be had are asked for again, with bounds, and what
becomes of the job is told. What is asked for is :mod:`infra.launcher.training_job`'s.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from infra.launcher.training_job import NAME_MAX, TrainingJob
from super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Attempts", "JobFailedError", "NoCapacityError", "submit"]

_POLL_S = 15.0
_MARGIN_S = 3600.0  # beyond a job's longest run: machines, image, channels, results
_NO_CAPACITY = "CapacityError"  # how the reason of a failure begins
_NO_QUOTA = "ResourceLimitExceeded"
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
        client.create_training_job(**job.request())
    except ClientError as error:
        if error.response["Error"]["Code"] != _NO_QUOTA:
            raise
        return str(error)
    told: tuple[str, str] = ("", "")
    longest_s = job.max_runtime_s + (job.max_pending_s or 28 * 86_400) + _MARGIN_S
    for _ in range(int(longest_s / _POLL_S)):
        state = client.describe_training_job(TrainingJobName=job.name)
        told = _tell(job.name, state, told, say)
        status = state["TrainingJobStatus"]
        if status in _ENDED:
            return _end(job.name, state)
        if not wait and state["SecondaryStatus"] in _HAS_MACHINES:
            return ""
        pause(_POLL_S)
    msg = f"{job.name} is still {told[0]} after {longest_s:g} s, and no longer waited for"
    raise JobFailedError(msg)


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
