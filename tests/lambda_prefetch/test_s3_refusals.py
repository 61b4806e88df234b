"""What S3 refuses, by its code first: the same status stands for what needs different remedies."""

from __future__ import annotations

import re

import pytest

from superdl.lambda_prefetch.s3_refusals import from_answer
from superdl.super_wire.request import Outcome


def answer(status, code):
    return {"Error": {"Code": code, "Message": "words"}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("status", "code", "outcome", "remedy"),
    [
        (400, "ExpiredToken", Outcome.REFUSED, "renew the function's credentials"),
        (400, "InvalidToken", Outcome.REFUSED, "renew the function's credentials"),
        (403, "RequestTimeTooSkewed", Outcome.REFUSED, "renew the function's credentials"),
        (403, "InvalidObjectState", Outcome.REFUSED, "lies in an archive .*: restore it"),
        (403, "AccessDenied", Outcome.REFUSED, r"role do s3:GetObject on arn:aws:s3:::photos/\*"),
        (403, "", Outcome.REFUSED, "role do s3:GetObject"),
        (400, "AuthorizationHeaderMalformed", Outcome.REFUSED, "in another region"),
        (400, "InvalidRequest", Outcome.SOURCE_ERROR, "S3 answered 400 InvalidRequest: words$"),
        (404, "NoSuchKey", Outcome.MISSING, "S3 answered 404 NoSuchKey: words$"),
        (503, "SlowDown", Outcome.SOURCE_ERROR, "S3 answered 503 SlowDown: words$"),
    ],
)
def test_the_remedy_is_that_of_the_code(status, code, outcome, remedy):
    failure = from_answer(answer(status, code), "photos", "us-east-1")
    assert failure.outcome == outcome
    assert re.search(remedy, failure.why)
