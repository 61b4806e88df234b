"""A SageMaker job is asked for as the API has it, again where there are no machines, and named when left."""

from __future__ import annotations

import http.server
import json
import threading

import boto3
import pytest
from botocore.exceptions import ParamValidationError

from infra.launcher import submit as module
from infra.launcher.options import parse, settings_of
from infra.launcher.submit import SubmitError, main, parser, requests_of, submit

ROLE = "arn:aws:iam::123456789012:role/training"
LACK = "CapacityError: Unable to provision requested ML compute capacity."
STOP = "aws sagemaker stop-training-job --training-job-name super-1 --region us-east-1"
FAULT = (500, {"__type": "InternalFailure", "message": "oops"})
EXPIRED = (400, {"__type": "ExpiredTokenException", "message": "The security token has expired"})
NO_QUOTA = (400, {"__type": "ResourceLimitExceeded", "message": "no quota"})
WRONG = (400, {"__type": "ValidationException", "message": "Value 'a_b' at 'trainingJobName'"})
OPTIONS = [
    *("--name", "super-1", "--image", "an-image:1", "--role", ROLE, "--region", "us-east-1"),
    *("--training", "ml.g5.xlarge:2", "--data", "ml.c6i.4xlarge", "--output", "s3://results/runs"),
]
FULL = [
    *OPTIONS,
    *("--channel", "code@dnn_group=s3://sources/v1", "--channel", "keys=s3://sources/keys"),
    *("--hyper-parameter", "epochs=3", "--launcher=--trainer-cpus=spare", "--env", "A=b=c"),
    *("--subnet", "subnet-1", "--subnet", "subnet-2", "--security-group", "sg-1", "--tag", "team=vision"),
    *("--checkpoints", "s3://results/checkpoints", "--fast-file", "--max-runtime-s", "7200"),
    *("--max-pending-s", "3600", "--restarts", "2"),
]


def requests(*options, command=("train.py",)):
    return requests_of(parser().parse_args([*OPTIONS, *options, "--", *command]))


def test_the_request_of_a_job_with_everything(capsys):
    assert main([*FULL, "--dry-run", "--", "/opt/train.py", "--lr", "0.1"]) == 0
    request = json.loads(capsys.readouterr().out)
    assert len(request["Environment"].pop("SUPER_SUBMISSION")) == 16
    arguments = request["AlgorithmSpecification"]["ContainerArguments"]
    assert settings_of(parse(arguments)).insecure
    assert request == {
        "TrainingJobName": "super-1",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": "an-image:1",
            "TrainingInputMode": "FastFile",
            "ContainerEntrypoint": ["python3", "-m", "infra.launcher"],
            "ContainerArguments": [
                *("--trainer-cpus=spare", "--insecure", "--", "/opt/train.py", "--lr", "0.1")
            ],
        },
        "HyperParameters": {"epochs": "3"},
        "InputDataConfig": [
            {
                "ChannelName": name,
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": uri,
                        "S3DataDistributionType": "FullyReplicated",
                        "InstanceGroupNames": groups,
                    }
                },
            }
            for name, uri, groups in (
                ("code", "s3://sources/v1", ["dnn_group"]),
                ("keys", "s3://sources/keys", ["data_group", "dnn_group"]),
            )
        ],
        "OutputDataConfig": {"S3OutputPath": "s3://results/runs"},
        "ResourceConfig": {
            "InstanceGroups": [
                {"InstanceGroupName": "data_group", "InstanceType": "ml.c6i.4xlarge", "InstanceCount": 1},
                {"InstanceGroupName": "dnn_group", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
            ],
            "VolumeSizeInGB": 50,
        },
        "VpcConfig": {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]},
        "StoppingCondition": {"MaxRuntimeInSeconds": 7200, "MaxPendingTimeInSeconds": 3600},
        "EnableInterContainerTrafficEncryption": True,
        "Environment": {"PYTHONUNBUFFERED": "1", "A": "b=c"},
        "CheckpointConfig": {"S3Uri": "s3://results/checkpoints"},
        "RetryStrategy": {"MaximumRetryAttempts": 2},
        "Tags": [{"Key": "team", "Value": "vision"}],
    }


