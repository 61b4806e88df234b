"""In which region a bucket lies, as the store tells."""

from __future__ import annotations

import boto3
from moto.server import ThreadedMotoServer

from superdl.coordinator.catalog.regions import bucket_region


def test_the_store_tells_a_buckets_region(monkeypatch):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SUPER_S3_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.session.Session().client("s3", endpoint_url=f"http://{host}:{port}")
    try:
        client.create_bucket(
            Bucket="far-tried", CreateBucketConfiguration={"LocationConstraint": "eu-west-3"}
        )
        client.create_bucket(Bucket="near-tried")
        assert (bucket_region("far-tried"), bucket_region("near-tried")) == ("eu-west-3", "us-east-1")
        assert bucket_region("none") == ""
    finally:
        client.close()
        server.stop()
