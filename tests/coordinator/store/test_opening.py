"""The choice of a store: the configured one, none, or the user's own on a local disk with space."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from superdl.coordinator.store.opening import StoreChoice, chosen_store, default_store
from superdl.super_wire.errors import ConfigError, StoreFormatError
from superdl.super_wire.store import DirectoryStore, open_store

MOUNTS = [("home", "nfs4"), ("home/with space", "ext4"), ("data", "fuse.s3fs"), ("ntfs", "fuseblk")]
MOUNTS += [("over", "nfs"), ("over", "xfs")]


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("here", ""),
        ("home/.cache", "nfs4"),
        ("home/with space/cache", ""),
        ("homely", ""),
        ("data/x", "fuse.s3fs"),
        ("ntfs/x", ""),
        ("over/x", ""),
    ],
)
def test_the_default_store_is_never_on_a_network_filesystem(tmp_path, monkeypatch, directory, kind):
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4")]
    mounts += [SimpleNamespace(mountpoint=str(tmp_path / point), fstype=kind) for point, kind in MOUNTS]
    (tmp_path / directory).mkdir(parents=True)
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)
    chosen = chosen_store("auto", {"XDG_CACHE_HOME": str(tmp_path / directory)})
    assert (bool(chosen.address), kind in chosen.reason, bool(chosen.reason)) == (not kind, True, bool(kind))
    assert chosen_store(str(tmp_path / directory), {}).address


def test_a_setting_is_an_address_or_none(tmp_path):
    assert chosen_store("", {}) == chosen_store("none", {}) == chosen_store("None", {}) == StoreChoice("")
    (tmp_path / "link").symlink_to(tmp_path)
    assert chosen_store(str(tmp_path / "link" / "store"), {}).address == str(tmp_path.resolve() / "store")
    assert chosen_store("s3://bucket/some/", {}).address == "s3://bucket/some"
    with pytest.raises(ConfigError, match="gs://bucket"):
        chosen_store("gs://bucket/x", {})


def test_the_default_store_needs_two_gigabytes(tmp_path, monkeypatch):
    own = {"XDG_CACHE_HOME": str(tmp_path / "not" / "yet")}
    assert chosen_store("auto", own) == StoreChoice(
        str(tmp_path.resolve() / "not/yet/superdl/store"), by_default=True
    )
    assert "codec" in chosen_store("auto", {"XDG_CACHE_HOME": "/caf\udce9"}).reason
    crowded = shutil.disk_usage(tmp_path)._replace(free=2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: crowded)
    assert default_store(own) == StoreChoice("", f"{tmp_path} has only 1.0 GiB free")


_READ_ONLY = """
mount -t tmpfs -o size=1m none "$1" && {steps} && mount -o remount,ro "$1" && exec "$2" -c '
import asyncio, os, sys
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.store.opening import StoreChoice, default_store
from superdl.coordinator.store.keeper import StoreKeeper
print(default_store({{"XDG_CACHE_HOME": sys.argv[1]}}).reason)
async def look():
    keeper = StoreKeeper(StoreChoice(sys.argv[1]), DatasetRegistry(max_age_s=1.0), 0, read_only=False)
    await keeper.open()
    print(keeper.unwritten)
    await keeper.close()
asyncio.run(look())' "$1"
"""


def test_a_read_only_filesystem_is_reported_as_such_and_not_as_full(tmp_path):
    """Use a small read-only filesystem in its own mount namespace, as small as an image's."""
    made = f'cp -r "{DirectoryStore.open(tmp_path / "made", create=True).address}/." "$1"'
    place = tmp_path / "place"
    place.mkdir()
    command = ["unshare", "-rm", "sh", "-c", _READ_ONLY.format(steps=made), "sh", str(place), sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare: " in ended.stderr or "mount: " in ended.stderr:
        pytest.skip(f"no mount namespaces here: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    reason, unwritten = ended.stdout.splitlines()
    assert reason == f"{place} is on a read-only filesystem"
    assert unwritten == "it is read-only"


def test_a_directory_of_other_files_is_refused(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"mine")
    with pytest.raises(StoreFormatError, match=str(tmp_path)):
        open_store(str(tmp_path), create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]
    made = open_store(str(tmp_path / "store"), create=True)
    assert open_store(str(tmp_path / "store"), create=False, read_only=True).id == made.id
