"""``SuperDataset``: a torch dataset indexed by planned batches."""

from __future__ import annotations

import math
import os
import weakref
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, get_args

from torch.utils.data import Dataset

from superdl.super_dataset.listed_source import (
    ListedSource,
    checked_index,
    how_to_use,
    normalise_url,
    sampler_for,
)
from superdl.super_dataset.memory.batch_memory import memory_here
from superdl.super_dataset.per_sample import PerSample, for_batches
from superdl.super_dataset.pictures import checked_columns, in_columns, only_sample, rows_of
from superdl.super_dataset.reading.bad_samples import LEAVES_OUT, BadSamples, BatchLeftOut
from superdl.super_dataset.reading.batch import bad_sample_error
from superdl.super_dataset.reading.delivery import (
    LastGood,
    OnBadSample,
    Padding,
    batch_info,
    delivered_order,
    label_tensor,
    sample_tensors,
)
from superdl.super_dataset.reading.reader import BatchReader, ReadSettings, Verify
from superdl.super_dataset.splitting import unknown
from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.ids import checked_naming
from superdl.super_wire.labels import checked_classes
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from superdl.super_dataset.reading.bad_samples import BadSample
    from superdl.super_dataset.reading.batch import Batch
    from superdl.super_dataset.reading.delivery import BatchInfo, SampleTensors
    from superdl.super_wire.batch_ref import DatasetBinding
    from superdl.super_wire.ids import Versions

_PING_TIMEOUT_S = 5.0
_HANDLED = {"skip": "skipped", "replace": "replaced"}
_RETURNS_ITEM = "{} cannot be combined with a transform of whole batches, which returns the item itself"


