"""Check a page's command without running it.

``superdl`` and the launcher parse it by their own parsers, and a spec is loaded with what the command sets.
"""

import re
import shlex
import subprocess

from infra.launcher import run_of
from superdl.experiments.comparing.arms import arms_of
from superdl.experiments.spec import load_spec
from superdl.main import command_parser
from tests.pages.markdown import ROOT

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*=.*")
_OTHERS = {"export", "git", "pip", "python3"}  # a page may show them unchecked


def check(command):
    """Parse a command as it would be; the specs that it runs.

    Raises:
        ConfigError: an option or a spec is wrong.
        SystemExit: the same, told by argparse.
        AssertionError: nobody here knows such a command.
    """
    words = shlex.split(command, comments=True)
    while words and _VARIABLE.fullmatch(words[0]):
        words = words[1:]
    if words[:2] == ["taskset", "-c"]:
        words = words[3:]
    return list(_specs(words))


def _specs(words):
    if words[0] == "superdl":
        yield from _superdl(words[1:])
    elif words[:2] == ["torchrun", "--standalone"]:
        yield from _module(words[words.index("-m") :])
    elif words[:3] == ["python", "-m", "infra.local_hosts"]:
        yield from _module(words[words.index("--") + 1 :])  # its options are tried by running it
    elif words[:3] == ["python", "-m", "infra.launcher"]:
        hosts = [word.replace("$(hostname)", _first_host(words)) for word in words[3:]]
        run_of(hosts, {"SM_NUM_GPUS": "1"})
        yield from _module(words[words.index("--") + 1 :])
    elif words[0] == "make":
        dry = ["make", "--dry-run", *words[1:]]
        subprocess.run(dry, cwd=ROOT, capture_output=True, check=True)
    else:
        assert words[0] in _OTHERS, f"nobody checks this command: {shlex.join(words)}"


def _first_host(words):
    return words[words.index("--training-hosts") + 1].partition(",")[0]


def _module(words):
    assert list(words[:2]) == ["-m", "superdl.main"], words
    yield from _superdl(words[2:])


def _superdl(words):
    given = command_parser(words[0]).parse_args(list(words))
    if given.command not in ("run", "compare") or getattr(given, "spec", None) is None:
        return
    spec = load_spec(given.spec, given.overrides, quick=given.quick)
    if given.command == "compare":
        chosen = given.arms and given.arms.split(",")
        assert len(arms_of(spec, chosen)) > 1
    yield given.spec
