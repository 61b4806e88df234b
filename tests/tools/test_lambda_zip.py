"""Sees that the package is the same whoever builds it, and holds what the handler needs and nothing else."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import sys
import zipfile
from importlib import metadata

import pytest

from tools import lambda_zip
from tools.lambda_zip import (
    ROOT,
    BundleError,
    Platform,
    bundle_files,
    download,
    main,
    own_files,
    project_version,
    write_archive,
)
from tools.lock_requirements import LOCKS, ranges

REQUIREMENTS = ROOT / "infra/function/requirements.txt"
RUNTIME = ROOT / "infra/function/runtime-requirements.txt"
FILES = {"b/two.py": b"2\n" * 5000, "a.py": b"1\n", "b/__init__.py": b""}

# A fresh process handles a warm event and opens an S3 source, then tells what it has imported.
IMPORTS = """
import sys
from superdl.lambda_prefetch.handler import handler
handler({"super_warm": 1, "cache": ""}, None)
import superdl.lambda_prefetch.s3_source, superdl.lambda_prefetch.s3_lean_client, boto3
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def pinned(path):
    """Names and versions of a requirements file."""
    return dict(re.findall(r"(?m)^([\w.-]+)==(\S+) \\$", path.read_text()))


def wheel(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_the_bytes_depend_on_names_and_contents_alone(tmp_path):
    digests = set()
    for place, umask, names in (("x", 0o022, list(FILES)), ("y/z", 0o077, sorted(FILES))):
        before = os.umask(umask)
        try:
            digests.add(write_archive(tmp_path / place / "f.zip", {name: FILES[name] for name in names}))
        finally:
            os.umask(before)
    assert len(digests) == 1
    assert write_archive(tmp_path / "f.zip", {**FILES, "a.py": b"2\n"}) not in digests
    assert not list(tmp_path.rglob("*.unfinished"))
    with zipfile.ZipFile(tmp_path / "x" / "f.zip") as archive:
        entries = archive.infolist()
        assert {name: archive.read(name) for name in archive.namelist()} == FILES
    assert [entry.filename for entry in entries] == sorted(FILES)
    assert {stat.filemode(entry.external_attr >> 16) for entry in entries} == {"-rw-r--r--"}


def test_our_own_part_has_version_and_licence_and_no_grpc():
    files = own_files()
    assert {"superdl/lambda_prefetch/handler.py", "superdl/super_wire/request.py"} <= set(files)
    assert not [name for name in files if "pb2" in name or name.endswith((".proto", ".pyc"))]
    info = f"superdl-{project_version()}.dist-info"
    assert f"Version: {metadata.version('superdl')}\n".encode() in files[f"{info}/METADATA"]
    assert f"{info}/licenses/LICENSE" in files


def test_tests_stubs_scripts_and_records_of_wheels_are_left_out(tmp_path):
    kept = {
        "n/__init__.py": b"1",
        "n/core.so": b"2",
        "n.libs/libx.so.1": b"3",
        "n-1.dist-info/METADATA": b"4",
        "n-1.dist-info/licenses/LICENSE": b"5",
    }
    left_out = ["n/tests/test_a.py", "n/core.pyi", "n/include/a.h", "n/lib.a", "n-1.dist-info/RECORD"]
    left_out += ["n-1.data/scripts/n", "n-1.dist-info/INSTALLER"]
    moved = {"n-1.data/purelib/m.py": b"6"}
    path = wheel(tmp_path / "n-1-py3-none-any.whl", kept | moved | dict.fromkeys(left_out, b"x"))
    found = bundle_files([path])
    assert {name: found[name] for name in found.keys() - own_files().keys()} == kept | {"m.py": b"6"}


def test_steps_of_ones_own_are_deployed_with_it(tmp_path):
    package = tmp_path / "my_steps"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\n")
    (tmp_path / "single.py").write_text("y = 2\n")
    files = bundle_files([], modules=[package, tmp_path / "single.py"])
    assert (files["my_steps/__init__.py"], files["single.py"]) == (b"x = 1\n", b"y = 2\n")
    with pytest.raises(BundleError, match="neither a .py file nor a package"):
        bundle_files([], modules=[tmp_path / "missing"])


def test_a_file_that_would_be_there_twice_is_refused(tmp_path):
    clash = wheel(tmp_path / "c-1-py3-none-any.whl", {"superdl/__init__.py": b""})
    with pytest.raises(BundleError, match=r"c-1-py3-none-any.whl brings superdl/__init__.py, which is"):
        bundle_files([clash])


def test_without_an_index_the_reason_and_the_remedy_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main(["--arch", "arm64", "--out", str(tmp_path / "dist")]) == 1
    said = capsys.readouterr().err
    assert "pip cannot bring the wheels of requirements.txt for Python 3.13 on aarch64" in said
    assert "needs the network or an index" in said
    assert not (tmp_path / "dist").exists()


def test_a_wheel_of_other_bytes_is_refused(tmp_path, monkeypatch):
    name = "xxhash-4.1.0-cp313-cp313-manylinux_2_28_aarch64.whl"
    wheel(tmp_path / name, {"xxhash-4.1.0.dist-info/METADATA": b"Name: xxhash\nVersion: 4.1.0\n"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    only = tmp_path / "only.txt"
    only.write_text("xxhash==4.1.0 --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(BundleError, match="HASHES"):
        download([only], Platform("3.13", "aarch64"), tmp_path / "wheels")


def test_packages_of_ones_own_requirements_come_along(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    for name in ("pinned", "mine"):
        path = tmp_path / f"{name}-1.0-py3-none-any.whl"
        records = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        contents = {f"{name}-1.0.dist-info/{record}": text.encode() for record, text in records.items()}
        wheel(path, contents | {f"{name}.py": b"x = 1\n"})
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        (tmp_path / f"{name}.txt").write_text(f"{name}==1.0 --hash=sha256:{digest}\n")
    monkeypatch.setattr(lambda_zip, "REQUIREMENTS", tmp_path / "pinned.txt")
    made = tmp_path / "made"
    assert main(["--unpacked", str(made), "--requirements", str(tmp_path / "mine.txt")]) == 0
    assert (made / "pinned.py").exists()
    assert (made / "mine.py").exists()
    assert list(made.rglob("text_steps.py"))


def test_all_that_the_handler_imports_is_pinned_or_lambdas():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        cwd=ROOT,
        env={**os.environ, "SUPER_LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    owners = metadata.packages_distributions()
    imported = {owner for module in done.stdout.split() for owner in owners.get(module, ())}
    # botocore uses certifi where it happens to be. At its start, this environment imports setuptools, and
    # editables, which finds superdl.
    not_of_the_function = {"superdl", "certifi", "setuptools", "editables"}
    names = {name.lower().replace("_", "-") for name in imported} - not_of_the_function
    bundled = set(pinned(REQUIREMENTS))
    assert {"numpy", "pillow", "xxhash", "aws-lambda-powertools", "boto3"} <= names, "the scan is blind"
    assert names <= bundled | set(pinned(RUNTIME)), "run make lock, with what is missing in LOCKS"
    assert not bundled & {"boto3", "botocore", "s3transfer", "urllib3"}, "Lambda's runtime has them"


@pytest.mark.parametrize("file", LOCKS)
def test_pins_are_exact_hashed_and_what_pyproject_allows(file):
    text = (ROOT / file).read_text()
    allowed = ranges()
    for name, version in pinned(ROOT / file).items():
        for operator, bound in re.findall(r"(>=|<)(\d[\d.]*)", allowed.get(name, "")):
            below = _numbers(version) < _numbers(bound)
            assert below == (operator == "<"), f"{file}: {name}=={version}, but pyproject has {allowed[name]}"
    assert set(LOCKS[file][0]) <= set(pinned(ROOT / file))
    entries = [entry for entry in re.split(r"(?m)^(?=\w)", text) if not entry.startswith("#")]
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text, "addresses of an index"


def _numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)]
