"""Shared by the framework tests: the code of docs/frameworks.md, and identification of batches."""

import hashlib
import json
from itertools import chain

from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE
from tests.integration.delivery import pixels_of
from tests.integration.torchrun import assert_none_is_left, run_to_its_end, torchrun
from tests.pages.markdown import ROOT, blocks_of

PAGE = ROOT / "docs/frameworks.md"
GLOBAL_BATCH = 16
BATCHES = 10  # of the 150 images
EPOCHS = 3
SEED = 0

Batch = list[str]


class Stopped(Exception):  # noqa: N818  # it ends a training, and is no error
    """The test stopped the training here."""


def code_of(section, source, *, ranks=1):
    """Run a section's code with this source, small images and small batches. Return its namespace."""
    code = "\n".join(block.text for block in blocks_of(PAGE, section)).replace(
        "s3://my-bucket/imagenet/val", source
    )
    for written, here in (
        ("s3://my-bucket/imagenet/train", source),
        ("resize=256, crop=224", f"resize={SIDE}, crop={SIDE}"),
        ("batch_size=256", f"batch_size={GLOBAL_BATCH // ranks}"),
    ):
        assert written in code, written
        code = code.replace(written, here)
    names = {"__name__": section}
    exec(compile(code, f"{PAGE} ({section})", "exec"), names)  # noqa: S102  # our own page
    return names


def named(images, labels):
    """Identify a batch by the digests of its images and its labels."""
    pairs = zip(pixels_of(images), labels.tolist(), strict=True)
    return [f"{hashlib.sha256(pixels).hexdigest()[:16]} {label}" for pixels, label in pairs]


def write_down(out, rank, batch):
    """Append a batch to the record of a rank."""
    with (out / f"rank{rank}.jsonl").open("a") as file:
        file.write(json.dumps(batch) + "\n")


def together(out, ranks):
    """Join the batches of all ranks into global batches. Assert that their counts and lengths are equal."""
    of_ranks = [
        [json.loads(line) for line in (out / f"rank{rank}.jsonl").read_text().splitlines()]
        for rank in range(ranks)
    ]
    batches = list(zip(*of_ranks, strict=True))
    assert all(len({len(part) for part in parts}) == 1 for parts in batches)
    return [list(chain.from_iterable(parts)) for parts in batches]


def plain_loop(source, coordinator, epochs=EPOCHS):
    """The batches of each epoch in a plain single-process loop."""
    dataset = SuperDataset(source, Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(
        dataset, batch_size=GLOBAL_BATCH, shuffle=True, seed=SEED, coordinator=coordinator
    ) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        return [[named(images, labels) for images, labels in loader] for _ in range(epochs)]


def two_ranks(program, temporary, images, out, **how):
    """Run a program as two ranks, by torchrun and the embedded default. Return their stderr on failure."""
    out.mkdir(exist_ok=True)
    given = json.dumps({"source": images.as_uri(), "out": str(out), "ranks": 2} | how)
    errors = run_to_its_end([*torchrun(2), program, given], temporary)
    assert_none_is_left(temporary)
    return errors
