"""Listings of directories with nested folders, links, odd names and unreadable files."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from superdl.coordinator.catalog import list_objects, list_source
from superdl.coordinator.catalog.listing import Tally
from superdl.coordinator.catalog.listing_bucket import list_samples
from superdl.coordinator.catalog.listing_file import check_directory
from superdl.coordinator.catalog.source import Allowed, parse_source
from superdl.lambda_prefetch.sources import read_object
from superdl.super_wire.errors import SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.objects.directory import Directory, file_version
from tests.coordinator.catalog.key_lists import make

ROOT = Path(__file__).resolve().parents[3]


CONFINED = Allowed(own_functions=False)


def listed(directory, *, allowed=Allowed(), warnings=None):  # noqa: B008  # frozen
    """Return the keys below ``directory`` by folder, sorted."""
    tally = Tally(lambda _: None, threading.Event(), allowed)
    found = list_samples(parse_source(str(directory)), tally, images_only=True)
    if warnings is not None:
        warnings += tally.report("source")
    keys = {name: [] for name in found.names}
    for place, key in zip(found.folders, found.keys, strict=True):
        keys[found.names[place]].append(key.decode())
    return {name: sorted(names) for name, names in keys.items()}


def plant(random, top):
    """Create directories with files and links that point sideways, up, down and nowhere."""
    directories = [top / "source", top / "outside"]
    for place in directories:
        place.mkdir(parents=True)
    for number in range(random.randrange(2, 14)):
        parent = random.choice(directories)
        path = parent / (f"{number}.jpg" if random.random() < 0.7 else str(number))
        kind = random.randrange(5)
        if kind == 0:
            path.mkdir()
            directories.append(path)
        elif kind == 1:
            path.write_bytes(b"x" * number)
        elif kind == 2:
            path.symlink_to(random.choice(directories))
        elif kind == 3:
            known = [found for found in top.rglob("*") if found != path]
            path.symlink_to(os.path.relpath(random.choice(known), parent))
        else:
            path.symlink_to(random.choice(["gone.jpg", path.name]))
    return top / "source"


def as_image_folder(source):
    """List with torchvision's ``find_classes`` and ``os.walk``, following links; ``None`` for link cycles."""
    found = {}
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        if Path(entry.path).is_dir():  # never raises for a link
            found[entry.name] = keys = []
            for here, _, names in os.walk(entry.path, followlinks=True):
                keys += [os.path.relpath(f"{here}/{name}", source) for name in names if name.endswith(".jpg")]
                if here.count("/") > 40 or len(keys) > 2000:
                    return None
    return found


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
def test_listings_equal_image_folders_or_warn(tmp_path, part):
    """Compare listings of random trees of links with ImageFolder, and with what functions can read."""
    seen = dict.fromkeys(("circles", "nowhere", "followed", "forbidden", "no image", "equal"), 0)
    for number in range(150):
        source = plant(random.Random(f"{part} {number}"), tmp_path / str(number))
        warnings = []
        ours = listed(source, warnings=warnings)
        ours.pop("", None)
        theirs = as_image_folder(source)
        text = " ".join(warnings)
        circles, nowhere = "in circles" in text, "are broken" in text
        assert (theirs is None) <= circles, (part, number)
        if theirs is not None and not circles:
            present = {
                name: sorted(key for key in keys if (source / key).exists()) for name, keys in theirs.items()
            }
            assert ours == present, (part, number)
            assert nowhere or sum(map(len, present.values())) == sum(map(len, theirs.values()))
            seen["equal"] += 1
        files = Directory(str(source.resolve()), allowed_roots=("/",))
        for key in (key for keys in ours.values() for key in keys):
            version = file_version((source / key).stat())
            read_object(files, key, version, limit_bytes=99, reserve=lambda _: None)
        leads_out = "and are followed" in text
        try:
            confined = listed(source, allowed=CONFINED)
        except SourceForbiddenError:
            seen["forbidden"] += 1
        else:
            assert not leads_out
            confined.pop("", None)
            assert confined == ours
        for word, is_reported in {
            "circles": circles,
            "nowhere": nowhere,
            "followed": leads_out,
            "no image": not all(ours.values()),
        }.items():
            seen[word] += is_reported
    assert min(seen.values()) > 5, seen


