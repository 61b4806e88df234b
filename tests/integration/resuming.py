"""What tests of stopping and resuming share: a run made anew from nothing but a source and a state."""

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
    """A dataset, a sampler and a loader of one training run; ``mix`` makes two recipes of the dataset, which
    are mixed until this says.

    A run that goes on with another has none of its objects, only its state, which went through JSON.
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
        """What a script saves that has got so many batches of this iteration; ``None``: between epochs."""
        if self.kind != "plain":
            return dict(self.loader.state_dict())
        return self.sampler.state_dict(**({} if consumed is None else {"batches_consumed": consumed}))


@contextmanager
def run_of(stack, images, state=None, *, kind="plain", workers=0, options=None, **arguments):
    """A run, from ``state`` on if there is one: the sampler's of a plain DataLoader, else the loader's.

    ``kind`` of the loader is ``plain``, ``stateful`` (torchdata's) or ``threads`` (SuperLoader). ``options``
    are more arguments of the loader, ``arguments`` of the sampler.
    """
    run = Run(stack, images, kind=kind, workers=workers, options=options or {}, **arguments)
    try:
        if state is not None:
            (run.sampler if kind == "plain" else run.loader).load_state_dict(json.loads(json.dumps(state)))
        yield run
    finally:
        del run.loader  # its workers end
        run.sampler.close()
