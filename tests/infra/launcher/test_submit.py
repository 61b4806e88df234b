"""A SageMaker job is asked for as the API has it, and again, with bounds, where there are no machines."""

from __future__ import annotations

import datetime as dt
import json

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from infra.launcher.submit import main
from infra.launcher.submitting import Attempts, JobFailedError, NoCapacityError, submit
from infra.launcher.training_job import Channel, Instances, TrainingJob
from superdl.super_wire.errors import ConfigError

ROLE = "arn:aws:iam::123456789012:role/training"
ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-job/any"
LACK = "CapacityError: Unable to provision requested ML compute capacity."
SMALL = {
    "role": ROLE,
    "image": "an-image:1",
    "command": ("train.py",),
    "output": "s3://results/runs",
    "training": Instances("ml.g5.xlarge", 2),
    "data": Instances("ml.c6i.4xlarge", 1),
}


def job(**changes):
    return TrainingJob(**{"name": "super-1", **SMALL, **changes})


def full_job():
    return job(
        options=("--trainer-cpus=spare",),
        command=("/opt/ml/input/data/code/train.py", "--source", "s3://images/train"),
        channels=(Channel("code", "s3://sources/v1", ("dnn_group",)), Channel("keys", "s3://sources/keys")),
        hyper_parameters={"epochs": "3"},
        environment={"SUPER_MAX_USD": "20"},
        subnets=("subnet-1", "subnet-2"),
        security_groups=("sg-1",),
        checkpoints="s3://results/checkpoints",
        fast_file=True,
        max_runtime_s=7200,
        max_pending_s=3600,
        restarts=2,
        tags={"team": "vision"},
    )


class SageMaker:
    """boto3's client with answers in order, and what a person was told and how long was waited."""

    def __init__(self):
        self.client = boto3.client(
            "sagemaker", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
        )
        self.stub = Stubber(self.client)
        self.said = []
        self.paused = []

    def creates(self, asked):
        self.stub.add_response("create_training_job", {"TrainingJobArn": ARN}, asked.request())

    def refuses(self, asked, code, message="refused"):
        self.stub.add_client_error("create_training_job", code, message, expected_params=asked.request())

    def describes(self, name, status, secondary, *, reason="", message=""):
        now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        answer = {
            "TrainingJobName": name,
            "TrainingJobArn": ARN,
            "ModelArtifacts": {"S3ModelArtifacts": "s3://results/model"},
            "TrainingJobStatus": status,
            "SecondaryStatus": secondary,
            "StoppingCondition": {},
            "CreationTime": now,
            "SecondaryStatusTransitions": [{"Status": secondary, "StartTime": now, "StatusMessage": message}],
            **({"FailureReason": reason} if reason else {}),
        }
        self.stub.add_response("describe_training_job", answer, {"TrainingJobName": name})

    def submit(self, *jobs, **more):
        with self.stub:
            name = submit(self.client, *jobs, pause=self.paused.append, say=self.said.append, **more)
        self.stub.assert_no_pending_responses()
        return name


@pytest.fixture
def sagemaker():
    return SageMaker()


