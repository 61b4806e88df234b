"""A store in a directory: layout, permissions, links, failing disks and killed writers."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from superdl.super_wire.errors import (
    StoreBusyError,
    StoreFormatError,
    StoreGoneError,
    StoreRefusedError,
)
from superdl.super_wire.store import DirectoryStore
from tests.super_wire.store.packing import META, fill, intact, records

SAMPLES = records([9, 70_000, 1])


@pytest.fixture
def store(tmp_path):
    return DirectoryStore.open(tmp_path / "store", create=True)


def write(store):
    with store.begin_pack(META) as pack_in_progress:
        fill(pack_in_progress, SAMPLES)
        return pack_in_progress.commit()


def test_the_layout_is_as_documented(store, tmp_path):
    name = write(store)
    segment = store.write_segment(b"x", META.collection)
    store.touch("me")
    store.mark_used(META.collection)
    root = tmp_path / "store"
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert found == {
        "store.json",
        f"packs/{name}",
        f"index/{segment}",
        "open/me",
        f"used/{META.collection}",
    }
    assert re.fullmatch(META.collection + r"-[0-9a-f]{24}\.pack", name)
    assert re.fullmatch(META.collection + r"-[0-9a-f]{24}\.segment", segment)
    assert json.loads((root / "store.json").read_bytes()) == {"super_store": 1, "id": store.id}
    assert root.stat().st_mode & 0o777 == 0o700
    assert store.address == str(root.resolve())


def test_a_copied_store_can_be_read(store, tmp_path):
    name = write(store)
    shutil.copytree(store.address, tmp_path / "copy")
    copy = DirectoryStore.open(tmp_path / "copy", create=False)
    assert copy.id == store.id
    assert intact(copy, name, copy.packs()[name]) == intact(store, name, store.packs()[name])


@pytest.mark.parametrize("names", [(), ("catalogs",)], ids=["empty", "with a coordinator's state"])
def test_an_empty_directory_becomes_a_store_with_its_mode(tmp_path, names):
    place = tmp_path / "shared"
    place.mkdir()
    for name in names:
        (place / name).mkdir()
    place.chmod(0o775)
    store = DirectoryStore.open(place, create=True)
    write(store)
    assert place.stat().st_mode & 0o777 == 0o775


def test_a_store_must_be_a_directory(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreFormatError, match="is not a directory"):
        DirectoryStore.open(tmp_path / "file", create=True)
    with pytest.raises(StoreFormatError, match="file"):
        DirectoryStore.open(tmp_path / "file" / "below", create=True)
    with pytest.raises(StoreGoneError, match="gone does not exist"):
        DirectoryStore.open(tmp_path / "gone", create=False)


def test_another_users_private_store_is_refused(store, monkeypatch):
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    for create in (True, False):
        with pytest.raises(StoreRefusedError, match="is private to user"):
            DirectoryStore.open(store.address, create=create)
    Path(store.address).chmod(0o750)
    assert DirectoryStore.open(store.address, create=False).id == store.id


@pytest.mark.parametrize("folder", ["packs", "index", "open", "used", "tmp"])
def test_a_folder_that_is_a_link_is_not_followed(store, tmp_path, folder):
    name = write(store)
    segment = store.write_segment(b"x")
    store.touch("me")
    store.mark_used(META.collection)
    place, elsewhere = Path(store.address, folder), tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    held = sorted(elsewhere.iterdir())
    asked = {
        "packs": [store.packs, lambda: store.read(name, 0, 9), lambda: store.remove(name)],
        "index": [store.segments, lambda: store.remove_segment(segment), lambda: store.write_segment(b"y")],
        "open": [lambda: store.others("a", 0), lambda: store.forget("me"), lambda: store.touch("you")],
        "used": [store.used, lambda: store.mark_used("0" * 16)],
        "tmp": [lambda: store.sweep(1e12), lambda: write(store)],
    }[folder]
    for ask in asked:
        with pytest.raises(StoreFormatError, match=folder):
            ask()
    assert sorted(elsewhere.iterdir()) == held


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_pipe_is_not_read_as_a_pack(store, tmp_path, kind):
    name = write(store)
    place = Path(store.address, "packs", name).rename(tmp_path / "elsewhere")
    pack_path = Path(store.address, "packs", name)
    pack_path.symlink_to(place) if kind == "link" else os.mkfifo(pack_path)
    assert store.packs() == {}
    with pytest.raises(StoreFormatError, match=name):
        store.read(name, 0, 9)
    store.remove(name)
    assert place.exists()


def test_a_store_that_disappears_raises_until_it_is_back(store, tmp_path):
    name = write(store)
    pack_in_progress = store.begin_pack(META)
    fill(pack_in_progress, SAMPLES)
    Path(store.address).rename(tmp_path / "away")
    for ask in (store.packs, lambda: store.read(name, 0, 9), pack_in_progress.commit, lambda: write(store)):
        with pytest.raises(StoreGoneError):
            ask()
    (tmp_path / "store").write_bytes(b"a file in its place")
    for ask in (store.packs, lambda: store.read(name, 0, 9), lambda: write(store)):
        with pytest.raises(StoreFormatError):
            ask()
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(store.address)
    assert intact(store, name, store.packs()[name])


def test_a_store_can_be_pickled_and_keeps_no_file_open(store):
    name = write(store)
    files = len(list(Path("/proc/self/fd").iterdir()))
    again = pickle.loads(pickle.dumps(store))
    assert intact(again, name, again.packs()[name])
    assert len(list(Path("/proc/self/fd").iterdir())) == files


@pytest.mark.parametrize(("number", "error"), [(5, StoreFormatError), (110, StoreBusyError)])
def test_a_bad_block_is_permanent_and_other_disk_errors_are_temporary(store, monkeypatch, number, error):
    name, real = write(store), os.pread

    def pread(descriptor, length, offset):
        if offset >= 64:
            raise OSError(number, "no reading here")
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    if error is StoreFormatError:
        assert store.read_many(name, [(0, 4), (64, 80)]) == [b"SPAK", b""]
    with pytest.raises(error, match=name):
        store.read_index(name, store.packs()[name])


FULL = """
import resource, sys
from superdl.super_wire.store import DirectoryStore
from superdl.super_wire.errors import StoreFullError
from tests.super_wire.store.packing import META, fill, records
store = DirectoryStore.open(sys.argv[1], create=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for sizes in ([90_000, 90_000], [10] * 1500, [99_000]):
    pack = store.begin_pack(META)
    try:
        fill(pack, records(sizes))
        pack.commit()
    except StoreFullError as error:
        print("full", error)
try:
    store.write_segment(bytes(200_000))
except StoreFullError as error:
    print("full", error)
with store.begin_pack(META) as pack:
    fill(pack, records([10]))
    print(pack.commit())
"""


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_full_disk_raises_and_leaves_nothing(store):
    """While a record, the buffer, the index and a segment are written."""
    *full, name = run(FULL, store.address)
    assert [line.split()[0] for line in full] == ["full"] * 4, full
    assert list(store.packs()) == [name]
    assert store.segments() == list(Path(store.address, "tmp").iterdir()) == []


AS_NOBODY = """
import os, sys
from superdl.super_wire.store import DirectoryStore
from superdl.super_wire.errors import StoreError
from tests.super_wire.store.packing import META, intact
if os.geteuid() == 0:  # permissions do not apply to root
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for place in sys.argv[1:]:
    for create in (True, False):
        try:
            store = DirectoryStore.open(place, create=create)
            for name, size in store.packs().items():
                print("read", len(intact(store, name, size)))
            store.begin_pack(META)
        except StoreError as error:
            print(type(error).__name__, error)
"""


def test_a_read_only_share_can_be_read():
    with tempfile.TemporaryDirectory() as place:  # pytest's directory is private
        root = Path(place)
        store = DirectoryStore.open(root / "store", create=True)
        write(store)
        (root / "closed").mkdir(mode=0o000)
        for folder in (root, *(Path(store.address, name) for name in ("tmp", "packs", ""))):
            folder.chmod(0o555)
        told = run(AS_NOBODY, *(str(root / name) for name in ("store", "closed", "closed/below", "gone")))
        for folder in (root, Path(store.address, "tmp"), Path(store.address, "packs"), Path(store.address)):
            folder.chmod(0o755)
    read, refused = told[0:4:2], [line.split()[0] for line in (*told[1:4:2], *told[4:])]
    assert read == ["read 3"] * 2, told
    assert refused[:-1] == ["StoreRefusedError"] * 7, told
    assert refused[-1] == "StoreGoneError", told


KILLED = """
import json, os, signal, sys
from superdl.super_wire.store import DirectoryStore
from superdl.super_wire.errors import StoreGoneError
from tests.super_wire.store.packing import META, fill, intact, records
samples = records([9, 70_000, 1])

def live(place):
    store = DirectoryStore.open(place, create=True)
    with store.begin_pack(META) as pack:
        fill(pack, samples)
        pack.commit()
    store.write_segment(b"whole")
    store.mark_used(META.collection)
    store.touch("me")
    return store

def found(place):
    store = DirectoryStore.open(place, create=False)
    packs, segments, used = store.packs(), store.segments(), store.used()
    assert all(len(intact(store, name, size)) == 3 for name, size in packs.items())
    assert all(store.read_segment(name) == b"whole" for name in segments)
    assert used.keys() <= {META.collection}
    return store.id, (len(packs), len(segments), len(used), len(store.others("", 0)))

def killed_at(step):
    def trace(frame, event, _):
        nonlocal step
        if "super_wire/store" not in frame.f_code.co_filename:
            return None
        if event == "line":
            step -= 1
            if step < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return trace

step, seen, status = 0, [], -1
while status != 0:
    place = f"{sys.argv[1]}/{step}"
    child = os.fork()
    if child == 0:
        sys.settrace(killed_at(step))
        live(place)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    try:
        store_id, state = found(place)
    except StoreGoneError:
        store_id, state = None, None
    seen.append(state)
    store = live(place)  # the next writer finds the same store
    assert store_id in (None, store.id)
    assert found(place)[1][0] == (state or [0])[0] + 1
    store.sweep(1e12)
    assert os.listdir(place + "/tmp") == []
    step += int(sys.argv[2])
print(json.dumps(seen))
"""


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_step_leaves_only_complete_files(tmp_path, stride):
    """Kill it at the lines of the store's code, and check all that it has written."""
    seen = json.loads(run(KILLED, str(tmp_path), str(stride))[-1])
    assert len(seen) > 200 // stride
    assert seen[0] is None
    assert list(dict.fromkeys(tuple(state) for state in seen if state)) == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (1, 1, 0, 0),
        (1, 1, 1, 0),
        (1, 1, 1, 1),
    ]