def test_the_command_line_submits_to_an_account(aws, capsys):
    assert main([*FULL, "--wait", "--", "train.py"]) == 0
    assert "super-1: completed" in capsys.readouterr().out
    found = boto3.client("sagemaker").describe_training_job(TrainingJobName="super-1")
    assert found["HyperParameters"] == {"epochs": "3"}
    assert found["EnableInterContainerTrafficEncryption"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--channel", "code"), "--channel is NAME=VALUE"),
        (("--hyper-parameter", "a=1", "--hyper-parameter", "a=2"), "NAME=VALUE, each name once"),
        (("--channel", "a@other=s3://b"), "the channel a is for other, which the job has not"),
        (("--attempts", "0"), "--attempts is at least 1"),
        (("--launcher=--trainer-cpu=x",), "the launcher would not take its options --trainer-cpu=x"),
        (("--launcher=--help",), "the launcher would not take its options --help"),
        (("--launcher=--ray-port=50050",), "each port is another"),
    ],
)
def test_a_wrong_argument_is_code_2(options, why, capsys):
    assert main([*OPTIONS, *options, "--dry-run", "--", "train.py"]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("text", ["g5.xlarge:2", "ml.g5.xlarge:0", "ml.g5:2", "ml.g5.xlarge:two"])
def test_machines_that_are_none_are_refused(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*OPTIONS, "--training", text, "--", "train.py"])
    assert ended.value.code == 2
    assert "such as ml.g5.xlarge:2" in capsys.readouterr().err


class SageMaker(http.server.BaseHTTPRequestHandler):
    """AWS's jobs. A job's states are answered one after the other, the last stays.

    ``faults`` are answered before, after the request had its effect.
    """

    protocol_version = "HTTP/1.1"
    jobs: dict
    faults: dict
    asked: list
    states: dict

    def log_message(self, *_):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        what = self.headers["X-Amz-Target"].split(".")[-1]
        self.asked.append((what, request["TrainingJobName"]))
        status, answer = (self.create if what == "CreateTrainingJob" else self.describe)(request)
        if self.faults.get(what):
            status, answer = self.faults[what].pop(0) or (status, answer)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.end_headers()
        self.wfile.write(body)

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
    empty = {"jobs": {}, "faults": {}, "asked": [], "states": {}}
    handler = type("Handler", (SageMaker,), empty)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


class Person:
    """What ``submit`` says to a person, and how long it waits, without waiting."""

    def __init__(self):
        self.said = []
        self.paused = []

    def submit(self, *options, **more):
        client = boto3.client("sagemaker", region_name="us-east-1")
        return submit(client, requests(*options), say=self.said.append, pause=self.paused.append, **more)


@pytest.fixture
def person(sagemaker):
    return Person()


def test_a_job_is_submitted_once_it_has_its_machines(sagemaker, person):
    starting = ("InProgress", "Starting", "Launching requested ML instances")
    sagemaker.states["super-1"] = [starting, starting, ("InProgress", "Downloading", "")]
    assert person.submit() == "super-1"
    assert person.said == [
        "super-1: asking for ml.c6i.4xlarge:1 and ml.g5.xlarge:2 (attempt 1 of 5)",
        "super-1: Starting: Launching requested ML instances",
        "super-1: Downloading",
    ]


def test_waiting_shows_how_it_goes_until_the_end(sagemaker, person):
    steps = ["Starting", "Downloading", "Training", "Uploading"]
    sagemaker.states["super-1"] = [("InProgress", step, "") for step in steps]
    sagemaker.states["super-1"].append(("Completed", "Completed", ""))
    assert person.submit(wait=True) == "super-1"
    assert [line.split(": ")[1] for line in person.said[1:]] == [*steps, "Completed"]


