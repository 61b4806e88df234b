"""The commands for experiments: run, compare, report, evaluate, advise, simulate, demo and bench.

``--help`` does not import the experiments, except for ``run``, whose options include the keys of a spec.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.options import above_zero, add_overrides
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.experiments import Spec
    from superdl.experiments.comparing.comparison import Comparison
    from superdl.experiments.console import Console
    from superdl.experiments.reporting.run_files import RunFiles


def _add_quick(parser: argparse.ArgumentParser) -> None:
    text = "run the spec's small variant: its section quick or, by default, two epochs of 20 steps"
    parser.add_argument("--quick", action="store_true", help=text)


def _add_json(parser: argparse.ArgumentParser, text: str = "print JSON instead of text") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``superdl run SPEC``: train from a spec and report."""
    add = parser.add_argument
    add("spec", help="a YAML file, or a built-in spec (digits)")
    add_overrides(parser, "data.train=s3://bucket/train")
    _add_keys(parser)
    _add_quick(parser)
    add("--no-page", action="store_true", help="do not write report.html (superdl report writes it later)")
    _add_json(parser)


def _add_keys(parser: argparse.ArgumentParser) -> None:
    """Add each key of a spec as an option: ``--epochs 25`` means ``--set epochs=25``."""
    # Services pass hyper-parameters in this form.
    from superdl.experiments.spec import spec_keys

    keys = spec_keys()
    ends = [key.rpartition(".")[2] for key in keys]
    for key, end in zip(keys, ends, strict=True):
        # A key that only one section has also works without the section: --batch-size 64.
        alone = end not in keys and ends.count(end) == 1
        names = dict.fromkeys([key, *([end, end.replace("_", "-")] if alone else [])])
        parser.add_argument(
            *(f"--{name}" for name in names),
            action="append",
            dest="overrides",
            default=argparse.SUPPRESS,
            type=f"{key}={{}}".format,
            help=argparse.SUPPRESS,
        )


def spec_of(arguments: argparse.Namespace) -> Spec:
    """Return the spec that the arguments define. Raises ``ConfigError`` if it is invalid."""
    from superdl.experiments import load_spec

    return load_spec(arguments.spec, arguments.overrides, quick=arguments.quick)


def _run(arguments: argparse.Namespace) -> int:
    from superdl.experiments.console import Console
    from superdl.experiments.output import tell_json
    from superdl.experiments.run import run
    from superdl.experiments.training.ranks import process_rank

    spec = spec_of(arguments)
    console = Console(stderr=True) if arguments.json else None
    report = run(spec, console=console, page=not arguments.no_page)
    tell_json(report.to_mapping(), shown=arguments.json and process_rank().rank == 0)
    return 0


def _disable_reuse() -> None:
    """Disable the store and saved state by default, so that no run reuses another's decoded samples."""
    for name in ("SUPER_STORE", "SUPER_STATE"):
        os.environ.setdefault(name, "none")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("spec", nargs="?", help="a YAML file, or a built-in spec (digits)")
    group.add_argument(
        "--runs",
        nargs="+",
        metavar="[NAME=]DIR",
        help="compare the existing runs in these directories; runs with the same name count as repeats",
    )
    add_overrides(parser, "loader.batch_size=256, in all arms")
    _add_quick(parser)
    add(
        "--arms",
        metavar="A,B",
        help="run only these: names from compare.arms, or kinds of loaders (default: all arms, or super and "
        "torch if there are none)",
    )
    add("--repeats", type=int, metavar="N", help="run each arm N times (compare.repeats)")
    add("--warmup-epochs", type=int, metavar="N", help="exclude the first N epochs of a run from its rates")
    _add_json(parser)


def _compare(arguments: argparse.Namespace) -> int:
    from superdl.experiments.comparing.running import compare
    from superdl.experiments.console import Console
    from superdl.experiments.output import tell_json
    from superdl.experiments.spec import load_spec

    _disable_reuse()
    console = Console(stderr=arguments.json)
    if arguments.runs:
        report = _compare_runs(arguments, console)
    else:
        named = {key: getattr(arguments, key) for key in ("repeats", "warmup_epochs")}
        own = [f"compare.{key}={value}" for key, value in named.items() if value is not None]
        spec = load_spec(arguments.spec, [*arguments.overrides, *own], quick=arguments.quick)
        arms = None if arguments.arms is None else [name.strip() for name in arguments.arms.split(",")]
        report = compare(spec, arms=arms, console=console)
    tell_json(report.to_mapping(), shown=arguments.json)
    return 0 if report.status == "finished" else 1


def _compare_runs(arguments: argparse.Namespace, console: Console) -> Comparison:
    from superdl.experiments.comparing.comparison import compare_runs
    from superdl.experiments.comparing.running import publish
    from superdl.experiments.output import new_directory

    if any([arguments.overrides, arguments.quick, arguments.arms, arguments.repeats]):
        raise ConfigError(
            "--runs compares existing runs, so it can only be combined with --warmup-epochs and --json"
        )
    if arguments.warmup_epochs is not None and arguments.warmup_epochs < 0:
        raise ConfigError(f"--warmup-epochs must be a non-negative integer, not {arguments.warmup_epochs}")
    report = compare_runs(arguments.runs, warmup_epochs=arguments.warmup_epochs)
    report = replace(report, directory=str(new_directory("runs", f"{report.name}-compare")))
    publish(report, console)
    return report


def _add_report(parser: argparse.ArgumentParser) -> None:
    words = "output directory of superdl run or compare, complete or not"
    parser.add_argument("directory", metavar="DIRECTORY", help=words)
    _add_json(parser, "print the page's path and the run's name and status as JSON")


