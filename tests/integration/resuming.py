"""Shared by tests of stopping and resuming: a run rebuilt from a source and a state alone."""

import json
from contextlib import contextmanager

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader, SuperMix
from tests.fixtures.images import SIDE
from tests.integration.delivery import RECIPE

BATCH_SIZE = 16
BATCHES = 10  # of the 150 images


class Run:
    """A dataset, sampler and loader of one training run. ``mix`` is the stopping strategy of a mix of two
    recipes.

    A resumed run shares no objects with its predecessor, only the state, passed through JSON.
    """

    def __init__(self, stack, images, *, kind, workers, options, recipe=RECIPE, mix="", **arguments):
        self.kind = kind
        self.dataset = SuperDataset(images.as_uri(), recipe)
        if mix:
            other = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE + 8, crop=SIDE))
            self.dataset = SuperMix({self.dataset: 0.75, other: 0.25}, mix)
        arguments = {
            "batch_size": BATCH_SIZE,
            "shuffle": True,
            "seed": 1,
            "coordinator": stack.address,
        } | arguments
        self.sampler = SuperSampler(self.dataset, **arguments)
        if kind == "threads":
            self.loader = SuperLoader(self.dataset, self.sampler, **options)
        else:
            self.loader = {"plain": DataLoader, "stateful": StatefulDataLoader}[kind](
                self.dataset,
                sampler=self.sampler,
                batch_size=None,
                num_workers=workers,
                timeout=60 if workers else 0,
                **options,
            )

    def state_dict(self, consumed):
        """The state a script saves after this many batches of the iteration; ``None``: between epochs."""
        if self.kind != "plain":
            return dict(self.loader.state_dict())
        return self.sampler.state_dict(**({} if consumed is None else {"batches_consumed": consumed}))


@contextmanager
def run_of(stack, images, state=None, *, kind="plain", workers=0, options=None, **arguments):
    """A run, resumed from ``state`` if given: the sampler's for a plain DataLoader, else the loader's.

    ``kind`` of the loader is ``plain``, ``stateful`` (torchdata's) or ``threads`` (SuperLoader). ``options``
    go to the loader, ``arguments`` to the sampler.
    """
    run = Run(stack, images, kind=kind, workers=workers, options=options or {}, **arguments)
    try:
        if state is not None:
            (run.sampler if kind == "plain" else run.loader).load_state_dict(json.loads(json.dumps(state)))
        yield run
    finally:
        del run.loader  # stops its workers
        run.sampler.close()
