"""Listings of buckets over HTTP: pages, folders, key lists and failures."""

import contextlib
import http.client
import threading
from collections import Counter
from urllib.parse import parse_qsl, urlsplit

import boto3
import pytest
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.listing import ListingCancelledError
from superdl.lambda_prefetch.sources import read_object
from superdl.super_wire.errors import (
    SourceEmptyError,
    SourceError,
    SourceForbiddenError,
    SourceNotFoundError,
)
from superdl.super_wire.ids import Naming
from superdl.super_wire.objects import open_bucket
from superdl.super_wire.objects.s3 import close_connections
from tests.fixtures.loopback_http import LoopbackServer

ACCOUNT = "123456789012"
MANY = 2345  # three pages of one folder


class Store:
    """The server, and a client for the tests."""

    def __init__(self, url):
        self.url = url
        self.client = self.client_of("s3")
        self.client.create_bucket(Bucket="pets")

    def client_of(self, service):
        return boto3.client(
            service,
            endpoint_url=self.url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            region_name="us-east-1",
        )

    def check_permissions(self, *, after=0):
        """Have the server check credentials from the request after this many on."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=10)
        headers = {"Content-Type": "text/plain"}
        connection.request("POST", "/moto-api/reset-auth", body=str(after), headers=headers)
        assert connection.getresponse().status == 200
        connection.close()

    def put(self, *keys, body=b"x"):
        """Put objects into the bucket ``pets``."""
        for key in keys:
            self.client.put_object(Bucket="pets", Key=key, Body=body)


@pytest.fixture(scope="module")
def store():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    pets = Store(f"http://{host}:{port}")
    pets.put(
        "train/cat/1.jpg", "train/cat/deep/er/2.PNG", "train/dog/größe & 猫+%20.jpeg", "train/dog/notes.txt"
    )
    pets.put(
        "train/top.jpg", "train/empty/", "train//nameless.jpg", "training/x/9.jpg", "flat/1.jpg", "flat/2.jpg"
    )
    # Bypass HTTP, which would take six seconds for this alone.
    for number in range(MANY):
        s3_backends[ACCOUNT]["aws"].put_object("pets", f"many/a/{number}.jpg", b"x")
    yield pets
    server.stop()


@pytest.fixture(autouse=True)
def credentials(store, monkeypatch):
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


def test_images_are_labelled_by_class_folder():
    catalog = list_source("s3://pets/train")
    assert catalog.bucket == "s3://pets"
    assert [key.decode() for key in catalog.keys] == [
        "train/cat/1.jpg",
        "train/cat/deep/er/2.PNG",
        "train/dog/größe & 猫+%20.jpeg",
    ]
    assert catalog.classes == ("cat", "dog")
    assert catalog.labels.tolist() == [0, 0, 1]
    assert catalog.fingerprint == list_source("s3://pets/train/").fingerprint
    left_out = [words.rpartition(": ")[2] for words in catalog.warnings]
    assert left_out == ["train/top.jpg", "train//nameless.jpg", "empty"]


BELOW_O = ["a//1.png", "a/./1.png", "a/../1.png", "./3.png", "../2.png", "a/b?c#d%2F+ &=;.png"]
BELOW_O += ["a/%61.png", "a/ü 猫.png", "a/1~'()*!@:,$.png", "a/b\\c.png"]
ODD = [f"o/{key}" for key in BELOW_O], ["o//b/1.png"], ["/x/1.png"]


def test_each_key_is_read_unchanged_or_counted(store):
    below_o, nameless_in_o, nameless = ODD
    store.client.create_bucket(Bucket="odd")
    for key in (*below_o, *nameless_in_o, *nameless):
        store.client.put_object(Bucket="odd", Key=key, Body=key.encode())
    objects = open_bucket("s3://odd")
    for source, keys, left_out in (
        ("s3://odd/o", below_o, "o//b/1.png"),
        ("s3://odd/o//", nameless_in_o, ""),
        ("s3://odd//", nameless, ""),
        ("s3://odd", [*below_o, *nameless_in_o], "/x/1.png"),
    ):
        catalog = list_source(source)
        assert sorted(map(bytes.decode, catalog.keys)) == sorted(keys)
        assert [words.rpartition(": ")[2] for words in catalog.warnings] == [left_out] * bool(left_out)
        for key, version in zip(catalog.keys, catalog.versions, strict=True):
            body = read_object(
                objects, key.decode(), version.decode(), limit_bytes=999, reserve=lambda _: None
            )
            assert body == key


def test_an_alias_replaces_bucket_and_prefix_in_ids(store):
    """ETags depend only on an object's bytes, so a copy keeps them, whichever versions are requested."""
    store.client.create_bucket(Bucket="zoo")
    for key in ("a/b/cat/1.jpg", "a/b/cat/deep/er/2.PNG", "a/b/dog/größe & 猫+%20.jpeg"):
        store.client.put_object(Bucket="zoo", Key=key, Body=b"x")
    pets = list_source("s3://pets/train", naming=Naming("pets"))
    zoo = list_source("s3://zoo/a/b", naming=Naming("pets", "digests"))
    assert pets.sample_ids(bytes(16)) == zoo.sample_ids(bytes(16))
    assert pets.fingerprint == zoo.fingerprint != list_source("s3://pets/train").fingerprint
    assert (zoo.bucket, zoo.keys[0], zoo.prefix) == ("s3://zoo", b"a/b/cat/1.jpg", "a/b/")