def test_without_capacity_other_machines_are_asked_for_in_their_turn(sagemaker, person):
    sagemaker.states["super-1"] = [("Failed", "Failed", LACK)]
    sagemaker.faults["CreateTrainingJob"] = [None, NO_QUOTA]
    options = ("--training", "ml.g5.xlarge:2", "ml.g4dn.xlarge:2")
    assert person.submit(*options, attempts=3, pause_s=10.0) == "super-1-3"
    asked = [job["ResourceConfig"]["InstanceGroups"][1]["InstanceType"] for job in sagemaker.jobs.values()]
    assert asked == ["ml.g5.xlarge", "ml.g4dn.xlarge", "ml.g5.xlarge"]
    assert person.paused == [10.0, 20.0]
    assert any("no quota" in line for line in person.said)


def test_attempts_and_names_are_bounded(sagemaker, person):
    name = "a" * 63
    names = [name, *(f"{'a' * 61}-{number}" for number in (2, 3, 4))]
    pending = ("Stopped", "Stopped", "MaxPendingTimeInSeconds was exceeded")
    sagemaker.states.update({one: [("Failed", "Failed", LACK)] for one in names} | {names[1]: [pending]})
    with pytest.raises(SubmitError, match=f"no machines for {name} in 4 attempts: CapacityError") as failed:
        person.submit("--name", name, attempts=4, pause_s=500.0)
    assert failed.value.code == 3
    assert list(sagemaker.jobs) == names
    assert person.paused == [500.0, 900.0, 900.0]


@pytest.mark.parametrize(
    ("status", "words", "why"),
    [
        ("Failed", "AlgorithmError: exit code 7 on algo-2", "super-1 is failed: AlgorithmError"),
        ("Stopped", "by somebody", "super-1 is stopped: Stopped: by somebody"),
    ],
)
def test_a_job_that_fails_or_is_stopped_is_not_asked_for_again(sagemaker, person, status, words, why):
    sagemaker.states["super-1"] = [(status, status, words)]
    with pytest.raises(SubmitError, match=why) as failed:
        person.submit(wait=True)
    assert failed.value.code == 1
    assert list(sagemaker.jobs) == ["super-1"]


def test_a_job_whose_answer_was_lost_is_found_again(sagemaker, capsys):
    sagemaker.faults["CreateTrainingJob"] = [FAULT]
    assert main([*OPTIONS, "--", "train.py"]) == 0, capsys.readouterr().err
    assert [what for what, _ in sagemaker.asked].count("CreateTrainingJob") == 2
    assert len(sagemaker.jobs) == 1


def test_somebody_elses_job_of_that_name_is_not_taken_for_ours(sagemaker, capsys):
    assert main([*OPTIONS, "--", "train.py"]) == 0
    assert main([*OPTIONS, "--", "train.py"]) == 1
    assert "a training job with this name exists" in capsys.readouterr().err


def test_a_fault_while_the_job_is_watched_is_borne(sagemaker, capsys, monkeypatch):
    monkeypatch.setattr(module, "_TRIES", 1)
    sagemaker.faults["DescribeTrainingJob"] = [FAULT, FAULT]
    assert main([*OPTIONS, "--", "train.py"]) == 0, capsys.readouterr().err
    assert "oops" in capsys.readouterr().out


def test_a_job_that_is_left_is_named_with_the_command_that_ends_it(sagemaker, capsys, monkeypatch):
    sagemaker.faults["DescribeTrainingJob"] = [EXPIRED]
    assert main([*OPTIONS, "--", "train.py"]) == 1
    said = capsys.readouterr().err
    assert "has expired" in said
    assert STOP in said

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    sagemaker.jobs.clear()
    monkeypatch.setattr(module, "_watch", interrupt)
    assert main([*OPTIONS, "--", "train.py"]) == 1
    assert STOP in capsys.readouterr().err


def test_what_aws_finds_wrong_is_code_2(sagemaker, capsys):
    sagemaker.faults["CreateTrainingJob"] = [WRONG]
    assert main([*OPTIONS, "--name", "a_b", "--", "train.py"]) == 2
    assert "'trainingJobName'" in capsys.readouterr().err
    assert main([*OPTIONS, "--subnet", "s", "--max-pending-s", "-1", "--", "train.py"]) == 2
    with pytest.raises(ParamValidationError):
        Person().submit("--restarts", "-1")
