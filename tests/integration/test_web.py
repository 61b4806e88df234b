"""Samples on web servers, named by lists: whole epochs, versions, refusals, and servers never contacted."""

import io
import ssl
import tarfile
import threading
from email.utils import formatdate
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from superdl.coordinator.catalog import list_source
from superdl.coordinator.server.settings import Settings, allowed_to_listings, executor_context
from superdl.lambda_prefetch.handler import open_source
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.main import main
from superdl.super_dataset import Recipe
from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.objects import Span, web
from superdl.super_wire.request import Outcome
from tests.fixtures.images import CLASSES, SIDE, expected_pixels, write_images
from tests.fixtures.web import DATE, WebServer, web_server
from tests.integration.delivery import assert_exactly_once, epoch_of
from tests.integration.fetching import LIMIT, assert_spans, failure, read
from tests.superdl.index.shards import mds_of

__all__ = ["web_server"]

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
METADATA = "http://169.254.169.254/latest/meta-data/"


@pytest.fixture
def elsewhere():
    """A second server."""
    server = WebServer()
    server.files["1.jpg"] = b"one"
    yield server
    server.close()


def test_an_epoch_of_files_that_a_list_on_the_server_names(web_server, shared_stack, tmp_path):
    images = write_images(tmp_path / "photos", 8)
    rows = ["key,label"]
    for path in sorted(images.glob("*/*.jpg")):
        key = f"{path.parent.name} ö#%20?/{path.name}"
        web_server.files[f"my photos/{key}"] = path.read_bytes()
        rows.append(f"{key},{CLASSES.index(path.parent.name)}")
    web_server.files["lists/a b.csv"] = "\n".join(rows).encode()
    source, key_list = f"{web_server.url}/my%20photos/", f"{web_server.url}/lists/a%20b.csv"
    found = epoch_of(source, RECIPE, shared_stack.address, key_list=key_list)
    assert_exactly_once(found, expected_pixels(images, resize=SIDE, crop=SIDE))


