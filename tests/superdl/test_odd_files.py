"""Files and values that users write, of odd form: each ends in a typed error with file and place."""

import pytest

from superdl.experiments.schema import load_yaml
from superdl.main import main
from superdl.super_wire.errors import ConfigError

DEEP, DIGITS = "[" * 20_000, "9" * 5000
LAUGHS = "[&a0 [x, x]" + "".join(f", &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)) + "]"
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
JSON = {"deep": DEEP, "digits": f'{{"a": {DIGITS}}}', "twice": '{"a": 1,\n"a": 2}'}
TOML = {
    "deep": f"[lambda]\na = {DEEP}",
    "digits": f"[lambda]\na = {DIGITS}",
    "twice": "[workers]\na = 1\na = 2",
}


def refused(capsys, words):
    """What a command writes that refuses its input; it is short."""
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err) < 700
    return said.err


@pytest.mark.parametrize("command", ["run", "simulate", "advise"])
@pytest.mark.parametrize("kind", YAML)
def test_a_spec_of_odd_yaml_is_refused_with_its_line(capsys, tmp_path, command, kind):
    text, line = YAML[kind]
    file = tmp_path / "spec.yaml"
    file.write_text(text)
    said = refused(capsys, [command, str(file)])
    assert str(file) in said
    assert line in said


@pytest.mark.parametrize("kind", ["deep", "digits", "twice", "laughs", "long"])
def test_an_odd_value_is_refused(capsys, kind):
    others = {"twice": "{a: 1, a: 2}", "laughs": LAUGHS, "long": "x" * 100_000}
    value = {"deep": DEEP, "digits": DIGITS, **others}[kind]
    assert "data.seed" in refused(capsys, ["run", "digits", "--set", f"data.seed={value}"])


@pytest.mark.parametrize("kind", JSON)
@pytest.mark.parametrize("words", [["warm", "/x", "--recipe"], ["doctor", "/x", "--recipe"]])
def test_odd_json_is_refused(capsys, tmp_path, words, kind):
    file = tmp_path / "x.json"
    file.write_text(JSON[kind])
    assert str(file) in refused(capsys, [*words, str(file)])


@pytest.mark.parametrize("kind", TOML)
def test_an_odd_price_table_is_refused(capsys, monkeypatch, tmp_path, kind):
    file = tmp_path / "prices.toml"
    file.write_text(TOML[kind])
    monkeypatch.setenv("SUPER_PRICES", str(file))
    assert str(file) in refused(capsys, ["cost"])


def test_what_is_good_is_read_as_before():
    text = "base: &base {a: 1, b: [1, 2]}\nmore: {<<: *base, a: 2}\nnone:\n1: x\n'1': y"
    more = {"a": 2, "b": [1, 2]}
    expected = {"base": {"a": 1, "b": [1, 2]}, "more": more, "none": None, 1: "x", "1": "y"}
    assert load_yaml(text, "x") == expected
    with pytest.raises(ConfigError, match="twice"):
        load_yaml("a: {b: 1, b: 1}", "x")