def test_a_bucket_of_several_pages_is_listed_completely():
    counts = []
    catalog = list_source("s3://pets", progress=counts.append)
    assert catalog.classes == ("flat", "many", "train", "training")
    # All but the object in the nameless folder and the one at the top of the bucket.
    assert catalog.labels.tolist().count(1) == MANY
    keys = list(catalog.keys)
    assert keys == sorted(keys, key=lambda key: [key.split(b"/")[0], *key.rpartition(b"/")[::2]])
    assert len(set(keys)) == len(keys)
    assert counts.pop() is None
    assert counts == sorted(counts)
    assert counts[-1] == len(catalog)
    assert len(counts) > MANY / 1000


def test_a_listing_can_be_cancelled():
    cancelled = threading.Event()
    with pytest.raises(ListingCancelledError):
        list_source("s3://pets/many", progress=lambda _: cancelled.set(), cancelled=cancelled)


@pytest.mark.parametrize(
    ("source", "key_list", "error", "named"),
    [
        ("s3://pets/nothing/here", None, SourceEmptyError, "s3://pets/nothing/here/"),
        ("s3://pets/train/empty", None, SourceEmptyError, "s3://pets/train/empty/"),
        ("s3://pets/flat", None, SourceError, "2 images but no class folders"),
        ("s3://no-such-bucket/x", None, SourceNotFoundError, "no-such-bucket.*NoSuchBucket"),
        ("s3://pets/flat", "s3://pets/lists/gone.csv", SourceNotFoundError, "key_list .*NoSuchKey"),
    ],
)
def test_missing_buckets_prefixes_and_key_lists_are_named(source, key_list, error, named):
    with pytest.raises(error, match=named):
        list_source(source, key_list)


def test_a_key_list_gets_its_versions_from_the_listing(store):
    store.put("lists/flat.csv", body=b"key,label\n2.jpg,cat\n1.jpg,ant\n")
    catalog = list_source("s3://pets/flat", "s3://pets/lists/flat.csv")
    assert list(catalog.keys) == [b"flat/1.jpg", b"flat/2.jpg"]
    assert catalog.classes == ("ant", "cat")
    assert catalog.labels.tolist() == [0, 1]
    etag = store.client.head_object(Bucket="pets", Key="flat/2.jpg")["ETag"].strip('"')
    assert catalog.versions[1].decode() == etag
    store.put("lists/v.csv", body=b"key,label,version\nnot-there.jpg,3,etag\n")  # needs no listing
    catalog = list_source("s3://pets/flat", "s3://pets/lists/v.csv")
    assert (list(catalog.keys), list(catalog.versions)) == ([b"flat/not-there.jpg"], [b"etag"])
    with pytest.raises(SourceNotFoundError, match="s3://no-such-bucket"):
        list_source("s3://no-such-bucket", "s3://pets/lists/v.csv")


def test_keys_that_are_not_utf8_are_skipped_and_counted(monkeypatch):
    keys = "".join(
        f"<Contents><Key>train/a/{name}.jpg</Key><ETag>e</ETag><Size>1</Size></Contents>"
        for name in ("1", "2%FF", "3%C3%BC")
    )

    def answer(request):
        folders = "<CommonPrefixes><Prefix>train/a/</Prefix></CommonPrefixes>"
        folders += "<CommonPrefixes><Prefix>train/b%FE/</Prefix></CommonPrefixes>"
        content = folders if "delimiter" in request.path else keys
        status = 200 if "list-type" in request.path else 404
        text = f"<ListBucketResult><EncodingType>url</EncodingType>{content}</ListBucketResult>"
        request.answer(status, {}, text.encode())

    with contextlib.closing(LoopbackServer(answer)) as server:
        monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        catalog = list_source("s3://pets/train")
        close_connections()
    assert [key.decode() for key in catalog.keys] == ["train/a/1.jpg", "train/a/3ü.jpg"]
    assert ["2 names are not UTF-8" in words for words in catalog.warnings] == [True]


def test_a_missing_permission_is_named(store, monkeypatch):
    store.put("lists/closed.csv", body=b"key,label\n1.jpg,1\n")
    iam = store.client_of("iam")
    iam.create_user(UserName="reader")
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    store.check_permissions()
    try:
        with pytest.raises(
            SourceForbiddenError, match=r"may not read s3://pets/train/ \(.*AccessDenied.*s3:ListBucket"
        ):
            list_source("s3://pets/train")
        with pytest.raises(
            SourceForbiddenError, match=r"may not read key_list s3://pets/lists/closed.csv \(.*Access"
        ):
            list_source("s3://pets/flat", "s3://pets/lists/closed.csv")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOSUCHKEY")
        with pytest.raises(SourceForbiddenError, match="InvalidAccessKeyId"):
            list_source("s3://pets/train")
    finally:
        store.check_permissions(after=10**9)


def test_a_throttled_bucket_of_1001_folders_is_listed_completely(monkeypatch):
    """Each folder is a request of its own, and every tenth request is refused once."""
    requests = Counter()

    def answer(request):
        query = dict(parse_qsl(urlsplit(request.path).query))
        requests[request.path] += 1
        if sum(requests.values()) % 10 == 0 and requests[request.path] == 1:
            request.answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        prefix, content = query.get("prefix", ""), ""
        if query.get("delimiter"):
            names = (f"{prefix}{number:04}/" for number in range(1001))
            content = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in names)
        elif "list-type" in query:
            content = f"<Contents><Key>{prefix}1.jpg</Key><ETag>e</ETag><Size>1</Size></Contents>"
        else:
            request.answer(404, {}, b"")
            return
        request.answer(200, {}, f"<ListBucketResult>{content}</ListBucketResult>".encode())

    with contextlib.closing(LoopbackServer(answer)) as server:
        monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        catalog = list_source("s3://pets/train")
        close_connections()
    assert len(catalog.classes) == len(catalog.keys) == 1001
    assert sum(requests.values()) > 1050
