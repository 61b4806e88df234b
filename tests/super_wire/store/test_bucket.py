"""A store in S3: the errors for S3's responses, and how requests are combined."""

import pytest

from superdl.super_wire.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreRefusedError,
)
from superdl.super_wire.objects.s3 import Patience, close_connections
from superdl.super_wire.store import open_store
from superdl.super_wire.store.layout import new_mark
from tests.fixtures.loopback_http import LoopbackServer
from tests.super_wire.store.packing import META, fill, records

PATIENCE = Patience(silence_s=2, attempts=1)
NAME = f"{META.collection}-{'0' * 24}.pack"
CODES = {
    (404, "NoSuchKey"): StoreGoneError,
    (404, "NoSuchBucket"): StoreGoneError,
    (403, "AccessDenied"): StoreRefusedError,
    (400, "ExpiredToken"): StoreRefusedError,
    (400, "RequestTimeout"): StoreBusyError,
    (429, "TooManyRequests"): StoreBusyError,
    (503, "SlowDown"): StoreBusyError,
    (500, "InternalError"): StoreBusyError,
    (507, "XMinioStorageFull"): StoreFullError,
    (400, "EntityTooLarge"): StoreFullError,
    (403, "QuotaExceeded"): StoreFullError,
}


class ScriptedS3:
    """Responds as scripted for each (method, end of the path)."""

    def __init__(self):
        self.answers = {}
        self.seen = []
        self.mark = new_mark("0" * 32)

    def __call__(self, request):
        body = request.read_body()
        path = request.path.partition("?")[0]
        self.seen.append((request.command, path, request.headers.get("Range", ""), len(body)))
        for (method, end), answer in self.answers.items():
            if method == request.command and path.endswith(end):
                answer(request)
                return
        if path.endswith("store.json"):
            request.answer(
                206, {"Content-Range": f"bytes 0-{len(self.mark) - 1}/{len(self.mark)}"}, self.mark
            )
        else:
            request.answer(200, {}, b"")

    def fail(self, method, status, code, end=""):
        """Refuse requests with this code."""
        told = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()
        self.answers[method, end] = lambda request: request.answer(status, {}, told)


@pytest.fixture
def s3(monkeypatch):
    script = ScriptedS3()
    server = LoopbackServer(script)
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    yield script
    server.close()


@pytest.fixture(autouse=True)
def account(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield
    close_connections()


@pytest.fixture
def store(s3):
    return open_store("s3://bucket/a/b", create=False, patience=PATIENCE)


def begun(store):
    pack = store.begin_pack(META)
    fill(pack, records([9]))
    return pack


def test_refusals_map_to_store_errors(s3, store):
    for (status, code), kind in CODES.items():
        s3.fail("GET", status, code, NAME)
        s3.fail("GET", status, code, "/bucket")
        s3.fail("PUT", status, code)
        pack = begun(store)
        for ask in (lambda: store.read(NAME, 0, 9), store.packs, pack.commit, lambda: store.touch("me")):
            with pytest.raises(StoreError, match=r"s3://bucket/a/b/") as refused:
                ask()
            assert type(refused.value) is kind, refused.value
            assert len(str(refused.value)) < 400


MARK = "<Contents><Key>a/b/store.json</Key><ETag>e</ETag><Size>9</Size></Contents>"


@pytest.mark.parametrize(("listed", "is_made"), [("", True), (MARK, False)], ids=["nothing", "a store"])
def test_a_store_is_created_if_s3_denies_access_to_missing_objects(s3, listed, is_made):
    """A role may be allowed to list only below a prefix."""
    s3.fail("GET", 403, "AccessDenied", "store.json")
    page = f"<ListBucketResult>{listed}</ListBucketResult>".encode()
    s3.answers["GET", "/bucket"] = lambda request: request.answer(200, {}, page)
    if is_made:
        assert open_store("s3://bucket/a/b", create=True, patience=PATIENCE).id
    else:
        with pytest.raises(StoreRefusedError):
            open_store("s3://bucket/a/b", create=True, patience=PATIENCE)
    assert ("PUT" in [method for method, *_ in s3.seen]) is is_made


def test_removing_a_missing_pack_is_not_an_error(s3, store):
    s3.fail("DELETE", 404, "NoSuchKey")
    store.remove(NAME)
    s3.fail("DELETE", 403, "AccessDenied")
    with pytest.raises(StoreRefusedError):
        store.remove(NAME)


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: request.hang_up(),
        lambda request: request.answer(206, {"Content-Range": "bytes 64-73/200"}, bytes(10)),
        lambda request: request.answer(200, {}, bytes(200)),  # from the beginning
    ],
    ids=["hung up", "too little", "no range"],
)
def test_incomplete_responses_are_refused(s3, store, answer):
    s3.answers["GET", NAME] = answer
    with pytest.raises(StoreError, match=NAME):
        store.read(NAME, 64, 100)


def test_a_pack_takes_one_put(s3, store):
    before = store.requests
    with begun(store) as pack:
        name = pack.commit()
    assert store.requests == before + 1
    method, path, _, size = s3.seen[-1]
    assert (method, path) == ("PUT", f"/bucket/a/b/packs/{name}")
    assert size >= pack.size


def ranged(request):
    first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
    request.answer(206, {"Content-Range": f"bytes {first}-{last}/{2**40}"}, bytes(last + 1 - first))


@pytest.mark.parametrize(
    ("spans", "reads"),
    [
        ([(70_000, 10), (5, 0), (0, 9), (0, 4), (3, 70_000)], [(0, 70_010)]),
        ([(0, 10), (2**16 + 10, 10)], [(0, 2**16 + 20)]),
        ([(0, 10), (2**16 + 11, 10)], [(0, 10), (2**16 + 11, 10)]),
        # Each gap is as large as all requested bytes before it.
        ([(0, 2**21), (2**22, 1), (3 * 2**21 + 1, 1)], [(0, 2**22 + 1), (3 * 2**21 + 1, 1)]),
        ([(0, 2**23), (2**23 + 2**22 + 1, 1)], [(0, 2**23), (2**23 + 2**22 + 1, 1)]),
        ([(0, 2**25), (2**25, 2**25), (2**26, 1)], [(0, 2**26), (2**26, 1)]),
    ],
)
def test_neighbouring_spans_share_a_request(s3, store, spans, reads):
    s3.answers["GET", NAME] = ranged
    assert list(map(len, store.read_many(NAME, spans))) == [length for _, length in spans]
    headers = [header for _, path, header, _ in s3.seen if path.endswith(NAME)]
    assert headers == [f"bytes={offset}-{offset + length - 1}" for offset, length in reads]
