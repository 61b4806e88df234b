"""An S3 server that can only list objects: ``python -m benchmarks.listed_bucket PORT SAMPLES``."""

from __future__ import annotations

import contextlib
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from benchmarks.harness.processes import ROOT, Server, free_port, running, s3_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FOLDERS, _PAGE = 20, 1000


@contextlib.contextmanager
def listed_bucket(samples: int) -> Iterator[Server]:
    """Serve a bucket of ``samples`` objects."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.listed_bucket", str(port), str(samples)]
    with running(command, port, cwd=ROOT) as pid:
        environment = s3_environment(port)
        yield Server(environment["SUPER_S3_ENDPOINT_URL"], pid, environment)


class _Listing(BaseHTTPRequestHandler):
    """A handler for ListObjectsV2 that lists folders of equal size under ``train/``."""

    protocol_version = "HTTP/1.1"
    samples: ClassVar[int]

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        page = self._page({name: values[0] for name, values in query.items()}) if "list-type" in query else ""
        content = f"<ListBucketResult><EncodingType>url</EncodingType>{page}</ListBucketResult>".encode()
        self.send_response(HTTPStatus.OK if "list-type" in query else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _page(self, query: Mapping[str, str]) -> str:
        if "delimiter" in query:
            names = (f"train/n{folder:08d}/" for folder in range(_FOLDERS))
            return "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in names)
        folder = query["prefix"].strip("/").rpartition("/n")[2]
        if not folder.isdigit():
            return ""
        numbers = range(int(folder), self.samples, _FOLDERS)
        begin = int(query.get("continuation-token", "0"))
        objects = "".join(
            f"<Contents><Key>train/n{folder}/{number:09d}.JPEG</Key><LastModified>2026-11-29T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{number:032d}&quot;</ETag><Size>{100_000 + number % _PAGE}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for number in numbers[begin : begin + _PAGE]
        )
        if begin + _PAGE >= len(numbers):
            return objects
        token = f"<NextContinuationToken>{begin + _PAGE}</NextContinuationToken>"
        return f"<IsTruncated>true</IsTruncated>{token}{objects}"

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    _Listing.samples = int(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Listing).serve_forever()
