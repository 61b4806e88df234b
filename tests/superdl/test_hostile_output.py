"""Untrusted text in the output of commands never controls the terminal, and never fills pages."""

import contextlib
import io
import json
import re
import shutil
import tarfile
from dataclasses import replace

import pytest

from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import BadSampleError
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import SIDE
from tests.super_wire.store.packing import META, fill, records

HOSTILE = "a\x1b[2J\x1b]0;pwned\x07\x9b31m\u202e\u2066[red]b<img>"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def said(capsys, words):
    """All that a command writes; it is printable."""
    capsys.readouterr()
    with contextlib.suppress(SystemExit):  # argparse refuses
        main(list(words))
    out = "".join(capsys.readouterr())
    assert out
    assert not UNSAFE.search(out), ascii(out)
    assert max(map(len, out.split("\n"))) < 8000
    return out


@pytest.fixture
def folder(images, tmp_path):
    """A set of images below a hostile name, a class and a file of such a name, which is broken."""
    root = tmp_path / HOSTILE
    shutil.copytree(images, root)
    (root / f"class{HOSTILE}").mkdir()
    (root / f"class{HOSTILE}" / f"{HOSTILE}.jpg").write_bytes(b"no JPEG")
    return root


@pytest.mark.parametrize("action", ["ls", "verify", "prune --bytes 0 --yes"])
def test_a_planted_pack(capsys, tmp_path, action):
    store = DirectoryStore.open(tmp_path / "store", create=True)
    recipe = json.dumps({"steps": [{"op": HOSTILE}]})
    meta = replace(META, bucket=HOSTILE, recipe=recipe, fingerprint=HOSTILE)
    with store.begin_pack(meta) as pack:
        fill(pack, records([100]))
        pack.commit()
    name, *options = action.split()
    said(capsys, ["store", name, str(tmp_path / "store"), *options])


FILE = "FILE"
CASES = [
    ["run", FILE],
    ["run", "digits", "--set", f"{HOSTILE}=1"],
    ["run", "digits", "--set", HOSTILE],
    *(["compare", *words] for words in ([FILE], ["--runs", FILE])),
    *([command, FILE] for command in ("simulate", "advise", "evaluate", "report")),
    *(["data", *words] for words in (["import", FILE], ["make", HOSTILE])),
    *(["demo", folder] for folder in (FILE, HOSTILE)),
    *(["cost", *words] for words in (["--machine", HOSTILE], ["--set", f"{HOSTILE}=1"])),
    ["index", FILE, "-o", "/nowhere/x.jsonl"],
    *(["warm", FILE, *words] for words in (["--recipe", FILE], ["--coordinator", HOSTILE])),
    ["doctor", FILE, "--recipe", FILE],
    ["store", "ls", FILE],
    ["coordinator", "--listen", HOSTILE],
    *([*command, "--coordinator", HOSTILE] for command in (["worker"], ["stats"], ["top", "--once"])),
]


@pytest.mark.parametrize("words", CASES, ids=lambda words: f"{words[0]}-{CASES.index(words)}")
def test_hostile_arguments_and_files(capsys, tmp_path, words):
    file = tmp_path / f"{HOSTILE}.tar"
    file.write_text(f"name: '{HOSTILE}'\n{HOSTILE}: {HOSTILE}\n")
    said(capsys, [str(file) if word == FILE else word for word in words])


def test_a_price_table_with_hostile_names(capsys, monkeypatch, tmp_path):
    name = json.dumps(HOSTILE)
    machine = f"[machine.{name}]\nhour = 1\nvcpus = 4\nmemory_gib = 8\ngpus = 1\ngpu = {name}\n"
    (tmp_path / "prices.toml").write_text(f"[about]\nregion = {name}\n{machine}")
    monkeypatch.setenv("SUPER_PRICES", str(tmp_path / "prices.toml"))
    assert "[red]" in said(capsys, ["cost", "--set", f"machine={name}"])


def test_the_table_has_every_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")  # narrower than any command's text
    overview = said(capsys, ["--help"]).partition("\nload:\n")[2]
    names = set(re.findall(r"^    (\w+) ", overview, re.MULTILINE))
    assert names - {"bench"} == {words[0] for words in CASES}


def test_an_index_of_hostile_members(capsys, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in (f"{HOSTILE}/1.jpg", f"{HOSTILE}/1.cls", f"{HOSTILE}2/2.jpg"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    said(capsys, ["index", str(tmp_path / "x.tar"), "-o", str(tmp_path / "x.jsonl")])


def test_a_coordinator_with_a_hostile_source(capsys, stack, folder):
    dataset = SuperDataset(f"file://{folder}", RECIPE, on_bad_sample="raise")
    with SuperSampler(dataset, batch_size=64, shuffle=True, coordinator=stack.address) as sampler:
        refs = list(sampler)
        with pytest.raises(BadSampleError) as caught:
            [dataset[ref] for ref in refs]
        assert not UNSAFE.search(str(caught.value))
        assert len(str(caught.value)) < 6000
        batches = ["stats", *(f"--batch={ref.batch_id.hex()}" for ref in refs)]
        for words in (["stats"], ["stats", "--history"], batches, ["top", "--once"]):
            assert "pwned" in said(capsys, [*words, "--coordinator", stack.address])
    said(capsys, ["warm", f"file://{folder}", "--coordinator", stack.address, "--resize", "8"])
    said(capsys, ["doctor", f"file://{folder}", "--coordinator", stack.address])
    assert "\x1b" not in stack.log.read_text()
