"""The function's package is reproducible, and contains only what it should."""

import hashlib
import os
import stat
import zipfile
from importlib import metadata
from pathlib import PurePosixPath

import pytest

from tools import lambda_zip
from tools.lambda_zip import ROOT, main, project_version

INFO = f"superdl-{project_version()}.dist-info"


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """Pins a wheel of the test's own, and what it holds, in place of what the function needs."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(lambda_zip, "REQUIREMENTS", tmp_path / "n.txt")
    return lambda files: pin(tmp_path, "n", files)


def pin(folder, name, files):
    """Make a wheel, and a requirements file that pins it."""
    records = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
        for member, content in records.items():
            archive.writestr(f"{name}-1.0.dist-info/{member}", content)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / f"{name}.txt").write_text(f"{name}==1.0 --hash=sha256:{digest}\n")
    return folder / f"{name}.txt"


def unpacked(folder, *words):
    """The files of the package below ``folder``, by name."""
    assert main(["--unpacked", str(folder), *map(str, words)]) == 0
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_holds_what_is_imported_of_us_and_of_wheels(lock, tmp_path):
    kept = ["n/__init__.py", "n/core.so", "n.libs/libx.so.1", "n-1.0.dist-info/licenses/LICENSE"]
    left_out = ["n/tests/test_a.py", "n/core.pyi", "n/include/a.h", "n/lib.a", "n-1.0.data/scripts/n"]
    lock(dict.fromkeys([*kept, *left_out, "n-1.0.data/purelib/m.py"], b""))
    made = unpacked(tmp_path / "made")
    of_wheels = {*kept, "m.py", "n-1.0.dist-info/METADATA", "n-1.0.dist-info/WHEEL"}
    ours = {
        path.relative_to(ROOT).as_posix()
        for folder in ("lambda_prefetch", "super_wire")
        for path in (ROOT / "superdl" / folder).rglob("*")
        # Code and the decoder's reference images, without the gRPC stubs.
        if path.suffix in {".py", ".jpg", ".png"} and "_pb2" not in path.name
    }
    info = {f"{INFO}/METADATA", f"{INFO}/licenses/LICENSE"}
    assert made == of_wheels | ours | info | {"superdl/__init__.py"}
    text = (tmp_path / "made" / INFO / "METADATA").read_text()
    assert f"Version: {metadata.version('superdl')}\n" in text


def test_the_same_package_is_built_again_whatever_the_umask(lock, tmp_path):
    lock({"n.py": b"2\n" * 5000})
    for place, umask in (("one", 0o022), ("two", 0o077)):
        before = os.umask(umask)
        try:
            assert main(["--arch", "arm64", "--out", str(tmp_path / place)]) == 0
        finally:
            os.umask(before)
    one, two = tmp_path.glob("*/super-prefetch-arm64.zip")
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        entries = archive.infolist()
    paths = [PurePosixPath(entry.filename) for entry in entries]
    assert paths == sorted(paths)
    assert {stat.filemode(entry.external_attr >> 16) for entry in entries} == {"-rw-r--r--"}


def test_steps_and_packages_of_ones_own_are_deployed_with_it(lock, tmp_path, capsys):
    package = tmp_path / "my_steps"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\n")
    (package / "coordinator.proto").touch()
    (tmp_path / "single.py").write_text("y = 2\n")
    lock({"n.py": b""})
    words = ["--module", package, "--module", tmp_path / "single.py"]
    words += ["--requirements", pin(tmp_path, "mine", {"mine.py": b""})]
    made = unpacked(tmp_path / "made", *words)
    assert {f"my_steps/{name}" for name in ("__init__.py", "coordinator.proto")} <= made
    assert {"single.py", "mine.py", "n.py"} <= made
    assert main(["--unpacked", str(tmp_path / "more"), "--module", str(tmp_path / "absent")]) == 1
    assert str(tmp_path / "absent") in capsys.readouterr().err
    assert main(["--unpacked", str(tmp_path / "made")]) == 1
    assert str(tmp_path / "made") in capsys.readouterr().err


def test_what_cannot_be_built_is_refused_and_named(lock, tmp_path, capsys):
    lock({"superdl/__init__.py": b""})
    assert main(["--unpacked", str(tmp_path / "one")]) == 1
    assert "superdl/__init__.py" in capsys.readouterr().err  # it would be there twice
    lock({"n.py": b""}).write_text("n==1.0 --hash=sha256:" + "0" * 64 + "\n")
    assert main(["--unpacked", str(tmp_path / "two")]) == 1
    assert "HASHES" in capsys.readouterr().err
    (tmp_path / "n-1.0-py3-none-any.whl").unlink()
    assert main(["--arch", "arm64", "--out", str(tmp_path / "dist")]) == 1
    assert "n.txt for Python 3.13 on aarch64" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()
