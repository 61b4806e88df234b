"""The sections of a spec: frozen dataclasses whose fields say what they may hold.

What a whole spec is, and how it is read, is in `experiments.spec`; how keys are checked in
`experiments.schema`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from superdl.experiments.data.made_sets import MADE_SETS, PUBLISHED_SETS
from superdl.experiments.schema import (
    choice,
    mappings,
    number,
    optional_mappings,
    optional_text,
    optional_whole,
    whole,
)
from superdl.super_wire.errors import ConfigError

__all__ = [
    "DATA_KINDS",
    "DATA_SETS",
    "LOADER_KINDS",
    "MODEL_NAMES",
    "PRECISIONS",
    "STRATEGIES",
    "SUPER_KINDS",
    "CompareSpec",
    "CostSpec",
    "DataSpec",
    "LoaderSpec",
    "ModelSpec",
    "OptimizerSpec",
    "RecipeSpec",
    "TrainingSpec",
]

DATA_SETS = ("digits", *PUBLISHED_SETS, *MADE_SETS)
DATA_KINDS = ("auto", "directory", "url", *DATA_SETS)
LOADER_KINDS = ("super", "super-threads", "torch", "webdataset", "mds", "litdata")
SUPER_KINDS = ("super", "super-threads")
MODEL_NAMES = ("small_cnn", "resnet18", "resnet50", "vit_b_32", "vit_mini")
PRECISIONS = ("auto", "float32", "bfloat16")
STRATEGIES = ("auto", "single", "ddp", "fsdp")


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Where the images are. With kind `auto`: the digits, unless ``train`` names a source.

    ``directory`` is where a set is, or is written; null: a folder of its name below ``data/``. ``samples``
    are the training images of a set that is drawn; null: those that are there, else the whole set.
    """

    kind: str = choice("auto", DATA_KINDS)
    directory: str | None = optional_text()
    samples: int | None = optional_whole(at_least=1)
    train: str | None = optional_text()
    val: str | None = optional_text()
    train_key_list: str | None = optional_text()
    val_key_list: str | None = optional_text()

    def __post_init__(self) -> None:
        """Refuse contradictions, which no single key shows."""
        if self.kind in DATA_SETS and (self.train or self.val):
            raise ConfigError(
                f"data.kind {self.kind} has its own images; leave data.train out, or set data.kind=auto"
            )
        if self.samples is not None and self.kind not in (*PUBLISHED_SETS, *MADE_SETS):
            raise ConfigError(
                f"data.samples is for the sets that are drawn ({', '.join(MADE_SETS)} and what they stand in "
                f"for), not for data.kind {self.kind}"
            )
        if self.kind in ("directory", "url") and not self.train:
            raise ConfigError(f"data.kind {self.kind} needs data.train, the source of the training images")
        if self.val and not self.train:
            raise ConfigError("data.val is given without data.train; name both, or neither for the digits")
        for split, source, key_list in (
            ("train", self.train, self.train_key_list),
            ("val", self.val, self.val_key_list),
        ):
            if key_list and not source:
                raise ConfigError(f"data.{split}_key_list is given without data.{split}, the source it lists")


@dataclass(frozen=True, slots=True)
class RecipeSpec:
    """What is done to an image before the cache: shorter side to ``resize`` pixels, centre ``crop``.

    ``steps`` takes their place: a recipe's steps as `super_dataset.Recipe` takes them, the random ones seeded
    by ``augment_seed``.
    """

    resize: int = whole(64, at_least=1)
    crop: int = whole(64, at_least=1)
    steps: tuple[dict[str, Any], ...] | None = optional_mappings()
    augment_seed: int = whole(0, at_least=0)

    def __post_init__(self) -> None:
        """Refuse a crop that would have to invent pixels."""
        if self.crop > self.resize:
            raise ConfigError(
                f"recipe.crop ({self.crop}) must not be larger than recipe.resize ({self.resize})"
            )


@dataclass(frozen=True, slots=True)
class LoaderSpec:
    """How batches come; ``read_timeout`` is in seconds, ``coordinator`` host:port or null (default)."""

    kind: str = choice("super", LOADER_KINDS)
    batch_size: int = whole(32, at_least=1)
    num_workers: int = whole(2, at_least=0)
    read_timeout: float = number(120.0, above=0.0)
    coordinator: str | None = optional_text()

    @property
    def runs_functions(self) -> bool:
        """Whether it is SUPER, in one form or the other."""
        return self.kind in SUPER_KINDS


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model; its number of classes follows from the data.

    ``weights`` are pretrained ones, of a local path or a URL; a classifier for other classes is left out.
    """

    name: str = choice("small_cnn", MODEL_NAMES)
    weights: str | None = optional_text()


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """AdamW under a one-cycle schedule whose highest learning rate is ``lr``."""

    lr: float = number(0.005, above=0.0)
    weight_decay: float = number(0.01, at_least=0.0)


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """How the loop goes.

    ``strategy`` auto: DDP where there are several ranks. ``precision`` auto: bfloat16 where it helps.
    ``steps_per_epoch``: an epoch has so many training steps, and the loader begins again whenever it ends;
    null: one pass. ``print_every`` so many steps their mean time is printed. Validation after each
    ``validate_every``-th epoch, 0: never. A checkpoint after each ``checkpoint_every``-th epoch, 0: none, and
    in an epoch after each ``checkpoint_steps``-th step. ``resume`` names a checkpoint or a run's directory,
    ``best_to`` a place (s3://bucket/prefix or a directory) that gets the best checkpoint at the end.
    ``threads`` are torch's on a CPU; null: its own choice.
    """

    strategy: str = choice("auto", STRATEGIES)
    precision: str = choice("auto", PRECISIONS)
    steps_per_epoch: int | None = optional_whole(at_least=1)
    print_every: int | None = optional_whole(at_least=1)
    validate_every: int = whole(1, at_least=0)
    checkpoint_every: int = whole(0, at_least=0)
    checkpoint_steps: int | None = optional_whole(at_least=1)
    resume: str | None = optional_text()
    best_to: str | None = optional_text()
    threads: int | None = optional_whole(at_least=1)


@dataclass(frozen=True, slots=True)
class CostSpec:
    """What is paid for by the hour, by names of the price table; null: not in the bill.

    ``machine`` trains, ``data_machine`` runs functions beside it, ``cache_node`` is of a managed cache.
    """

    machine: str | None = optional_text()
    machines: int = whole(1, at_least=1)
    data_machine: str | None = optional_text()
    data_machines: int = whole(1, at_least=1)
    cache_node: str | None = optional_text()
    cache_nodes: int = whole(1, at_least=1)


@dataclass(frozen=True, slots=True)
class CompareSpec:
    """What ``superdl compare`` runs: each arm ``repeats`` times, interleaved.

    ``arms`` are values by dotted keys, by the arm's name, such as ``{torch: {loader.kind: torch}}``. The
    first ``warmup_epochs`` of each run are left out of the figures of later epochs.
    """

    repeats: int = whole(3, at_least=1)
    warmup_epochs: int = whole(1, at_least=0)
    arms: dict[str, dict[str, Any]] = mappings()
