"""Objects are read in the listed version only, and files only within their directory."""

import hashlib
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from superdl.lambda_prefetch.sources import SampleFailedError, read_object
from superdl.super_wire.ids import digest_version
from superdl.super_wire.objects.directory import Directory
from superdl.super_wire.request import Outcome
from tests.lambda_prefetch.prefetching import file_version

LIMIT = 1000


def read(source, key, version, reserve=lambda _: None):
    return read_object(source, key, version, limit_bytes=LIMIT, reserve=reserve)


def failure(source, key, version="6-1", **options):
    with pytest.raises(SampleFailedError) as caught:
        read(source, key, version, **options)
    return caught.value


def test_an_object_is_read_in_its_listed_version_only(kept):
    source, put = kept
    requested, key = [], "ö ne.jpg"
    version, large = put(key, b"one"), put("big.jpg", b"x" * (LIMIT + 1))
    assert read(source, key, version, requested.append) == b"one"
    too_large = failure(source, "big.jpg", large, reserve=requested.append)
    assert (too_large.outcome, too_large.reason) == (Outcome.TOMBSTONE, "too_large")
    assert requested == [3]  # for room, before its bytes; for none where it is too large
    put(key, b"other")
    assert failure(source, key, version).outcome is Outcome.CHANGED
    assert failure(source, "none.jpg", version).outcome is Outcome.MISSING


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / "source"
    (directory / "cats").mkdir(parents=True)
    (directory / "cats" / "one.jpg").write_bytes(b"one")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "source-of-another").mkdir()
    (tmp_path / "source-of-another" / "x.jpg").write_bytes(b"secret")
    return directory.resolve()


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
def test_no_key_leaves_the_directory(root, key):
    (root / "link-to-file.jpg").symlink_to("../secret.jpg")
    (root / "link-to-directory").symlink_to("..")
    (root / "link-to-neighbour").symlink_to("../source-of-another")
    (root / "absolute-link.jpg").symlink_to(root.parent / "secret.jpg")
    (root / "link-to-link.jpg").symlink_to("link-to-file.jpg")
    refused = failure(Directory(str(root)), key, file_version(root.parent / "secret.jpg"))
    assert refused.outcome is Outcome.REFUSED
    assert "leaves the source's directory" in refused.message


@pytest.fixture
def disguised(root):
    """A directory outside the source, whose file has the listed name and version."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "one.jpg").write_bytes(b"SEC")
    status = (root / "cats/one.jpg").stat()
    os.utime(outside / "one.jpg", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_version(outside / "one.jpg") == file_version(root / "cats/one.jpg")
    return outside


SWAPPING = """
import os, sys
os.chdir(sys.argv[1])
os.symlink(sys.argv[2], "link")
while True:
    os.rename("cats", "directory"), os.rename("link", "cats")
    os.rename("cats", "link"), os.rename("directory", "cats")
"""


@pytest.mark.parametrize("roots", ["source", "parent"])
def test_a_link_that_comes_and_goes_is_not_followed(root, disguised, tmp_path_factory, roots):
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
                data = read(Directory(str(root), allowed_roots=allowed), "cats/one.jpg", version)
            except SampleFailedError as error:
                seen[error.outcome] += 1
            else:
                seen[data] += 1
    finally:
        swapper.kill()
        swapper.wait()
    assert min(seen[b"one"], seen[Outcome.REFUSED]) == 500, seen
    assert set(seen) <= {b"one", Outcome.REFUSED, Outcome.MISSING, Outcome.SOURCE_ERROR}


def test_links_are_followed_within_the_roots(root):
    (root / "linked").symlink_to("../source-of-another")
    (root / "cats" / "linked.jpg").symlink_to(root.parent / "secret.jpg")
    allowed = Directory(str(root), allowed_roots=("/nowhere", str(root.parent)))
    for key in ("linked/x.jpg", "cats/linked.jpg"):
        version = file_version(root / key)
        assert read(allowed, key, version) == b"secret"
        assert failure(Directory(str(root)), key, version).outcome is Outcome.REFUSED


def test_a_missing_file_and_a_change_during_a_read_are_reported(root):
    source = Directory(str(root))
    for key in ("cats/none.jpg", "none/one.jpg", "cats/one.jpg/deeper.jpg"):
        assert failure(source, key).outcome is Outcome.MISSING

    def write(_):
        (root / "cats/one.jpg").write_bytes(b"two")
        os.utime(root / "cats/one.jpg", ns=(1, 1))

    version = file_version(root / "cats/one.jpg")
    assert failure(source, "cats/one.jpg", version, reserve=write).outcome is Outcome.CHANGED


def test_a_digest_version_ignores_the_time_and_detects_every_change(root):
    version, source = (
        digest_version(3, hashlib.blake2b(b"one", digest_size=16).digest()),
        Directory(str(root)),
    )
    os.utime(root / "cats/one.jpg", ns=(1, 1))
    assert read(source, "cats/one.jpg", version) == b"one"
    for content in (b"onE", b"ones", b""):
        (root / "cats/one.jpg").write_bytes(content)
        changed = failure(source, "cats/one.jpg", version)
        assert changed.outcome is Outcome.CHANGED
        assert version in changed.message


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_directories_and_pipes_are_not_read(root, make):
    make(root / "odd.jpg")
    assert failure(Directory(str(root)), "odd.jpg").outcome is Outcome.CHANGED


def test_a_file_without_permission_is_refused(root):
    """Root may read everything, so become nobody for a moment."""
    (root / "cats/one.jpg").chmod(0)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(65534)
        refused = failure(Directory(str(root)), "cats/one.jpg", "3-1")
    finally:
        if is_root:
            os.seteuid(0)
    assert refused.outcome is Outcome.REFUSED
    assert refused.message.startswith("permission denied to user id ")