def test_an_epoch_of_shards_as_webdataset_writes_them(web_server, shared_stack, tmp_path):
    images = write_images(tmp_path / "photos", 12)
    paths = sorted(images.glob("*/*.jpg"))
    for number in range(3):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path in paths[number::3]:
                label = str(CLASSES.index(path.parent.name)).encode()
                for extension, content in (("jpg", path.read_bytes()), ("cls", label)):
                    info = tarfile.TarInfo(f"{path.stem}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        web_server.files[f"shards/train-{number:06d}.tar"] = packed.getvalue()
    key_list = str(tmp_path / "train.jsonl")
    names = [f"{web_server.url}/shards/train-{number:06d}.tar" for number in range(3)]
    assert main(["index", *names, "-o", key_list]) == 0
    found = epoch_of(f"{web_server.url}/shards", RECIPE, shared_stack.address, key_list=key_list)
    assert_exactly_once(found, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert main(["index", names[0], f"{names[1]}.gone", "-o", key_list, "--force"]) == 1
    assert main(["index", names[0], f"{web_server.url}/x.tar", "-o", key_list, "--force"]) == 2
    for name in ("", "train-{000000..000002}.tar"):  # braces quoted from the shell
        assert main(["index", f"{web_server.url}/shards/{name}", "-o", key_list, "--force"]) == 2


def test_an_index_names_the_shards_beside_it(web_server, tmp_path):
    shard = mds_of(tmp_path, [(b"image", 3)])
    web_server.files |= {f"m/{path.name}": path.read_bytes() for path in (shard, tmp_path / "index.json")}
    key_list = tmp_path / "train.jsonl"
    assert main(["index", f"{web_server.url}/m/index.json", "-o", str(key_list)]) == 0
    catalog = list_source(f"{web_server.url}/m", str(key_list))
    assert (len(catalog), catalog.labels.tolist(), catalog.keys[0]) == (1, [3], b"m/shard.00000.mds")


@pytest.mark.parametrize(
    ("validators", "version"),
    [
        ({"ETag": '"v1"'}, b"v1"),
        ({"ETag": 'W/"v1"', "Last-Modified": DATE}, b"v1"),
        ({"Last-Modified": DATE}, f"6 bytes, {DATE}".encode()),
    ],
)
def test_the_version_of_a_file_and_its_spans(web_server, tmp_path, validators, version):
    web_server.files = {"t/1.jpg": b"012345"}
    web_server.validators = lambda _: validators
    key_list = tmp_path / "list.csv"
    key_list.write_text("key,label\n1.jpg,5\n")
    catalog = list_source(f"{web_server.url}/t", str(key_list))
    assert list(catalog.versions) == [version]
    place = web_server.url, "t/1.jpg", version.decode()
    assert read(*place) == b"012345"
    assert_spans(place, b"012345")
    assert failure(*place, Span(6, 9))[0] is Outcome.CHANGED
    web_server.validators = lambda _: {"ETag": '"v2"', "Last-Modified": "Wed, 25 Nov 2026 10:00:00 GMT"}
    assert failure(*place)[0] is Outcome.CHANGED
    web_server.validators = lambda _: {}
    for ask in (lambda: list_source(f"{web_server.url}/t", str(key_list)), lambda: read(*place)):
        with pytest.raises((SourceError, SampleFailedError), match="neither ETag nor Last-Modified"):
            ask()


def test_answers_that_bring_no_file(web_server):
    bucket, good = web_server.url, {"ETag": '"v"'}
    web_server.files = {"big": b"x" * (LIMIT + 1), "1.jpg": b"one"}
    web_server.validators = lambda _: good
    assert failure(bucket, "gone.jpg", "v")[0] is Outcome.MISSING
    assert failure(bucket, "big", "v")[0] is Outcome.TOMBSTONE
    for key in ("a/../1.jpg", "a//1.jpg", "./1.jpg", "/1.jpg"):
        assert failure(bucket, key, "v")[0] is Outcome.REFUSED
    for status, outcome in ((401, Outcome.REFUSED), (403, Outcome.REFUSED), (503, Outcome.UNAVAILABLE)):
        web_server.told["1.jpg"] = lambda request, status=status: request.answer(status, good, b"no")
        web_server.asked.clear()
        assert failure(bucket, "1.jpg", "v")[0] is outcome
        assert len(web_server.asked) == (3 if status == 503 else 1)

    def told(why, headers=good, body=b"one", status=200, span=None):
        web_server.told["1.jpg"] = lambda request: request.answer(status, headers, body)
        outcome, words = failure(bucket, "1.jpg", "v", span)
        assert outcome is Outcome.SOURCE_ERROR
        assert why in words

    told("ignores Range", span=Span(1, 2))
    told("ignores Range", {**good, "Content-Range": "bytes 0-2/9"}, status=206)
    told("is compressed", {**good, "Content-Encoding": "gzip"})
    told("Transfer-Encoding", {**good, "Transfer-Encoding": "chunked"}, b"3\r\none\r\n0\r\n\r\n")
    told("Content-Range", {**good, "Content-Range": "bytes 0-2/9"}, status=206, span=Span(1, 2))
    told("Content-Range", {**good, "Content-Range": "bytes 1-3/*"}, status=206, span=Span(1, 4))
    told("Invalid IPv6", {"Location": "https://[::1"}, status=302)
    told("redirected more than", {"Location": "/1.jpg"}, status=302)

    def without_length(request):
        request.send_response(200)
        request.send_header("ETag", '"v"')
        request.end_headers()
        request.hang_up()

    def cut_off(request):
        request.send_response(200)
        request.send_header("Content-Length", "9")
        request.send_header("ETag", '"v"')
        request.end_headers()
        request.wfile.write(b"one")
        request.wfile.flush()
        request.hang_up()

    for answer in (without_length, cut_off, lambda request: request.hang_up()):
        web_server.told["1.jpg"] = answer
        assert failure(bucket, "1.jpg", "v")[0] is Outcome.UNAVAILABLE


def test_what_the_coordinator_cannot_list_is_told(web_server, tmp_path):
    web_server.files = {"t/1.jpg": b"one"}
    key_list = tmp_path / "list.csv"
    with pytest.raises(ConfigError, match=f"{web_server.url}/t.*cannot be listed.*key_list"):
        list_source(f"{web_server.url}/t")
    key_list.write_text("key,label\n1.jpg,5\n2.jpg,5\n")
    with pytest.raises(SourceNotFoundError, match=f"{web_server.url}/t/2.jpg does not exist.*404"):
        list_source(f"{web_server.url}/t", str(key_list))
    key_list.write_text("key,label,version\n2.jpg,5,v\n")
    with pytest.raises(SourceNotFoundError, match=f"{web_server.url}/t/.*404"):
        list_source(f"{web_server.url}/t", str(key_list))
    key_list.write_text("key,label\n../1.jpg,5\n")
    with pytest.raises(SourceError, match="not a path below the source"):
        list_source(f"{web_server.url}/t", str(key_list))
    with pytest.raises(SourceNotFoundError, match=f"key_list {web_server.url}/m.csv"):
        list_source(str(tmp_path), f"{web_server.url}/m.csv")


def test_a_coordinator_that_others_reach_asks_no_server_that_its_operator_does_not_name(
    web_server, elsewhere, tmp_path
):
    web_server.files = {"l.csv": b"key,label\n1.jpg,5\n", "1.jpg": b"one"}
    key_list = tmp_path / "list.csv"
    key_list.write_text("key,label\n1.jpg,5\n")
    settings = partial(Settings, listen="0.0.0.0:50051", insecure=True, cache="redis://127.0.0.1:1")
    nobody = allowed_to_listings(settings(file_roots=str(tmp_path)))
    for url in (web_server.url, METADATA, "https://169.254.169.254/x", "https://images.example.org/x"):
        for place in ((url, str(key_list)), (str(tmp_path), f"{url}/l.csv")):
            with pytest.raises(SourceForbiddenError, match="may not read .*http_hosts"):
                list_source(*place, allowed=nobody)
    assert not web_server.asked
    named = settings(http_hosts=f"images.example.org, {web_server.url}")
    allowed = allowed_to_listings(named)
    assert len(list_source(web_server.url, f"{web_server.url}/l.csv", allowed=allowed)) == 1
    assert executor_context(named).environment["SUPER_HTTP_HOSTS"] == named.http_hosts
    for target in (f"{elsewhere.url}/1.jpg", METADATA, "https://169.254.169.254/x", "file:///etc/passwd"):
        for key in ("l.csv", "1.jpg"):
            web_server.told[key] = lambda request, to=target: request.answer(302, {"Location": to}, b"")
        with pytest.raises(SourceError, match="redirected to"):
            list_source(web_server.url, f"{web_server.url}/l.csv", allowed=allowed)
        assert "redirected to" in failure(web_server.url, "1.jpg", "v", hosts=allowed.http_hosts)[1]
    assert not elsewhere.asked
    allowed = allowed_to_listings(settings(http_hosts=f"{web_server.url},{elsewhere.url}"))
    web_server.told["1.jpg"] = lambda request: request.answer(
        302, {"Location": f"{elsewhere.url}/1.jpg"}, b""
    )
    assert (
        read(web_server.url, "1.jpg", "f97c5d29941bfb1b2fdab0874906ab82", hosts=allowed.http_hosts) == b"one"
    )
    with pytest.raises(ConfigError, match="http_hosts must list hosts.*example.org/folder"):
        settings(http_hosts="https://example.org/folder")


def test_functions_ask_the_servers_of_their_own_setting_alone(web_server, elsewhere):
    settings = FunctionSettings.from_environment({"SUPER_HTTP_HOSTS": elsewhere.url})
    with pytest.raises(ConfigError, match=f"{web_server.url}.*SUPER_HTTP_HOSTS"):
        open_source(web_server.url, settings)
    for bucket in ("http://169.254.169.254", "http://images.example.org", "http://10.0.0.1:80"):
        with pytest.raises(ConfigError, match="does not use TLS"):
            open_source(bucket, FunctionSettings())
    web_server.told["1.jpg"] = lambda request: request.answer(302, {"Location": METADATA}, b"")
    assert "not use TLS" in failure(web_server.url, "1.jpg", "v")[1]


def test_a_server_shows_a_certificate_and_leads_to_no_plain_one(
    certificates, web_server, tmp_path, monkeypatch
):
    """Served by Python's own server, which does not support ranges."""
    (tmp_path / "1.jpg").write_bytes(b"one")

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/plain.jpg":
                self.send_response(302)
                self.send_header("Location", f"{web_server.url}/1.jpg")
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, *_words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.cert_file, certificates.server.key_file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    bucket = f"https://127.0.0.1:{server.server_port}"
    version = f"3 bytes, {formatdate((tmp_path / '1.jpg').stat().st_mtime, usegmt=True)}"
    try:
        web._pool.cache_clear()
        outcome, why = failure(bucket, "1.jpg", "v")
        assert outcome is Outcome.SOURCE_ERROR
        assert "CERTIFICATE_VERIFY_FAILED" in why
        monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)
        web._pool.cache_clear()
        assert read(bucket, "1.jpg", version) == b"one"
        assert "ignores Range" in failure(bucket, "1.jpg", version, Span(0, 2))[1]
        assert "not use TLS" in failure(bucket, "plain.jpg", "v")[1]
    finally:
        web._pool.cache_clear()
        server.shutdown()
        server.server_close()
        thread.join()
    assert not web_server.asked