@pytest.mark.slow
def test_links_to_directories_of_links_are_limited(tmp_path):
    """Twenty directories, each with two links to the next, look like a million."""
    make(tmp_path, "source/a/1.jpg")
    for number in range(20):
        here, after = tmp_path / f"d{number}", tmp_path / f"d{number + 1}"
        here.mkdir()
        for name in "ab":
            (here / name).symlink_to(after)
    (tmp_path / "d20").mkdir()
    (tmp_path / "source/a/way").symlink_to(tmp_path / "d0")
    with pytest.raises(SourceError, match="more than 100,000 links to directories"):
        listed(tmp_path / "source")


def test_names_that_are_not_utf8_are_skipped_and_shown_escaped(tmp_path):
    source, odd = tmp_path / "source", os.fsdecode(b"caf\xe9")
    make(source, "a/1.jpg", f"a/{odd}.jpg", f"a/{odd}.txt", f"{odd}/2.jpg", f"../{odd}/2.jpg")
    (source / f"a/{odd}.png").symlink_to("/nowhere")
    (source / "b").symlink_to(f"../{odd}")  # its own key is valid UTF-8
    catalog = list_source(str(source))
    assert sorted(catalog.keys) == [b"a/1.jpg", b"b/2.jpg"]
    leads_out, not_utf8 = catalog.warnings
    assert leads_out.endswith(f"{tmp_path}/caf\\xe9")
    shown = [f"{tmp_path}/source/{name}" for name in ("a/caf\\xe9.jpg", "a/caf\\xe9.png", "caf\\xe9")]
    assert " 3 names are not UTF-8 " in not_utf8
    assert not_utf8.endswith(", ".join(shown))
    assert sorted(list_objects(str(source))[0]) == [b"a/1.jpg", b"b/2.jpg"]


@pytest.mark.parametrize("look", [listed, lambda path: check_directory(str(path))], ids=["list", "probe"])
def test_a_missing_directory_is_named(tmp_path, look):
    make(tmp_path, "file")
    with pytest.raises(SourceNotFoundError, match=f"{tmp_path}/gone does not exist"):
        look(tmp_path / "gone")
    with pytest.raises(SourceNotFoundError, match=f"{tmp_path}/file, .* is a file"):
        look(tmp_path / "file")


AS_NOBODY = """
import json, os, sys
import pyarrow.compute  # which nobody may not read where root has installed it
from superdl.coordinator.catalog import list_source
from superdl.super_wire.errors import SourceError
if os.geteuid() == 0:  # chmod forbids root nothing
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for source, key_list in json.loads(sys.argv[1]):
    try:
        print("listed", len(list_source(source, key_list)))
    except SourceError as error:
        print(type(error).__name__, error)
"""


def list_as_nobody(*sources):
    """List each (source, key list) as a user who is not root. Return one line each."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, json.dumps(sources)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def open_path():
    """Make a directory that every user may enter. Pytest's own are private to one user."""
    path = Path(tempfile.mkdtemp(prefix="super-t-")).resolve()
    path.chmod(0o755)
    yield path
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o755)
    shutil.rmtree(path)


def test_an_unreadable_file_or_directory_is_named(open_path):
    make(open_path, "good/a/1.jpg", "closed/a/1.jpg", "shut/a/1.jpg", "shut/b/2.jpg", "blind/a/1.jpg")
    make(open_path, "linked/a/1.jpg", "linked/b/sub/2.jpg", "labels.csv")
    (open_path / "linked/a/link.jpg").symlink_to("../b/sub/2.jpg")
    (open_path / "closed").chmod(0)
    (open_path / "shut/b").chmod(0)
    (open_path / "blind/a").chmod(0o444)  # names can be listed, but files cannot be stat'ed
    (open_path / "linked/b").chmod(0)
    (open_path / "labels.csv").chmod(0)
    names = ["good", "closed", "closed/a", "shut", "blind", "linked"]
    lines = list_as_nobody(
        *((f"{open_path}/{name}", None) for name in names), (f"{open_path}/good", f"{open_path}/labels.csv")
    )
    assert lines.pop(0) == "listed 1"
    forbidden = ["closed", "closed/a", "shut/b", "blind/a/1.jpg", "linked/", "labels.csv"]
    for line, path in zip(lines, forbidden, strict=True):
        assert line.startswith("SourceForbiddenError ")
        assert "user id " in line
        assert f"{open_path}/{path}" in line
        assert "grant it read" in line
