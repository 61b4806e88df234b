"""A job whose answers are lost is found again, and one that is not watched any more is named with its end."""

from __future__ import annotations

import http.server
import json
import threading
import time

import pytest

from infra.launcher.submit import main

OPTIONS = (
    *("--name", "super-1", "--image", "an-image:1", "--role", "arn:aws:iam::123456789012:role/training"),
    *("--training", "ml.g5.xlarge:2", "--data", "ml.c6i.8xlarge:1", "--output", "s3://results/runs"),
    *("--region", "us-east-1", "--attempts", "1", "--", "train.py"),
)
STOP = "aws sagemaker stop-training-job --training-job-name super-1 --region us-east-1"
TAKEN = (400, {"__type": "ResourceInUse", "message": "a training job with this name already exists"})
FAULT = (500, {"__type": "InternalFailure", "message": "oops"})
EXPIRED = (400, {"__type": "ExpiredTokenException", "message": "The security token has expired"})


class Aws(http.server.BaseHTTPRequestHandler):
    """SageMaker's jobs; answers of ``faults`` go before its own, after the request had its effect."""

    protocol_version = "HTTP/1.1"
    jobs: dict
    faults: dict
    asked: list

    def log_message(self, *_):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        what = self.headers["X-Amz-Target"].split(".")[-1]
        self.asked.append(what)
        status, answer = (self.create if what == "CreateTrainingJob" else self.describe)(request)
        if self.faults.get(what):
            status, answer = self.faults[what].pop(0)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.end_headers()
        self.wfile.write(body)

    def create(self, request):
        if request["TrainingJobName"] in self.jobs:
            return TAKEN
        self.jobs[request["TrainingJobName"]] = {**request, "CreationTime": time.time()}
        return 200, {"TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/super-1"}

    def describe(self, request):
        state = {"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training", "TrainingJobArn": "any"}
        return 200, {**self.jobs[request["TrainingJobName"]], **state}


@pytest.fixture
def aws(monkeypatch):
    handler = type("Handler", (Aws,), {"jobs": {}, "faults": {}, "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setattr("infra.launcher.submitting._POLL_S", 0.01)
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_job_whose_answer_was_lost_is_found_again(aws, capsys):
    aws.faults["CreateTrainingJob"] = [FAULT]
    assert main(OPTIONS) == 0, capsys.readouterr().err
    assert aws.asked == 2 * ["CreateTrainingJob"] + 2 * ["DescribeTrainingJob"]


@pytest.mark.parametrize("change", [{"CreationTime": 1.0}, {"RoleArn": "arn:aws:iam::1:role/another"}])
def test_somebody_elses_job_of_that_name_is_not_taken_for_ours(aws, capsys, change):
    assert main(OPTIONS) == 0
    aws.jobs["super-1"] |= change
    assert main(OPTIONS) == 1
    assert "a training job with this name already exists" in capsys.readouterr().err


def test_a_fault_while_it_is_watched_is_borne(aws, capsys, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("infra.launcher.submit._TRIES", 1)
    aws.faults["DescribeTrainingJob"] = [FAULT, FAULT]
    assert main(OPTIONS) == 0, capsys.readouterr().err
    assert "oops" in capsys.readouterr().out


def test_credentials_that_expire_leave_word_of_the_job(aws, capsys):
    aws.faults["DescribeTrainingJob"] = [EXPIRED]
    assert main(OPTIONS) == 1
    told = capsys.readouterr().err
    assert "has expired" in told
    assert STOP in told


def test_who_interrupts_is_told_how_to_end_the_job(aws, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("infra.launcher.submitting._tell", interrupt)
    assert main(OPTIONS) == 1
    assert STOP in capsys.readouterr().err