class SuperDataset(ListedSource, Dataset[Any]):
    """Decoded samples of a source, read in batches from the cache or the store.

    Each item is a batch, ``(images, labels)``. Images are uint8 of shape (batch, channels, height, width),
    channels_last. Other samples are stacked as they are, or form a list of tensors if they differ in
    dtype or shape. Labels are a tensor of shape (batch,), with dtype int64 for class folders and the key
    list's dtype otherwise. Array labels have the shape (batch, ...), or form a list of tensors if their
    lengths vary. Labels with named fields form a dict of such values. If samples have fields
    (``Recipe.fields``), or a custom step returns named arrays, the images are replaced by a dict of tensors
    or lists of tensors. With ``return_info``, the third value is a :class:`BatchInfo`.

    Length, ``classes``, ``class_to_idx``, ``samples`` and ``targets`` are known once a sampler exists.
    Accessing them earlier starts the services that a sampler would start, and waits for the listing.

    A dataset is pickled without its connections. Each thread of each process opens its own when needed, with
    the credentials in that process's ``SUPER_CACHE_USERNAME`` and ``SUPER_CACHE_PASSWORD``.

    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32), return_info=True)
    >>> sampler = SuperSampler(dataset, batch_size=4, shuffle=False)
    >>> images, labels, info = next(iter(DataLoader(dataset, sampler=sampler, batch_size=None)))
    >>> images.shape, images.dtype, labels
    (torch.Size([4, 3, 32, 32]), torch.uint8, tensor([0, 0, 1, 1]))
    >>> len(dataset), dataset.class_to_idx, dataset.targets.tolist()
    (8, {'ant': 0, 'bee': 1, 'cat': 2, 'dog': 3}, [0, 0, 1, 1, 2, 2, 3, 3])
    >>> dataset.samples[-1]
    ('...images/dog/...', 3)

    Args:
        source: ``s3://bucket/prefix``, ``file:///directory`` or a path.
        recipe: steps that functions apply to every sample. The default decodes images and keeps their size.
        key_list: URL or path of a CSV, JSONL or Parquet file with key and label columns. By default, labels
            come from class folders.
        classes: class names in the order of their labels, such as ``classes=train.classes`` for a validation
            set. Folders and labels with other names are an error, and classes without samples trigger a
            warning. The default is the sorted names found in the source, so a missing class shifts the
            labels of the classes after it.
        alias: a name that replaces the source's location in sample ids, so that a store recognises the
            source after it has been moved or copied.
        versions: how sample ids distinguish versions of a file: by ``"times"`` (size and modification time,
            the default) or by ``"digests"`` of the contents. For digests, the coordinator reads every file
            when it lists the source.
        transform: applied after the cache, where batches are read. With one required argument, as in
            torchvision, timm and albumentations, it is called on every sample, as an RGB PIL image (or, for
            albumentations, a uint8 array of shape (height, width, 3)). :class:`PerSample` makes this
            explicit and has more options. Results are batched as in torch's ``default_collate``. A sample of
            several arrays is passed as a dict, and the result may also be a dict. With three arguments, the
            last of which may have defaults, it is called as ``transform(images, labels, info)`` on every
            batch, and its result is the item. It must be picklable if workers are spawned.
        columns: keys of a dict to return for each batch, such as ``{"pixel_values": "images", "labels":
            "labels"}`` or ``["image", "mask"]``. The parts are ``"images"`` or array names, ``"labels"``, and
            ``"labels.NAME"`` if labels have named fields. With ``return_info``, each item is (dict, info).
        collate_fn: as in a DataLoader, called with a list of the batch's samples, each like ``dataset[i]``
            without info. Its result is the item. With ``return_info``, each item is (result, info).
        on_bad_sample: policy for samples that cannot be produced: ``"raise"``, ``"skip"`` (a shorter batch)
            or ``"replace"`` (with the batch's next good sample). The latter two warn once about each bad
            sample; see :attr:`bad_samples`. A batch without good samples is filled with up to eight samples
            of the process's last good batch, flagged as padding, so that all ranks take the same number of
            steps. With ``"skip"`` and one rank, a ``SuperLoader`` skips such a batch.
        padding: policy for repeated samples that fill the last batches of several ranks: ``"keep"``, or
            ``"skip"`` for validation, where each sample should count once. With ``"skip"``, batches are
            shorter, but a batch of only padding keeps one sample, flagged in its ``BatchInfo``.
        return_info: whether items contain a :class:`BatchInfo`.
        read_timeout: time limit for reading one batch, in seconds.
        verify: which payloads to hash. ``"all"`` hashes every payload. ``"auto"`` does the same over
            plain TCP. Over a Unix socket or TLS, it only hashes those that the process reads for the first
            time, and one in 64 of the others.
        in_flight_bytes: limit on replies that a reading thread has requested but not received. At least one
            record is always in flight. Lower the limit if many readers share a cache with little room for
            output buffers.
        coordinator: default coordinator for samplers, also used before a sampler exists.

    Raises:
        ConfigError: an argument is invalid.

    Length, classes, samples and targets raise the errors of ``SuperSampler``. A copy in another process that
    has neither these values nor a coordinator's address raises ``UsageError`` instead.
    """

    def __init__(  # noqa: PLR0913 # each controls a different aspect of reading
        self,
        source: str | os.PathLike[str],
        recipe: Recipe | None = None,
        *,
        key_list: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | None = None,
        alias: str | None = None,
        versions: Versions | None = None,
        transform: Callable[[Any], Any] | Callable[[Any, Any, BatchInfo], Any] | None = None,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        on_bad_sample: OnBadSample = "raise",
        padding: Padding = "keep",
        return_info: bool = False,
        read_timeout: float = 120.0,
        verify: Verify = "auto",
        in_flight_bytes: int = 16 * 2**20,
        coordinator: str | None = None,
    ) -> None:
        super().__init__(coordinator)
        recipe = Recipe([]) if recipe is None else recipe
        if not isinstance(recipe, Recipe):
            msg = f"recipe must be a Recipe, such as Recipe.image(resize=256, crop=224), not {recipe!r}"
            raise ConfigError(msg)
        _check_reading(read_timeout, in_flight_bytes)
        _check_choices(on_bad_sample=on_bad_sample, padding=padding, verify=verify)
        self.source = normalise_url(source, name="source")  # default basis of sample ids
        self.naming = checked_naming(alias, versions)
        self.given_classes = () if classes is None else checked_classes(classes)
        self.recipe = recipe
        self.key_list = None if key_list is None else normalise_url(key_list, name="key_list")
        # Whether to read records from the store's packs if this machine can access them, rather than from
        # the cache. Change it before creating a sampler.
        self.reads_straight = True
        self._transform = for_batches(transform)
        self._columns = None if columns is None else checked_columns(columns)
        if collate_fn is not None and not callable(collate_fn):
            raise ConfigError(f"collate_fn must be callable with a list of samples, not {collate_fn!r}")
        self._collate_fn = collate_fn
        for name, given in (("columns", columns), ("collate_fn", collate_fn)):
            if given is not None and not isinstance(self._transform, PerSample | None):
                raise ConfigError(_RETURNS_ITEM.format(name))
        self._on_bad_sample: OnBadSample = on_bad_sample
        self._padding: Padding = padding
        self._return_info = bool(return_info)
        shape = recipe.output_shape
        settings = ReadSettings(
            read_timeout_s=float(read_timeout),
            verify=verify,
            in_flight_bytes=in_flight_bytes,
            record_bytes=None if shape is None else HEADER_BYTES + math.prod(shape),
            stop_at_bad=on_bad_sample == "raise",
        )
        self._reader = BatchReader(settings)
        self._bad_samples: BadSamples | None = None

    def __repr__(self) -> str:
        known = self._binding
        size = "not listed yet" if known is None else f"{known.size} samples"
        classes = f" of {len(known.classes)} classes" if known is not None and known.classes else ""
        return f"<SuperDataset {self.source}: {size}{classes}, {self.recipe!r}>"

    @property
    def may_use_rng(self) -> str:
        """Return the name of user code that may use a global random number generator, or an empty string."""
        transform = self._transform
        drawing = transform.may_use_rng if isinstance(transform, PerSample) else unknown(transform)
        return drawing or unknown(self._collate_fn)

    @property
    def bad_samples(self) -> tuple[BadSample, ...]:
        """Return the samples that were skipped or replaced so far, with key, reason, handling and count.

        The list covers this process and its DataLoader workers, that is, one rank.
        """
        return () if self._bad_samples is None else self._bad_samples.listed()

    def name_bad_samples(self) -> None:
        """Warn about bad samples found by workers since the last call. Called for each batch."""
        if self._bad_samples is not None:
            self._bad_samples.collect()

    def bind(self, binding: DatasetBinding) -> None:
        """Store the coordinator's listing; see :class:`ListedSource`."""
        super().bind(binding)
        known = self._bad_samples
        # A fork needs its own list, since the inherited one belongs to its parent.
        if self._on_bad_sample != "raise" and (known is None or known.pid != os.getpid()):
            self._bad_samples = BadSamples(self.source)
            weakref.finalize(self, self._bad_samples.close)

    def ping_cache(self, cache: str) -> None:
        """Ping the cache with this process's credentials. Called by ``SuperSampler``.

        Raises:
            CacheUnreachableError: the cache did not respond within 5 s.
            CacheError: the cache rejected the connection, perhaps because of the credentials.
        """
        self._reader.ping(cache, timeout_s=_PING_TIMEOUT_S)

    def __getitem__(self, ref: BatchRef | SupportsIndex) -> Any:
        """Return a batch: ``(images, labels)``, and the info if configured, or the result of ``transform``
        or ``collate_fn``.

        For an integer, which may be negative, return one sample: ``(image, label)`` after the transform, as
        in the first epoch of a sampler with seed 0. Each such call opens a separate job and takes a few
        milliseconds, so use it for inspection, not for training.

        Raises:
            UsageError: ``ref`` is neither an integer nor a ``BatchRef`` of this dataset; a DataLoader uses
                a different sampler; or this is a copy in another process without a coordinator's address.
            IndexError: the index is out of range.
            BadSampleError: a sample cannot be produced, and ``on_bad_sample`` is ``"raise"`` or the sample
                was requested by index; or neither this batch nor any batch that this process read before
                has a good sample.
            ReadTimeoutError: samples were still missing after ``read_timeout`` seconds.
            CacheUnreachableError: the cache was unreachable for that long.
            CacheError: the cache rejected a request.
        """
        if isinstance(ref, BatchRef):
            return self.collated(ref, self._collate_fn)
        index = checked_index(ref, self)
        with sampler_for(self._queryable(f"sample {index}"), index) as sampler:
            (planned,) = sampler
            images, labels, info = self._read(planned, "raise")
        if self._transform is not None and not isinstance(self._transform, PerSample):
            return only_sample(self._transform(images, labels, info))
        (sample,) = self._each(images, labels, info)
        return self._informed(sample, info)

    def collated(self, ref: BatchRef, collate_fn: Callable[[list[Any]], Any] | None) -> Any:
        """Return a batch built with ``collate_fn``. Raises the same errors as ``__getitem__``."""
        images, labels, info = self._read(ref, self._on_bad_sample)
        if collate_fn is not None:
            batch = collate_fn(self._each(images, labels, info))
            return (batch, info) if self._return_info else batch
        if isinstance(self._transform, PerSample):
            images, labels = self._transform(images, labels, info)
        elif self._transform is not None:
            return self._transform(images, labels, info)
        return self._informed(self._item(images, labels), info)

    def _each(self, images: Any, labels: Any, info: Any) -> list[Any]:
        """Return the transformed samples of a batch, with their labels."""
        transform = self._transform
        if transform is not None and not isinstance(transform, PerSample):
            raise UsageError(_RETURNS_ITEM.format("collate_fn"))
        samples = rows_of(images) if transform is None else transform.samples(images, info)
        return [*map(self._item, samples, rows_of(labels, numbers=True))]

    def _item(self, images: Any, labels: Any) -> Any:
        return (images, labels) if self._columns is None else in_columns(self._columns, images, labels)

    def _informed(self, item: Any, info: Any) -> Any:
        if not self._return_info:
            return item
        return (item, info) if isinstance(item, dict) else (*item, info)

    def _read(self, ref: BatchRef, on_bad_sample: OnBadSample) -> tuple[Any, Any, Any]:
        """Return the untransformed images and labels, and the info if it is needed."""
        if self._binding is None or self._binding.dataset_id != ref.dataset_id:
            own_id = "not bound yet" if self._binding is None else f"dataset {self._binding.dataset_id.hex()}"
            raise UsageError(
                f"this BatchRef belongs to dataset {ref.dataset_id.hex()}, but the SuperDataset of "
                f"{self.source} is {own_id}. Pass the DataLoader the dataset that its sampler was created for"
            )
        read = self._reader.read(ref, memory_here())
        order = delivered_order(ref, read.bad, on_bad_sample, self._padding)
        needs_info = self._transform is not None or self._return_info or self._bad_samples is not None
        info = batch_info(read, order) if needs_info else None
        if order == []:
            images, labels, info = self._fill_batch(read, batch_info(read, order))
        else:
            images, labels = sample_tensors(read.buffer, order), label_tensor(ref.label_array(), order)
            if self._bad_samples is not None and info is not None:
                self._bad_samples.last_good = LastGood(images, labels, info)
            if read.bad:
                self._note_bad(read, _HANDLED[on_bad_sample])
        return images, labels, info

    def _fill_batch(self, read: Batch, info: BatchInfo) -> tuple[SampleTensors, SampleTensors, BatchInfo]:
        """Fill a batch that has no good samples with samples of the last good batch.

        Raises:
            BatchLeftOut: the policy is to skip such a batch, and the caller supports it.
            BadSampleError: this process has not read a good sample yet.
        """
        ref = read.ref
        last_good = None if self._bad_samples is None else self._bad_samples.last_good
        if ref.alone and self._on_bad_sample == "skip" and LEAVES_OUT.get():
            self._note_bad(read, "batch left out")
            remedy = "All of them are bad, as are all others in the epoch"
            # The loader raises the first batch's cause if it skips the whole epoch.
            raise BatchLeftOut from None if ref.position else bad_sample_error(ref, read.bad, remedy)
        if last_good is None:
            remedy = "All of them are bad, and this process has not read a good sample to repeat instead"
            raise bad_sample_error(ref, read.bad, remedy)
        self._note_bad(read, "batch filled")
        # With padding="skip", a batch of only padding keeps one sample.
        return last_good.fill(info, 1 if self._padding == "skip" else len(ref))

    def _note_bad(self, read: Batch, handled: str) -> None:
        if self._bad_samples is not None:
            self._bad_samples.add(read.ref, read.bad, handled)

    def __getitems__(self, refs: Any) -> NoReturn:
        """Raise ``UsageError``. A DataLoader calls this only if ``batch_size=None`` is missing."""
        raise UsageError(how_to_use([refs] if isinstance(refs, BatchRef) else refs))


def _check_reading(read_timeout: Any, in_flight_bytes: object) -> None:
    is_number = isinstance(read_timeout, int | float) and not isinstance(read_timeout, bool)
    if not (is_number and 0 < read_timeout < math.inf):
        raise ConfigError(f"read_timeout must be a finite number of seconds above 0, not {read_timeout!r}")
    if isinstance(in_flight_bytes, bool) or not isinstance(in_flight_bytes, int) or in_flight_bytes < 1:
        raise ConfigError(
            f"in_flight_bytes must be a whole number of bytes, at least 1, not {in_flight_bytes!r}"
        )


def _check_choices(**given: object) -> None:
    choices = {"on_bad_sample": OnBadSample, "padding": Padding, "verify": Verify}
    for name, value in given.items():
        known = get_args(choices[name])
        if value not in known:
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")
