"""Commands in images, compose.yaml, chart and template exist and accept their arguments."""

import argparse
import ast
import json
import re
import runpy
import shlex
import sys
from importlib import import_module

import pytest
import yaml

from superdl.coordinator.server.settings import load_settings
from tools.lambda_zip import ROOT

DOCKER = ROOT / "infra" / "docker"
CHART = ROOT / "infra" / "helm" / "super"
IMAGES = {path.name.partition(".")[0]: path.read_text("utf-8") for path in DOCKER.glob("*.Dockerfile")}
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SHIPPED = [*DOCKER.iterdir(), *CHART.rglob("*.yaml"), *CHART.rglob("*.tpl"), ROOT / "infra/template.yaml"]
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in SHIPPED}
JOB = yaml.safe_load(TEXTS["training-job.yaml"])


class Parsed(Exception):  # noqa: N818 # no failure
    """Ends a program when it has parsed its words; its argument is what the parser made of them."""


def of_image(name, instruction):
    """Read the words of an instruction in a Dockerfile; an indented ``CMD`` is the health check's."""
    line = re.search(rf"(?m)^{instruction} (\[.*\])$", IMAGES[name])
    return json.loads(line[1]) if line else []


def shipped():
    """Every command that is not another project's, by where it is written."""
    commands = {f"{name}.Dockerfile": of_image(name, "ENTRYPOINT") + of_image(name, "CMD") for name in IMAGES}
    commands["coordinator.Dockerfile: health"] = of_image("coordinator", " +CMD")
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            image = service["image"].removeprefix("super-")
            entrypoint = service.get("entrypoint") or of_image(image, "ENTRYPOINT")
            commands[f"compose.yaml: {name}"] = entrypoint + service["command"]
    for name in ("coordinator.yaml", "workers.yaml", "template.yaml"):
        words = [yaml.safe_load(text) for text in re.findall(r"(?i)command: (\[.*python.*\])", TEXTS[name])]
        words += [shlex.split(text) for text in re.findall(r"exec (python .*)", TEXTS[name])]
        commands |= {f"{name}: {number}": command for number, command in enumerate(words)}
    (trainer,) = JOB["spec"]["template"]["spec"]["containers"]
    commands["training-job.yaml"] = of_image("trainer", "ENTRYPOINT") + trainer["args"]
    return commands


def parsed(command, monkeypatch):
    """What the program's own parser makes of its words."""

    def parse(parser, words=None, namespace=None):
        parsed, unknown = parser.parse_known_args(words, namespace)
        assert not unknown
        raise Parsed(parsed)

    module, *words = command
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(Parsed) as ended:
        runpy.run_module(module, run_name="__main__")
    return vars(ended.value.args[0])


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # it is imported by other tests
@pytest.mark.parametrize("where", shipped())
def test_a_command_is_there_and_takes_its_words(where, monkeypatch):
    match [word for word in shipped()[where] if word not in {"CMD", "-P"}]:
        case ["python", "-c", program]:
            imports = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.ImportFrom)]
            assert [
                getattr(import_module(str(node.module)), name.name) for node in imports for name in node.names
            ]
        case ["python", "-m", "awslambdaric", handler]:
            module, _, name = handler.rpartition(".")
            assert callable(getattr(import_module(module), name))
        case ["python", "-m", "superdl.coordinator", *words]:
            load_settings(parsed(["superdl.coordinator", *words], monkeypatch), {})
        case ["python", "-m", module, *words]:
            assert parsed([module, *words], monkeypatch)
        case ["superdl", *words]:
            assert parsed(["superdl.main", *words], monkeypatch)["command"] == words[0]
        case other:
            pytest.fail(f"unknown kind of command: {other}")


def test_all_commands_are_seen():
    # Of images, with a health check; compose; the chart, coordinator and workers; its job; the template.
    assert len(shipped()) == 4 + 3 + 2 + 1 + 1, "find the new command, or leave out the old one"
