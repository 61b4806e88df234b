"""A SageMaker job is asked for as the API has it, again where there are no machines, and named when left."""

from __future__ import annotations

import json
import re
import time

import boto3
import pytest

from infra.launcher import submit as module
from infra.launcher.settings import parse
from infra.launcher.submit import main
from superdl.experiments.run.listeners import Progress
from tests.experiments.step_records import step_record
from tests.fixtures.loopback_http import LoopbackServer

ROLE = "arn:aws:iam::123456789012:role/training"
LACK = "CapacityError: Unable to provision requested ML compute capacity."
STOP = "aws sagemaker stop-training-job --training-job-name super-1 --region us-east-1"
FAULT = (500, {"__type": "InternalFailure", "message": "oops"})
EXPIRED = (400, {"__type": "ExpiredTokenException", "message": "The security token has expired"})
NO_QUOTA = (400, {"__type": "ResourceLimitExceeded", "message": "no quota"})
OPTIONS = [
    *("--name", "super-1", "--image", "an-image:1", "--role", ROLE, "--region", "us-east-1"),
    *("--training", "ml.g5.xlarge:2", "--data", "ml.c6i.4xlarge", "--output", "s3://results/runs"),
]


def test_the_request_of_a_job_with_everything(tmp_path, capsys):
    vpc = {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    more = {"VpcConfig": vpc, "ResourceConfig": {"VolumeSizeInGB": 200}, "EnableManagedSpotTraining": True}
    (tmp_path / "job.json").write_text(json.dumps(more))
    options = ["--hyper-parameter", "epochs=3", "--launcher=--trainer-cpus=spare", "--env", "A=b=c"]
    options += ["--max-runtime-s", "7200", "--request", str(tmp_path / "job.json"), "--dry-run"]
    assert main([*OPTIONS, *options, "--", "/opt/train.py", "--lr", "0.1"]) == 0
    request = json.loads(capsys.readouterr().out)
    arguments = ["--trainer-cpus=spare", "--insecure", "--", "/opt/train.py", "--lr", "0.1"]
    assert parse(arguments).insecure
    assert request == {
        "TrainingJobName": "super-1",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": "an-image:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-m", "infra.launcher"],
            "ContainerArguments": arguments,
        },
        "HyperParameters": {"epochs": "3"},
        "OutputDataConfig": {"S3OutputPath": "s3://results/runs"},
        "ResourceConfig": {
            "InstanceGroups": [
                {"InstanceGroupName": "data_group", "InstanceType": "ml.c6i.4xlarge", "InstanceCount": 1},
                {"InstanceGroupName": "dnn_group", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
            ],
            "VolumeSizeInGB": 200,
        },
        "VpcConfig": vpc,
        "StoppingCondition": {"MaxRuntimeInSeconds": 7200},
        "EnableInterContainerTrafficEncryption": True,
        "EnableManagedSpotTraining": True,
        "Environment": {"PYTHONUNBUFFERED": "1", "A": "b=c"},
    }


def test_a_job_on_spot_machines_with_keys_and_metrics(capsys):
    spec = ("-m", "superdl.main", "run", "digits", "--data.train", "s3://bucket/train")
    options = ["--spot", "--checkpoints", "s3://results/kept", "--metric", "mine=x ([0-9]+)"]
    options += ["--kms-key", "key-1", "--volume-kms-key", "key-2", "--hyper-parameter", "epochs=25"]
    assert main([*OPTIONS, *options, "--max-runtime-s", "600", "--dry-run", "--", *spec]) == 0
    request = json.loads(capsys.readouterr().out)
    assert request["EnableManagedSpotTraining"]
    assert request["CheckpointConfig"] == {"S3Uri": "s3://results/kept"}
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 1200}
    assert request["OutputDataConfig"]["KmsKeyId"] == "key-1"
    assert request["ResourceConfig"]["VolumeKmsKeyId"] == "key-2"
    told = {one["Name"]: one["Regex"] for one in request["AlgorithmSpecification"]["MetricDefinitions"]}
    assert told.pop("mine") == "x ([0-9]+)"
    lines: list[str] = []
    progress = Progress(lines.append, epochs=3)
    progress.on_pass_start(0, "train", 4)
    progress.on_steps([step_record(loss=0.125, accuracy=1.0, split="train", lr=0.002)])
    lines += ["step 10: avg step time 0.500 s since the start", "done, validation accuracy 0.98"]
    lines += ["CPU of algo-1: 1.50 of 2 cores (functions 3.0 s)"]
    found = {name: re.search(regex, "\n".join(lines)) for name, regex in told.items()}
    assert all(found.values()), (found, lines)
    seen = [found[name][1] for name in ("train:loss", "train:lr", "train:step_s", "val:accuracy")]
    assert seen == ["0.125", "0.002", "0.500", "0.98"]