def test_the_request_of_a_job_with_everything():
    assert full_job().request() == {
        "TrainingJobName": "super-1",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": "an-image:1",
            "TrainingInputMode": "FastFile",
            "ContainerEntrypoint": ["python3", "-m", "infra.launcher"],
            "ContainerArguments": [
                "--trainer-cpus=spare",
                "--insecure",
                "--",
                "/opt/ml/input/data/code/train.py",
                "--source",
                "s3://images/train",
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
        "Environment": {"PYTHONUNBUFFERED": "1", "SUPER_MAX_USD": "20"},
        "CheckpointConfig": {"S3Uri": "s3://results/checkpoints"},
        "RetryStrategy": {"MaximumRetryAttempts": 2},
        "Tags": [{"Key": "team", "Value": "vision"}],
    }


def test_what_the_launcher_is_told_by_the_job_it_understands():
    """The container's arguments are those of the launcher's own command line."""
    from infra.launcher.options import _parser

    given = _parser().parse_args(full_job().request()["AlgorithmSpecification"]["ContainerArguments"])
    assert given.insecure
    assert given.command == ["/opt/ml/input/data/code/train.py", "--source", "s3://images/train"]


def test_a_job_is_submitted_once_it_has_its_machines(sagemaker):
    sagemaker.creates(full_job())
    sagemaker.describes("super-1", "InProgress", "Starting", message="Launching requested ML instances")
    sagemaker.describes("super-1", "InProgress", "Starting", message="Launching requested ML instances")
    sagemaker.describes("super-1", "InProgress", "Downloading")
    assert sagemaker.submit(full_job()) == "super-1"
    assert sagemaker.said == [
        "super-1: asking for ml.c6i.4xlarge:1 and ml.g5.xlarge:2 (attempt 1 of 5)",
        "super-1: Starting: Launching requested ML instances",
        "super-1: Downloading",
    ]
    assert sagemaker.paused == [15.0, 15.0]


def test_waiting_tells_how_it_goes_until_the_end(sagemaker):
    sagemaker.creates(job())
    for secondary in ("Starting", "Downloading", "Training", "Uploading"):
        sagemaker.describes("super-1", "InProgress", secondary)
    sagemaker.describes("super-1", "Completed", "Completed")
    assert sagemaker.submit(job(), wait=True) == "super-1"
    assert [line.split(": ")[1] for line in sagemaker.said[1:]] == [
        "Starting",
        "Downloading",
        "Training",
        "Uploading",
        "Completed",
    ]


def test_without_capacity_other_machines_are_asked_for_in_their_turn(sagemaker):
    other = job(training=Instances("ml.g4dn.xlarge", 2))
    sagemaker.creates(job())
    sagemaker.describes("super-1", "Failed", "Failed", reason=LACK)
    sagemaker.refuses(job(name="super-1-2", training=other.training), "ResourceLimitExceeded", "no quota")
    sagemaker.creates(job(name="super-1-3"))
    sagemaker.describes("super-1-3", "InProgress", "Training")
    assert sagemaker.submit(job(), [other], attempts=Attempts(most=3, pause_s=10.0)) == "super-1-3"
    assert sagemaker.paused == [10.0, 20.0]
    assert any("no quota" in line for line in sagemaker.said)


def test_attempts_are_bounded_and_named(sagemaker):
    for name in ("super-1", "super-1-2", "super-1-3", "super-1-4"):
        sagemaker.creates(job(name=name))
        sagemaker.describes(name, "Failed", "Failed", reason=LACK)
    with pytest.raises(NoCapacityError, match="no machines for super-1 in 4 attempts: CapacityError"):
        sagemaker.submit(job(), attempts=Attempts(most=4, pause_s=10.0, longest_pause_s=15.0))
    sagemaker.stub.assert_no_pending_responses()
    assert sagemaker.paused == [10.0, 15.0, 15.0]


def test_a_job_that_waited_too_long_for_machines_is_asked_for_again(sagemaker):
    sagemaker.creates(job())
    sagemaker.describes("super-1", "Stopped", "Stopped", message="MaxPendingTimeInSeconds was exceeded")
    sagemaker.creates(job(name="super-1-2"))
    sagemaker.describes("super-1-2", "InProgress", "Training")
    assert sagemaker.submit(job()) == "super-1-2"


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        (
            "Failed",
            "AlgorithmError: training ended with exit code 7 on algo-2",
            "super-1 is failed: AlgorithmError",
        ),
        ("Stopped", "", "super-1 is stopped: Stopped by somebody"),
    ],
)
def test_a_job_that_fails_or_is_stopped_is_not_asked_for_again(sagemaker, status, reason, told):
    sagemaker.creates(job())
    sagemaker.describes("super-1", status, status, reason=reason, message="by somebody")
    with pytest.raises(JobFailedError, match=told):
        sagemaker.submit(job(), wait=True)
    sagemaker.stub.assert_no_pending_responses()


def test_another_refusal_is_passed_on(sagemaker):
    sagemaker.refuses(job(), "ResourceInUse")
    with pytest.raises(ClientError, match="ResourceInUse"):
        sagemaker.submit(job())


