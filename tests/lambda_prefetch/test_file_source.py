"""Files are read in exactly the listed version, and never from outside the source's directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from superdl.lambda_prefetch.handler import open_source
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.sources import SampleFailedError, read_object
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import digest_version
from superdl.super_wire.objects.directory import Directory
from superdl.super_wire.request import Outcome
from tests.lambda_prefetch.prefetching import file_version

LIMIT = 1000


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / "source"
    (directory / "cats").mkdir(parents=True)
    (directory / "cats" / "one.jpg").write_bytes(b"one")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "source-of-another").mkdir()
    (tmp_path / "source-of-another" / "x.jpg").write_bytes(b"secret")
    return directory.resolve()


def read(root, key, version=None, reserve=lambda _: None):
    listed = file_version(root / key) if version is None else version
    return read_object(Directory(str(root)), key, listed, limit_bytes=LIMIT, reserve=reserve)


def failure(root, key, version="6-1"):
    with pytest.raises(SampleFailedError) as caught:
        read(root, key, version)
    return caught.value


def test_links_within_the_directory_are_followed(root):
    (root / "dogs").symlink_to("cats")
    (root / "cats" / "two.jpg").symlink_to("one.jpg")
    assert read(root, "dogs/two.jpg") == b"one"


@pytest.mark.parametrize(
    "key",
    [
        "../secret.jpg",
        "cats/../../secret.jpg",
        "cats/../cats/one.jpg",
        "..",
        "/etc/passwd",
        "cats/\0",
        "link-to-file.jpg",
        "link-to-directory/secret.jpg",
        "link-to-neighbour/x.jpg",
        "absolute-link.jpg",
        "link-to-link.jpg",
    ],
)
def test_nothing_outside_the_directory_is_read(root, key):
    (root / "link-to-file.jpg").symlink_to("../secret.jpg")
    (root / "link-to-directory").symlink_to("..")
    (root / "link-to-neighbour").symlink_to("../source-of-another")
    (root / "absolute-link.jpg").symlink_to(root.parent / "secret.jpg")
    (root / "link-to-link.jpg").symlink_to("link-to-file.jpg")
    found = failure(root, key, file_version(root.parent / "secret.jpg"))
    assert found.outcome is Outcome.REFUSED
    assert "leaves the source's directory" in found.why


@pytest.fixture
def disguised(root):
    """A directory outside with another file under the name, and in the version, of the listed one."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "one.jpg").write_bytes(b"SEC")
    status = (root / "cats/one.jpg").stat()
    os.utime(outside / "one.jpg", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_version(outside / "one.jpg") == file_version(root / "cats/one.jpg")
    return outside


def test_a_directory_that_is_swapped_for_a_link_after_it_was_resolved_is_not_left(root, disguised):
    version, source = file_version(root / "cats/one.jpg"), Directory(str(root))
    options = {"limit_bytes": LIMIT, "reserve": lambda _: None}
    assert read_object(source, "cats/one.jpg", version, **options) == b"one"
    (root / "cats").rename(root / "moved")
    (root / "cats").symlink_to(disguised)
    assert (
        read_object(source, "cats/one.jpg", version, **options) == b"one"
    )  # of the directory that was resolved
    assert failure(root, "cats/one.jpg", version).outcome is Outcome.REFUSED


SWAPPING = """
import os, sys
os.chdir(sys.argv[1])
os.symlink(sys.argv[2], "link")
while True:
    os.rename("cats", "directory"), os.rename("link", "cats")
    os.rename("cats", "link"), os.rename("directory", "cats")
"""


@pytest.mark.parametrize("roots", ["source", "parent"])
def test_a_link_that_comes_and_goes_never_leads_out(root, disguised, tmp_path_factory, roots):
    """A process swaps the directory for a link and back, as fast as it can, while files are read."""
    secret = tmp_path_factory.mktemp("elsewhere").resolve() / "outside"
    disguised.rename(secret)
    version = file_version(root / "cats/one.jpg")
    allowed = (str(root.parent),) if roots == "parent" else ()
    swapper = subprocess.Popen([sys.executable, "-c", SWAPPING, str(root), str(secret)])
    seen = Counter()
    try:
        deadline = time.monotonic() + 20
        while min(seen[b"one"], seen[Outcome.REFUSED]) < 500 and time.monotonic() < deadline:
            try:
                data = read_object(
                    Directory(str(root), allowed_roots=allowed),
                    "cats/one.jpg",
                    version,
                    limit_bytes=LIMIT,
                    reserve=lambda _: None,
                )
            except SampleFailedError as error:
                seen[error.outcome] += 1
            else:
                seen[data] += 1
    finally:
        swapper.kill()
        swapper.wait()
    assert min(seen[b"one"], seen[Outcome.REFUSED]) == 500, seen
    assert set(seen) <= {b"one", Outcome.REFUSED, Outcome.MISSING, Outcome.SOURCE_ERROR}


def test_links_lead_as_far_as_the_roots_go(root):
    (root / "linked").symlink_to("../source-of-another")
    (root / "cats" / "linked.jpg").symlink_to(root.parent / "secret.jpg")
    allowed = Directory(str(root), allowed_roots=("/nowhere", str(root.parent)))
    for key in ("linked/x.jpg", "cats/linked.jpg"):
        version = file_version(root / key)
        data = read_object(allowed, key, version, limit_bytes=LIMIT, reserve=lambda _: None)
        assert data == b"secret"
        assert failure(root, key, version).outcome is Outcome.REFUSED


def descriptors_below(root):
    """How many of this process's open files and directories lie there."""
    places = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            places.append(str(descriptor.readlink()))
    return sum(place.startswith(str(root)) for place in places)


def test_no_descriptor_outlives_the_source(root):
    source = Directory(str(root))
    for number in range(300):
        (root / str(number)).mkdir()
        key = f"{number}/x.jpg"
        (root / key).write_bytes(b"x")
        assert (
            read_object(source, key, file_version(root / key), limit_bytes=LIMIT, reserve=lambda _: None)
            == b"x"
        )
    assert 0 < descriptors_below(root) <= 128
    del source
    assert descriptors_below(root) == 0


def test_missing_and_changed(root):
    for key in ("cats/none.jpg", "none/one.jpg", "cats/one.jpg/deeper.jpg"):
        assert failure(root, key).outcome is Outcome.MISSING
    listed = file_version(root / "cats/one.jpg")
    (root / "cats/one.jpg").write_bytes(b"other")
    found = failure(root, "cats/one.jpg", listed)
    assert found.outcome is Outcome.CHANGED
    assert listed in found.why


def test_changed_while_it_was_read(root):
    def write(_):
        (root / "cats/one.jpg").write_bytes(b"two")
        os.utime(root / "cats/one.jpg", ns=(1, 1))

    with pytest.raises(SampleFailedError) as caught:
        read(root, "cats/one.jpg", reserve=write)
    assert caught.value.outcome is Outcome.CHANGED


def test_a_version_by_digest_outlives_the_time_and_no_other_byte(root):
    version = digest_version(3, hashlib.blake2b(b"one", digest_size=16).digest())
    os.utime(root / "cats/one.jpg", ns=(1, 1))
    assert read(root, "cats/one.jpg", version) == b"one"
    for content in (b"onE", b"ones", b""):
        (root / "cats/one.jpg").write_bytes(content)
        found = failure(root, "cats/one.jpg", version)
        assert found.outcome is Outcome.CHANGED
        assert version in found.why


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_waited_for(root, make):
    make(root / "odd.jpg")
    assert failure(root, "odd.jpg").outcome is Outcome.CHANGED


def test_too_large_is_told_before_reading(root):
    (root / "big.jpg").write_bytes(b"x" * (LIMIT + 1))
    asked = []
    with pytest.raises(SampleFailedError) as caught:
        read(root, "big.jpg", reserve=asked.append)
    assert (caught.value.outcome, caught.value.reason) == (Outcome.TOMBSTONE, "too_large")
    assert not asked


@pytest.fixture
def nobody():
    """Not root for the time of a test, for whom nothing is forbidden."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_no_permission(root, nobody):
    version = "3-1"
    if os.getuid() != 0:
        (root / "cats/one.jpg").chmod(0)
    found = failure(root, "cats/one.jpg", version)
    assert found.outcome is Outcome.REFUSED
    assert found.why.startswith("permission denied to user id ")


@pytest.mark.parametrize("bucket", ["ftp://bucket", "bucket", "s3://", "", "file://relative/path", "/data"])
def test_a_bucket_of_no_known_kind_is_refused(bucket):
    with pytest.raises(ConfigError, match=r"bucket"):
        open_source(bucket, FunctionSettings())
