"""What AWS or the launcher would refuse is refused before anything is sent, let alone paid for."""

from __future__ import annotations

import pytest

from infra.launcher.submit import main

PLAIN = (
    *("--name", "super-1", "--role", "arn:aws:iam::123456789012:role/training", "--region", "us-east-1"),
    *("--training", "ml.g5.xlarge:2", "--data", "ml.c6i.8xlarge:1", "--output", "s3://results/runs"),
    "--dry-run",
)


def submit(*options, image="an-image:1", word="--epochs"):
    return main([*PLAIN, "--image", image, *options, "--", "train.py", word])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--restarts", "31"], "RetryStrategy.MaximumRetryAttempts is 31, at most 30"),
        (["--max-pending-s", "2419201"], "MaxPendingTimeInSeconds is 2419201, at most 2419200"),
        (["--security-group", "sg", *(f"--subnet=s-{n}" for n in range(17))], "Subnets has 17 entries"),
        (["--subnet", "s", *(f"--security-group=s-{n}" for n in range(6))], "SecurityGroupIds has 6 entries"),
        ([f"--tag=k{n}=v" for n in range(51)], "Tags has 51 entries, at most 50"),
        (["--tag", "k=" + "v" * 300], "Tags[0].Value has 300 characters, at most 256"),
        (["--channel", "c=s3://b/" + "x" * 1100], "characters, at most 1024"),
        (["--hyper-parameter", "a=x\ny"], "HyperParameters.a is "),
        (["--env", "A" * 600 + "=1"], "Environment has 600 characters, at most 512"),
        (["--launcher=--trainer-cpu=x"], "the launcher would not take its options --trainer-cpu=x"),
        (["--launcher=--no-such"], "the launcher would not take its options --no-such"),
        (["--launcher=--ray-port=50050"], "each port is another"),
        (["--launcher=--help"], "the launcher would not take its options --help"),
    ],
)
def test_what_does_not_fit_is_named(options, told, capsys):
    assert submit(*options) == 2
    assert told in capsys.readouterr().err


def test_images_and_words_too(capsys):
    assert submit(image="a" * 300) == 2
    assert submit(word="a\nb") == 2
    assert "ContainerArguments" in capsys.readouterr().err


def test_what_fits_is_sent_on():
    assert submit("--launcher=--trainer-cpus=spare", "--restarts", "30", "--tag", "k=v") == 0
