"""A run checks cache, permissions, source and function first, and fails within seconds."""

import pytest

from superdl.doctor import preflight
from superdl.main import main
from superdl.super_wire.errors import BadSampleError, CacheError, CacheUnreachableError
from superdl.super_wire.recipe import Recipe
from tests.fixtures.faulty_function import FUNCTION, Script
from tests.fixtures.stack import Stack

RECIPE = Recipe.image(resize=32, crop=32)


def tried(stack, source, **more):
    lines = []
    preflight(source.as_uri(), RECIPE, coordinator=stack.address, notify=lines.append, **more)
    return lines


@pytest.fixture
def served():
    with Stack() as stack:
        yield stack


def test_nothing_is_said_where_all_is_well_and_what_is_not_ends_the_run(served, images, tmp_path):
    assert tried(served, images) == []
    (tmp_path / "set/a").mkdir(parents=True)
    (tmp_path / "set/a/1.jpg").write_bytes(b"no image")
    with pytest.raises(BadSampleError):
        tried(served, tmp_path / "set")
    assert tried(served, tmp_path / "set", sample=False) == []
    with served.valkey.client() as client:
        client.execute_command("ACL SETUSER default -xadd")
        with pytest.raises(CacheError, match="xadd"):
            tried(served, images)
    served.valkey.kill()
    with pytest.raises(CacheUnreachableError, match=served.valkey.unix_url):
        tried(served, images)


def test_a_function_that_does_not_answer_is_told_and_waited_for(images, tmp_path):
    script = Script(tmp_path)
    for call in range(1, 9):
        script.at_call(call, "hang")
    with Stack(arguments=("--function", FUNCTION), environment=script.environment) as stack:
        assert len(tried(stack, images)) == 1


@pytest.mark.slow
def test_a_run_ends_before_its_first_epoch(images, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.jpg").write_bytes(b"no image")
    assert main(["run", "digits", f"--set=data.train={tmp_path}/set", "--no-page"]) == 1
    told = capsys.readouterr()
    assert "BadSampleError" in told.err
    assert "step 1" not in told.out
