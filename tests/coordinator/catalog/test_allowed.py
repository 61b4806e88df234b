"""Which local files a coordinator reads for its clients, and how many samples it accepts."""

import os
import re

import pytest

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.source import Allowed, parse_roots
from superdl.coordinator.server.settings import Settings, allowed_to_listings, executor_context
from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError
from tests.coordinator.catalog.key_lists import make


@pytest.fixture
def places(tmp_path):
    """An allowed directory with a source and a key list, and an identical sibling that is not allowed."""
    for name in ("data", "data-private"):
        make(tmp_path / name, "pets/cat/1.jpg", "pets/dog/1.jpg")
        (tmp_path / name / "labels.csv").write_text("key,label\ncat/1.jpg,0\n")
    return tmp_path


@pytest.fixture
def allowed(places):
    return Allowed(roots=parse_roots(str(places / "data")))


def test_sources_and_key_lists_in_a_root_are_read(places, allowed):
    pets = places / "data" / "pets"
    assert len(list_source(pets.as_uri(), allowed=allowed)) == 2
    assert len(list_source(str(pets), str(places / "data" / "labels.csv"), allowed=allowed)) == 1
    assert len(list_source(str(places / "data" / "x" / ".." / "pets"), allowed=allowed)) == 2


@pytest.mark.parametrize(
    "path",
    ["data-private/pets", "data/../data-private/pets", "data/away", "data/away/cat", "", "data/none/../.."],
)
def test_a_source_outside_all_roots_is_refused_whether_it_exists_or_not(places, allowed, path):
    (places / "data" / "away").symlink_to(places / "data-private" / "pets")
    source = f"file://{places}/{path}"
    with pytest.raises(SourceForbiddenError, match=re.escape(source)) as caught:
        list_source(source, allowed=allowed)
    assert allowed.roots[0] not in str(caught.value).replace(source, "")
    with pytest.raises(SourceForbiddenError, match="not allowed to read"):
        list_source(f"{source}-that-is-not-there/../../../..", allowed=allowed)


@pytest.mark.parametrize(
    "path", ["data-private/labels.csv", "data/../data-private/labels.csv", "data/away.csv"]
)
def test_a_key_list_outside_all_roots_is_refused(places, allowed, path):
    (places / "data" / "away.csv").symlink_to(places / "data-private" / "labels.csv")
    for named in (str(places / path), f"file://{places}/{path}"):
        with pytest.raises(SourceForbiddenError, match="not allowed to read key_list"):
            list_source(str(places / "data" / "pets"), named, allowed=allowed)


def test_links_out_of_all_roots_are_refused_by_name(places, allowed):
    pets = places / "data" / "pets"
    (pets / "cat" / "away.jpg").symlink_to(places / "data-private" / "pets" / "cat" / "1.jpg")
    (pets / "secrets").symlink_to(places / "data-private" / "pets" / "cat")
    (pets / "guess").symlink_to(places / "data-private" / "there-is-none")
    with pytest.raises(SourceForbiddenError, match="3 symbolic links") as caught:
        list_source(str(pets), allowed=allowed)
    for path in (pets / "cat" / "away.jpg", pets / "secrets", pets / "guess"):
        assert str(path) in str(caught.value)
    assert "SUPER_FILE_ROOTS" in str(caught.value)
    assert len(list_source(str(pets), str(places / "data" / "labels.csv"), allowed=allowed)) == 1
    (pets / "guess").unlink()
    both = Allowed(parse_roots(f"{places / 'data'}:{places / 'data-private'}"))
    catalog = list_source(str(pets), allowed=both)
    assert catalog.classes == ("cat", "dog", "secrets")
    assert f" are followed, to {places}" in catalog.warnings[0]


@pytest.mark.parametrize(
    ("settings", "link_roots"),
    [
        ({}, ("/",)),
        ({"listen": "unix:/x.sock"}, ("/",)),
        ({"executor": "local,lambda"}, ("/",)),
        ({"file_roots": "/data"}, ("/data",)),
        ({"executor": "local,workers"}, ()),
        ({"listen": "0.0.0.0:1", "insecure": True}, ()),
    ],
)
def test_listings_and_functions_follow_the_same_links(settings, link_roots):
    configured = Settings(**settings)
    assert allowed_to_listings(configured).link_roots == link_roots
    environment = executor_context(configured).environment
    assert environment.get("SUPER_FILE_ROOTS", "") == os.pathsep.join(link_roots)


def test_a_key_list_replaced_by_a_link_before_opening_is_refused(places, allowed):
    within, outside = places / "data" / "labels.csv", places / "data-private" / "labels.csv"
    allowed.check_path(os.path.realpath(within), "key_list")
    within.unlink()
    within.symlink_to(outside)
    with within.open("rb") as swapped, pytest.raises(SourceForbiddenError, match="to read key_list"):
        allowed.check_open_file(swapped.fileno(), "key_list")


def test_a_coordinator_that_others_reach_reads_only_its_roots(places):
    tls = {"tls_cert": "c", "tls_key": "k", "token": "0123456789abcdef"}
    source = str(places / "data" / "pets")
    reachable = allowed_to_listings(Settings(listen="0.0.0.0:50051", **tls))
    with pytest.raises(SourceForbiddenError, match="other machines can reach it, .*SUPER_FILE_ROOTS"):
        list_source(source, allowed=reachable)
    with pytest.raises(SourceForbiddenError, match="other machines can reach it"):
        list_source("s3://bucket", str(places / "data" / "labels.csv"), allowed=reachable)
    named = allowed_to_listings(Settings(listen="0.0.0.0:50051", file_roots=str(places / "data"), **tls))
    for allowed in (named, allowed_to_listings(Settings())):
        assert len(list_source(source, allowed=allowed)) == 2


def test_several_absolute_roots_are_accepted(tmp_path):
    (tmp_path / "link").symlink_to("/usr")
    assert parse_roots(f"{tmp_path}/link::/tmp/") == ("/usr", os.path.realpath("/tmp"))
    assert parse_roots("") == ()
    with pytest.raises(ConfigError, match="file_roots .* absolute .*':'.* 'data'"):
        Settings(file_roots="/tmp:data")


@pytest.mark.parametrize("key_list", [False, True])
def test_too_many_samples_are_refused(places, key_list):
    pets, listed = places / "data" / "pets", places / "data" / "both.csv"
    listed.write_text("key,label,version\n" + "".join(f"cat/{n}.jpg,0,v\n" for n in range(2000)))
    with pytest.raises(SourceError, match="more than 1 samples.* catalog_max_samples"):
        list_source(str(pets), str(listed) if key_list else None, allowed=Allowed(samples=1))