def _report(arguments: argparse.Namespace) -> int:
    from superdl.experiments.output import tell_json

    result = _write_page(Path(arguments.directory))
    tell_json(result, shown=arguments.json)
    if not arguments.json:
        sys.stdout.write(f"{result['page']}\n")
    return 0


def _write_page(directory: Path) -> dict[str, Any]:
    from superdl.experiments.comparing.comparison import is_comparison, read_comparison
    from superdl.experiments.comparing.show import comparison_page
    from superdl.experiments.output import write_whole
    from superdl.experiments.reporting.page import PAGE_NAME, plots_missing
    from superdl.experiments.reporting.run_files import read_run
    from superdl.experiments.reporting.run_page import run_page

    measured: Comparison | RunFiles
    if is_comparison(directory):
        measured = read_comparison(directory)
        page = comparison_page(measured)
    else:
        measured = read_run(directory)
        page = run_page(measured)
    path = directory / PAGE_NAME
    try:
        write_whole(page, path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; copy the run to a writable directory"
        ) from error
    if (missing := plots_missing()) is not None:
        sys.stderr.write(f"superdl report: the page has no plots: {missing}\n")
    return {"page": str(path), "name": measured.name, "status": measured.status}


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the directory of a run with checkpoints")
    parser.add_argument(
        "--checkpoint",
        choices=("best", "last"),
        help="checkpoint to evaluate (default: the best if it exists, else the last)",
    )
    add_overrides(parser, "data.val=s3://bucket/test")
    _add_json(parser)


def _evaluate(arguments: argparse.Namespace) -> int:
    from superdl.experiments.console import Console
    from superdl.experiments.output import tell_json
    from superdl.experiments.run.evaluation import evaluate, print_evaluation
    from superdl.experiments.training.ranks import process_rank

    console = Console(stderr=arguments.json)
    evaluation = evaluate(
        Path(arguments.run), arguments.overrides, checkpoint=arguments.checkpoint, console=console
    )
    leads = process_rank().rank == 0
    if leads and not arguments.json:
        print_evaluation(evaluation, console)
    tell_json(asdict(evaluation), shown=arguments.json and leads)
    return 0


def _add_advise(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", help="the spec to probe for ten seconds, as for superdl run")
    add_overrides(parser, "loader.num_workers=8")
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        help="number of ranks: GPUs of this host, or hosts without a GPU (default: 1)",
    )
    _add_quick(parser)
    _add_json(parser)


def _advise(arguments: argparse.Namespace) -> int:
    from superdl.experiments.console import Console, say
    from superdl.experiments.output import tell_json
    from superdl.experiments.simulator.advice import advise, print_advice

    console = Console(stderr=arguments.json)
    if arguments.ranks < 1:
        raise ConfigError(f"--ranks must be at least 1, not {arguments.ranks}")
    advice = advise(spec_of(arguments), lambda line: say(console, line), arguments.ranks)
    print_advice(advice, console)
    tell_json(advice.to_mapping(), shown=arguments.json)
    return 0


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", help="a YAML file, or a built-in spec: digits, imagenet or many_jobs")
    add_overrides(parser, "cache.budget_gb=64")
    _add_json(parser)


def _simulate(arguments: argparse.Namespace) -> int:
    from superdl.experiments.console import Console
    from superdl.experiments.output import tell_json
    from superdl.experiments.simulator.predict import predict, prediction_mapping, print_prediction
    from superdl.experiments.simulator.spec import load_spec

    spec = load_spec(arguments.spec, arguments.overrides)
    prediction = predict(spec)
    print_prediction(spec, prediction, Console(stderr=arguments.json))
    tell_json(prediction_mapping(spec, prediction), shown=arguments.json)
    return 0


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="FOLDER",
        help="your images, with a folder for each class (default: 1,500 images generated in data/demo)",
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="N",
        help="number of images to read (default: at most 1,500, fewer if decoding is slow)",
    )
    _add_json(parser)


def _demo(arguments: argparse.Namespace) -> int:
    from superdl.experiments.console import Console
    from superdl.experiments.loaders.demo import demo
    from superdl.experiments.output import tell_json

    if arguments.images is not None:
        above_zero("--images", arguments.images)
    result = demo(arguments.directory, arguments.images, Console(stderr=arguments.json, highlight=False))
    tell_json(result, shown=arguments.json)
    return 0


def _add_bench(parser: argparse.ArgumentParser) -> None:
    """Add the benchmarks as subcommands. Without a checkout, accept any arguments."""
    benchmarks = _benchmarks()
    if benchmarks is None:
        parser.add_argument("benchmark", nargs=argparse.REMAINDER, help="needs a checkout of SUPER")
    else:
        benchmarks.add_arguments(parser)


def _bench(arguments: argparse.Namespace) -> int:
    benchmarks = _benchmarks()
    if benchmarks is None:
        raise ConfigError(
            "the benchmarks are not in the wheel and need a checkout of SUPER: clone its repository, "
            "run 'make .venv' there, and use .venv/bin/superdl bench"
        )
    _disable_reuse()
    return int(benchmarks.run(arguments))


def _benchmarks() -> Any:
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file() and str(root) not in sys.path:
        sys.path.append(str(root))  # an editable install exposes only superdl
    try:
        import benchmarks
    except ModuleNotFoundError as error:
        if error.name != "benchmarks":
            raise
        return None
    return benchmarks


# Functions that add a command's options, and run it and return the exit code.
COMMANDS = {
    "run": (add_run, _run),
    "compare": (_add_compare, _compare),
    "report": (_add_report, _report),
    "evaluate": (_add_evaluate, _evaluate),
    "advise": (_add_advise, _advise),
    "simulate": (_add_simulate, _simulate),
    "demo": (_add_demo, _demo),
    "bench": (_add_bench, _bench),
}
