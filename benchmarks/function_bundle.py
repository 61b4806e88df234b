"""What the function weighs and how long it takes to start: the zipped size of its bundle, and cold starts.

The bundle is what the handler imports in a fresh process, found there and zipped here; boto3 and botocore are
left out, since Lambda's runtime has them. A cold start is a fresh process from its first instruction to its
answer to a warm event, or to a request for one object.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path

from benchmarks.errors import BenchmarkError

__all__ = ["bundle_sizes", "cold_start_s"]

_ROOT = Path(__file__).resolve().parents[1]
_OURS = ("lambda_prefetch", "super_wire")
_IN_LAMBDAS_RUNTIME = frozenset(
    {"boto3", "botocore", "s3transfer", "urllib3", "jmespath", "python-dateutil", "six"}
)
_TIME_LIMIT_S = 60.0

_IMPORT = """
import sys
from superdl.lambda_prefetch.handler import handler
handler({"super_warm": 1, "cache": ""}, None)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""

_COLD = """
import json, sys
from superdl.lambda_prefetch.handler import handler
class Context:
    function_name = aws_request_id = "bench"
    def get_remaining_time_in_millis(self):
        return 60000
handler({"super_warm": 1, "cache": ""}, None)
event = json.loads(sys.argv[1])
if event:
    print(json.dumps(handler(event, Context())["outcomes"]))
"""


def bundle_sizes() -> dict[str, int]:
    """Zipped bytes of each distribution in the function's bundle, by name; our own packages are ``super``."""
    modules = set(_run(_IMPORT, {}).split("\n")[-2].split())
    owners = metadata.packages_distributions()
    names = {owner for module in modules for owner in owners.get(module, ())} - _IN_LAMBDAS_RUNTIME
    sizes = {}
    for name in sorted(names):
        found = metadata.distribution(name)
        files = [(Path(str(file.locate())), str(file)) for file in found.files or ()]
        if any(module in _OURS for module in modules & {part.partition("/")[0] for _, part in files}):
            continue
        size = _zipped(files)
        if size and name.lower() not in {"superdl", "setuptools", "pip"}:
            sizes[name] = size
    ours = [file for package in _OURS for file in (_ROOT / package).rglob("*.py")]
    sizes["super"] = _zipped([(file, str(file.relative_to(_ROOT))) for file in ours])
    return sizes


def cold_start_s(event: dict[str, object] | None, environment: dict[str, str], rounds: int = 5) -> float:
    """Least seconds of a fresh process that answers a warm event, and then ``event`` if there is one."""
    times = []
    for _ in range(rounds):
        begun_s = time.perf_counter()
        said = _run(_COLD, environment, json.dumps(event))
        times.append(time.perf_counter() - begun_s)
        if event is not None and said.split("\n")[-2] != '["cached"]':
            raise BenchmarkError(f"the cold function said {said}")
    return min(times)


def _run(program: str, environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=_ROOT,
        env={**os.environ, "SUPER_LOG_LEVEL": "ERROR", "POWERTOOLS_METRICS_DISABLED": "true", **environment},
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"the function did not start:\n{done.stderr.strip()}")
    return done.stdout


def _zipped(files: list[tuple[Path, str]]) -> int:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as bundle:
        for place, name in files:
            if place.is_file() and place.suffix != ".pyc" and not name.startswith(".."):
                bundle.write(place, name)
    return len(content.getvalue()) if bundle.filelist else 0