def test_the_log_of_a_job_is_followed_to_its_end(aws, capsys):
    logs = boto3.Session().client("logs")
    logs.create_log_group(logGroupName=module._LOG_GROUP)
    for stream, words in (("algo-1", ["ready", "epoch 1\n"]), ("algo-2", ["\u00e4"])):
        name = f"super-1/{stream}-1700000000"
        logs.create_log_stream(logGroupName=module._LOG_GROUP, logStreamName=name)
        now_ms = int(time.time() * 1000)
        events = [{"timestamp": now_ms + at, "message": text} for at, text in enumerate(words)]
        logs.put_log_events(logGroupName=module._LOG_GROUP, logStreamName=name, logEvents=events)
    assert main([*OPTIONS, "--logs", "--", "train.py"]) == 0
    said = capsys.readouterr().out.splitlines()
    printed = [line for line in said if line.startswith("[")]
    assert printed == ["[algo-1] ready", "[algo-1] epoch 1", "[algo-2] ä"]
    assert said[-1] == "super-1: completed"


def test_the_command_line_submits_to_an_account(aws, capsys):
    assert main([*OPTIONS, "--hyper-parameter", "epochs=3", "--wait", "--", "train.py"]) == 0
    assert "super-1: completed" in capsys.readouterr().out
    found = boto3.client("sagemaker").describe_training_job(TrainingJobName="super-1")
    assert found["HyperParameters"] == {"epochs": "3"}
    assert found["EnableInterContainerTrafficEncryption"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--env", "code"), "--env is NAME=VALUE"),
        (("--hyper-parameter", "a=1", "--hyper-parameter", "a=2"), "NAME=VALUE, each name once"),
        (("--request", "/nonexistent"), "--request: /nonexistent"),
        (("--attempts", "0"), "--attempts is at least 1"),
        (("--launcher=--trainer-cpu=x",), "the launcher would not take its options --trainer-cpu=x"),
        (("--launcher=--ray-port=50050",), "each port is another"),
        (("--spot",), "begins anew without --checkpoints"),
    ],
)
def test_a_wrong_argument_is_code_2(options, why, capsys):
    assert main([*OPTIONS, *options, "--dry-run", "--", "train.py"]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "no training script"),
        (["-m", "superdl.main", "run", "digits", "--epoch", "x"], "epochs must be"),
        (
            ["-m", "superdl.main", "run", "digits"],
            "the images of digits are files",
        ),
    ],
)
def test_a_run_that_could_not_train_is_refused_before_machines_are_paid(words, why, capsys):
    assert main([*OPTIONS, "--dry-run", "--", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("text", ["g5.xlarge:2", "ml.g5.xlarge:0", "ml.g5:2", "ml.g5.xlarge:two"])
def test_machines_that_are_none_are_refused(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*OPTIONS, "--training", text, "--", "train.py"])
    assert ended.value.code == 2
    assert "such as ml.g5.xlarge:2" in capsys.readouterr().err


class SageMaker:
    """AWS's jobs. A job's states are answered one after the other, the last stays.

    ``faults`` are answered before, after the request had its effect.
    """

    def __init__(self):
        self.jobs, self.faults, self.states = {}, {}, {}

    def answer(self, call):
        request = json.loads(call.read_body())
        what = call.headers["X-Amz-Target"].split(".")[-1]
        status, answer = (self.create if what == "CreateTrainingJob" else self.describe)(request)
        if self.faults.get(what):
            status, answer = self.faults[what].pop(0) or (status, answer)
        call.answer(status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(answer).encode())

    def create(self, request):
        name = request["TrainingJobName"]
        if name in self.jobs:
            return 400, {"__type": "ResourceInUse", "message": "a training job with this name exists"}
        self.jobs[name] = request
        return 200, {"TrainingJobArn": f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{name}"}

    def describe(self, request):
        states = self.states.setdefault(request["TrainingJobName"], [("InProgress", "Training", "")])
        status, step, words = states.pop(0) if len(states) > 1 else states[0]
        transitions = [{"Status": step, "StartTime": 0, "StatusMessage": "" if status == "Failed" else words}]
        state = {
            "TrainingJobStatus": status,
            "SecondaryStatus": step,
            "SecondaryStatusTransitions": transitions,
        }
        reason = {"FailureReason": words} if status == "Failed" else {}
        return 200, {**self.jobs[request["TrainingJobName"]], **state, **reason}


@pytest.fixture
def sagemaker(monkeypatch):
    service = SageMaker()
    server = LoopbackServer(service.answer)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    yield service
    server.close()


def test_a_job_is_submitted_once_it_has_its_machines(sagemaker, capsys):
    starting = ("InProgress", "Starting", "Launching requested ML instances")
    sagemaker.states["super-1"] = [starting, starting, ("InProgress", "Downloading", "")]
    assert main([*OPTIONS, "--", "train.py"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "super-1: asking for ml.c6i.4xlarge:1 and ml.g5.xlarge:2 (attempt 1 of 5)",
        "super-1: Starting: Launching requested ML instances",
        "super-1: Downloading",
        "super-1: has its machines",
    ]


def test_without_capacity_other_machines_are_asked_for_in_their_turn(sagemaker, capsys):
    sagemaker.states["super-1"] = [("Failed", "Failed", LACK)]
    sagemaker.faults["CreateTrainingJob"] = [None, NO_QUOTA]
    options = ("--training", "ml.g5.xlarge:2", "ml.g4dn.xlarge:2", "--attempts", "3")
    assert main([*OPTIONS, *options, "--", "train.py"]) == 0
    asked = [job["ResourceConfig"]["InstanceGroups"][1]["InstanceType"] for job in sagemaker.jobs.values()]
    assert asked == ["ml.g5.xlarge", "ml.g4dn.xlarge", "ml.g5.xlarge"]
    said = capsys.readouterr().out
    assert said.endswith("super-1-3: has its machines\n")
    assert "no quota" in said
    assert re.findall("asking again in (.*) s", said) == ["0.01", "0.02"]


def test_attempts_and_names_are_bounded(sagemaker, capsys):
    name = "a" * 63
    names = [name, *(f"{'a' * 61}-{number}" for number in (2, 3, 4))]
    pending = ("Stopped", "Stopped", "MaxPendingTimeInSeconds was exceeded")
    sagemaker.states.update({one: [("Failed", "Failed", LACK)] for one in names} | {names[1]: [pending]})
    assert main([*OPTIONS, "--name", name, "--attempts", "4", "--", "train.py"]) == 3
    assert f"no machines for {name} in 4 attempts: CapacityError" in capsys.readouterr().err
    assert list(sagemaker.jobs) == names


@pytest.mark.parametrize(
    ("status", "words", "why"),
    [
        ("Failed", "AlgorithmError: exit code 7 on algo-2", "super-1 is failed: AlgorithmError"),
        ("Stopped", "by somebody", "super-1 is stopped: Stopped: by somebody"),
    ],
)
def test_a_job_that_fails_or_is_stopped_is_not_asked_for_again(sagemaker, capsys, status, words, why):
    sagemaker.states["super-1"] = [("InProgress", "Training", ""), (status, status, words)]
    assert main([*OPTIONS, "--wait", "--", "train.py"]) == 1
    assert why in capsys.readouterr().err
    assert list(sagemaker.jobs) == ["super-1"]


def test_a_job_of_that_name_that_is_there_is_told(sagemaker, capsys):
    assert main([*OPTIONS, "--", "train.py"]) == 0
    assert main([*OPTIONS, "--", "train.py"]) == 1
    assert "a training job with this name exists" in capsys.readouterr().err


def test_a_fault_while_the_job_is_watched_is_borne(sagemaker, capsys):
    sagemaker.faults["DescribeTrainingJob"] = [FAULT]
    assert main([*OPTIONS, "--", "train.py"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "fault"), [("DescribeTrainingJob", EXPIRED), ("CreateTrainingJob", FAULT), ("", None)]
)
def test_a_job_that_is_left_is_named_with_the_command_that_ends_it(
    sagemaker, capsys, monkeypatch, call, fault
):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_TRIES", 1)
    sagemaker.faults[call] = [fault]
    if not call:
        monkeypatch.setattr(module, "_watch", interrupt)
    assert main([*OPTIONS, "--", "train.py"]) == 1
    assert STOP in capsys.readouterr().err