def test_a_long_name_keeps_its_number():
    sagemaker = SageMaker()
    name = "a" * 63
    sagemaker.refuses(job(name=name), "ResourceLimitExceeded")
    sagemaker.creates(job(name="a" * 61 + "-2"))
    sagemaker.describes("a" * 61 + "-2", "InProgress", "Training")
    assert sagemaker.submit(job(name=name)) == "a" * 61 + "-2"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a_b"}, "a job's name"),
        ({"name": "a" * 64}, "a job's name"),
        ({"role": "training"}, "a role is an ARN"),
        ({"command": ()}, "a training script after --"),
        ({"subnets": ("subnet-1",)}, "subnets and security groups belong together"),
        ({"output": "results"}, "where results go is s3://"),
        ({"checkpoints": "file:///x"}, "where results go is s3://"),
        ({"max_pending_s": 60}, "max_pending_s is 0 or at least 1800"),
        ({"volume_gb": 0}, "volume_gb is at least 1"),
        ({"command": ("x" * 257,)}, "the command has up to 100 words of 256 characters"),
        ({"hyper_parameters": {"a": "x" * 2501}}, "the hyper-parameter 'a' is too long"),
        ({"environment": {"1A": ""}}, "the variable '1A' is no name"),
        ({"channels": (Channel("a", "s3://b"), Channel("a", "s3://c"))}, "each of another name"),
        ({"channels": (Channel("a b", "s3://b"),)}, "a channel's name"),
        ({"channels": (Channel("a", "b"),)}, "the channel a is s3://"),
        (
            {"channels": (Channel("a", "s3://b", ("data_group",)),), "data": None},
            "for data_group, which the job",
        ),
    ],
)
def test_what_sagemaker_would_refuse_is_refused_here(changes, told):
    with pytest.raises(ConfigError, match=told):
        job(**changes)


@pytest.mark.parametrize("text", ["g5.xlarge:2", "ml.g5.xlarge:0", "ml.g5:2", "ml.g5.xlarge:two"])
def test_machines_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match=r"such as ml.g5.xlarge:2"):
        Instances.parse(text)


COMMAND_LINE = [
    *("--name", "super-2", "--image", "an-image:1", "--role", ROLE, "--output", "s3://results/runs"),
    *("--training", "ml.g5.xlarge:2", "ml.g4dn.xlarge:2", "--data", "ml.c6i.4xlarge"),
    *("--channel", "code@dnn_group=s3://sources/v1", "--hyper-parameter", "epochs=3"),
    *("--launcher=--trainer-cpus=spare", "--env", "A=b=c", "--tag", "team=vision"),
]


def test_the_command_line_makes_the_request(capsys):
    assert main([*COMMAND_LINE, "--dry-run", "--", "train.py", "--lr", "0.1"]) == 0
    request = json.loads(capsys.readouterr().out)
    assert request == (
        job(
            name="super-2",
            options=("--trainer-cpus=spare",),
            command=("train.py", "--lr", "0.1"),
            channels=(Channel("code", "s3://sources/v1", ("dnn_group",)),),
            hyper_parameters={"epochs": "3"},
            environment={"A": "b=c"},
            tags={"team": "vision"},
        ).request()
    )


def test_the_command_line_submits_to_an_account(aws, capsys):
    assert main([*COMMAND_LINE, "--wait", "--", "train.py"]) == 0
    assert "super-2: completed" in capsys.readouterr().out
    told = boto3.client("sagemaker").describe_training_job(TrainingJobName="super-2")
    assert told["HyperParameters"] == {"epochs": "3"}
    assert told["EnableInterContainerTrafficEncryption"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--channel", "code"), "--channel is NAME=VALUE"),
        (("--hyper-parameter", "epochs=4"), "--hyper-parameter is NAME=VALUE, each name once"),
        (("--role", "me"), "a role is an ARN"),
    ],
)
def test_a_wrong_argument_is_code_2(capsys, arguments, told):
    assert main([*COMMAND_LINE, *arguments, "--", "train.py"]) == 2
    assert told in capsys.readouterr().err
