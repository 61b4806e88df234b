"""boto3 clients of the account that moto simulates (fixture ``aws``)."""

import functools
import os

import boto3


def client(service):
    """A client of a service of the account; making one takes longer than using it."""
    return _client(service, os.environ["AWS_ENDPOINT_URL"])


@functools.cache
def _client(service, url):
    session = boto3.session.Session("testing", "testing", region_name="us-east-1")
    return session.client(service, endpoint_url=url)
