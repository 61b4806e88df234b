"""Fuzzers of source names, answers of web servers and the Hub, and requests to the metrics port.

An input passes if it is handled correctly, or refused with one of SUPER's own errors.
"""

from superdl.coordinator.server.tokens import Tokens
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.http_port import Page, refusal
from superdl.super_wire.objects import ObjectError, Span
from superdl.super_wire.objects.hub import _file_in
from superdl.super_wire.objects.web import Response, _version, checked_path, server_of
from superdl.super_wire.source_url import join_url, split_url
from tests.hostile.fuzz_wire import TEXTS, any_value, mutate

_URLS = (
    b"s3://bucket/a b?x=1",
    b"hf://datasets/o/n@refs%2Fpr%2F1/a/b@c",
    b"hf://datasets/o/n@refs/convert/x/y",
    b"https://images.example.org:8443/a%20b/c",
    b"http://127.0.0.1:80/x",
    b"file://localhost/a",
)
_FILE = {"type": "file", "oid": "0" * 40, "size": 7, "path": "a/1.jpg", "lfs": {"oid": "1" * 64}}


def _url(chance):
    url = mutate(chance, chance.choice(_URLS)).decode(errors=chance.choice(["replace", "surrogateescape"]))
    try:
        bucket, key = split_url(url, "source")
    except ConfigError as error:
        assert len(str(error)) < 1000, url  # noqa: PT017  # a refusal is right, if it is short
        return
    if bucket:
        assert split_url(join_url(bucket, key), "source") == (bucket, key)
    if bucket.startswith("http"):
        assert server_of(f"{bucket}/x?y") == bucket


def _answer(chance):
    whole = chance.randbytes(chance.randint(1, 50))
    begin = chance.choice([0, chance.randint(-60, 60)])
    span = chance.choice([None, Span(begin, 0 if begin < 0 else begin + chance.randint(1, 60))])
    first, last = (0, len(whole)) if span is None else span.within(len(whole))
    right = whole[first:last]
    headers = {
        "ETag": '"v"',
        "Content-Length": str(len(right)),
        "Last-Modified": "Tue, 24 Nov 2026 10:00:00 GMT",
    }
    if span is not None:
        headers["Content-Range"] = f"bytes {first}-{first + len(right) - 1}/{len(whole)}"
    for name in chance.sample(list(headers), chance.randint(0, 2)):
        odd = (mutate(chance, headers[name].encode()).decode("latin-1"), chance.choice(TEXTS), "")
        headers[name] = chance.choice(odd)
    body = right if chance.random() < 0.9 else right[: chance.randint(0, len(right))]
    response = Response("https://h/x", 206 if "Content-Range" in headers else 200, headers, lambda: body, "")
    counts = []
    try:
        version = _version(response)
        content = response.content(span, counts.append)
    except ObjectError:
        return
    assert (content, counts) == (body, [len(body)])  # only spans can be checked for truncation
    assert body == right or span is None
    assert 0 < len(version) <= 256


def _listing(chance):
    entry = dict(_FILE)
    for name in chance.sample(list(entry), chance.randint(0, 3)):
        entry[name] = any_value(chance)
    entry = entry if chance.random() < 0.9 else any_value(chance)
    try:
        files = list(_file_in(entry))
        for path, version, *_ in files:
            assert version in {"0" * 40, "1" * 64}
            assert path
            assert not {"", ".", ".."} & set(checked_path(path).split("/"))
    except ObjectError as error:
        assert len(str(error)) < 1000  # noqa: PT017  # a refusal is right, if it is short


def _scrape(chance):
    token, tokens = "sixteen-or-more1", chance.choice([None, Tokens("sixteen-or-more1")])
    head = f"GET /metrics HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    given = mutate(chance, head) if chance.random() < 0.9 else head
    status = refusal(given, {"/metrics": Page(lambda: bytes)}, tokens.accept if tokens else None)
    assert given != head or not status
    assert status[:3] in {"", "400", "401", "404", "405"}
    assert status or (b"/metrics" in given and (tokens is None or token.encode() in given))


FUZZERS = {
    "URL of a source": _url,
    "response of a web server": _answer,
    "listing of the Hub": _listing,
    "scrape of metrics": _scrape,
}
