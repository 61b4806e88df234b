"""Commands reject invalid options and malformed files with a short message that names the mistake."""

import json
import shlex

import pytest

from superdl.main import main
from superdl.super_wire.recipe import Recipe

SIZES = "--resize 256 --crop 224"
NOWHERE = "--coordinator unix:/nowhere/coordinator.sock"
DEEP, DIGITS = "[" * 20_000, "9" * 5000
LAUGHS = "[&a0 [x, x]" + "".join(f", &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)) + "]"
# A command, and what its refusal names.
WRONG = {
    "docter .": "did you mean doctor?",
    "run no-such-spec": "no-such-spec",
    "run digits --set loader.batchsize=1": "batch_size",
    "run digits --kind torch": "--kind",  # a key of two sections
    "run digits --epoch.s 3": "--epoch.s",
    "compare digits --repeats 0": "compare.repeats",
    "compare digits --warmup-epochs 3": "compare.warmup_epochs=3",
    "compare digits --quick --warmup-epochs 2": "compare.warmup_epochs=2",
    "compare --runs nowhere": "nowhere",
    "compare --runs nowhere --repeats 2": "--runs",
    "compare --runs nowhere --warmup-epochs -1": "--warmup-epochs",
    "report .": "report.json",
    "data make tiny-imagenet": "data/tiny-imagenet-200",
    "data make imagenette": "tiny-imagenet-like",
    "data make digits --samples 5": "--samples",
    "data make mnist-like --seed -1": "--seed",
    "data make mnist-like --samples 9": "10 classes",
    "coordinator --listen 0.0.0.0:50051": "TLS",
    f"warm /data {SIZES}": "--coordinator",
    f"warm /data {NOWHERE}": "--recipe",
    f"warm /data {NOWHERE} {SIZES} --recipe r.json": "--recipe",
    f"warm /data {NOWHERE} {SIZES} --max-usd 0": "--max-usd",
    f"warm /data {NOWHERE} {SIZES} --max-bytes 4": "--max-bytes",
    f"warm /data {NOWHERE} {SIZES} --patience nan": "--patience",
    f"warm /data {SIZES} --coordinator here": "--coordinator",
    f"warm /data {NOWHERE} --resize 0": "size",
    "doctor --recipe /no/such/file": "/no/such/file",
    "doctor --executor carrier-pigeon": "carrier-pigeon",
    "doctor ftp://bucket": "ftp://",
    "doctor . --key-list ftp://bucket/k.csv": "ftp://bucket/k.csv",
    "cost --images 200k": "--images",
    "worker": "SUPER_COORDINATOR",
    "cost --machine abacus": "abacus",
    "cost --set cache_node=tin": "tin",
    "index . -o list.txt": ".jsonl",
    "index . -o no/list.jsonl": "no/list.jsonl",
    "index . -o x.jsonl --fields mask=png": "image",
    "index . -o x.jsonl --fields image=jpg": "--fields",
    "index . -o x.jsonl --fields image=jpg,mask=*a*": "*a*",
    "index . -o x.jsonl --fields image=jpg,a.b=png": "a.b",
    "index . -o x.jsonl --fields image=jpg,mask=png,mask=gif": "mask",
    "index . -o x.jsonl --fields image=jpg,mask=png --image-field jpg": "--image-field",
}


def refused(capsys, words):
    """What a command writes on standard error, and nowhere else, when it refuses its input."""
    try:
        code = main(words)
    except SystemExit as ended:  # argparse's refusal
        code = ended.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    reason = said.err.partition(f"superdl {words[0]}: ")[2] or said.err.partition("error: ")[2]
    assert 0 < len(reason) < 700
    return reason


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """The working directory, of a user who has no coordinator."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)
    return tmp_path / "here"


@pytest.mark.parametrize("command", WRONG)
def test_wrong_use_is_named_and_nothing_is_written(command, empty, capsys):
    assert WRONG[command] in refused(capsys, shlex.split(command))
    assert not list(empty.iterdir())


def test_without_a_command_the_overview_is_shown(capsys):
    assert main([]) == 2
    assert "\nload:\n" in capsys.readouterr().err


YAML = {
    "laughs": (f"name: x\nseed: {LAUGHS}", "line 2"),
    "endless": ("name: x\nseed: &a [[*a]]", "line 2"),
    "deep": (f"name: x\ndata: {DEEP}", "line 2"),
    "digits": (f"name: x\ndata:\n  seed: {DIGITS}", "line 3"),
    "twice": ("name: x\ndata: {}\nname: y", "line 3"),
    "date": ("name: 2026-13-45", "line 1"),
    "key": ("{[1, 2]: 3}", "line 1"),
    "bytes": ("name: \x07", ""),
    "tag": ("name: !!python/object:os.system x", "line 1"),
}


@pytest.mark.parametrize("command", ["run", "simulate", "advise"])
@pytest.mark.parametrize("kind", YAML)
def test_a_spec_of_odd_yaml_is_refused_with_its_line(capsys, empty, command, kind):
    text, line = YAML[kind]
    file = empty / "spec.yaml"
    file.write_text(text)
    said = refused(capsys, [command, str(file)])
    assert str(file) in said
    assert line in said


def test_odd_yaml_in_an_option_is_refused(capsys):
    for value in (DEEP, DIGITS, "{a: 1, a: 2}", LAUGHS, "x" * 100_000):
        assert "data.seed" in refused(capsys, ["run", "digits", "--set", f"data.seed={value}"])


RANDOM = [{"op": "random_resized_crop", "size": 64}]
RECIPES = {
    "deep": (DEEP, "r.json"),
    "digits": (f'{{"a": {DIGITS}}}', "r.json"),
    "twice": ('{"a": 1,\n"a": 2}', "r.json"),
    "cut off": ("{", "r.json"),
    "empty": ('{"steps": []}', "pipeline"),
    "unknown step": ('[{"op": "fly"}]', "fly"),
    # Each epoch of a random recipe has its own samples: none can be prepared.
    "random": (json.dumps(RANDOM), "random"),
    "random, whole": (Recipe(RANDOM).json, "random"),
}


@pytest.mark.parametrize(("text", "named"), RECIPES.values(), ids=RECIPES)
def test_odd_and_random_recipes_are_refused(text, named, capsys, empty):
    (empty / "r.json").write_text(text)
    commands = [["warm", "/data", *NOWHERE.split()], ["doctor", "/data"]]
    for words in commands[: 1 if named == "random" else 2]:
        assert named in refused(capsys, [*words, "--recipe", "r.json"])


@pytest.mark.parametrize(
    "text", [f"a = {DEEP}", f"a = {DIGITS}", "a = 1\na = 2"], ids=["deep", "digits", "twice"]
)
def test_an_odd_price_table_is_refused(capsys, monkeypatch, empty, text):
    file = empty / "prices.toml"
    file.write_text(f"[lambda]\n{text}")
    monkeypatch.setenv("SUPER_PRICES", str(file))
    assert str(file) in refused(capsys, ["cost"])
