"""Recipes, which describe how functions process samples, as JSON without any code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Never

from superdl.super_wire.errors import ConfigError, RecipeError
from superdl.super_wire.ids import MAIN_FIELD, MAX_FIELDS, checked_field, digest128
from superdl.super_wire.recipe_steps import DECODED, OPS, canonical_steps

# Part of every digest. Increase it whenever a step produces different pixels.
PIPELINE_VERSION = 1
_INT32 = 2**31
_INT64 = 2**63
_SHIPPED_STEPS = "superdl.lambda_prefetch."

_SIZES = "resize= is the shorter side and crop= the side of the central square, such as resize=256, crop=224"
# Advice for argument names from other libraries. All other names get advice on sizes.
_ELSEWHERE = {
    "mean std normalize scale rescale_factor dtype": "samples are uint8 and are normalised after the cache: "
    "use SuperDataset(..., transform=Augment(mean=..., std=...)) or your own transform",
    "interpolation resample antialias max_size": "pass the steps, such as Recipe([{'op': 'resize', "
    "'size': 256, 'interpolation': 'bicubic'}, {'op': 'center_crop', 'size': 224}])",
    "flip hflip vflip horizontal_flip augment transform transforms": "random steps run after the cache, "
    "fresh in each epoch: use SuperDataset(..., transform=Augment(...)) or your own transform",
}


class Recipe:
    """The processing of every sample from its encoded bytes to its record in the cache.

    Images are decoded to upright RGB uint8 of shape (height, width, 3), unless the first step is a custom
    step with ``"bytes"`` as its input. The steps run in order. Equality, hash and :attr:`digest` use the
    canonical form: ``Recipe.image(crop=224)`` equals a recipe whose step has ``"size": 224.0``.

    >>> recipe = Recipe([{"op": "resize", "size": 256}, {"op": "center_crop", "size": 224}])
    >>> recipe == Recipe.image(resize=256, crop=224)
    True
    >>> recipe.output_shape
    (224, 224, 3)

    Args:
        steps: mappings such as ``{"op": "resize", "size": 256}``, or a list of them for each field of a
            sample (see :meth:`fields`).
        augment_seed: seeds random steps, together with the epoch and the sample. It has no effect without
            random steps. It is not the shuffle seed, so trials with different shuffles share samples.

    Raises:
        RecipeError: a step is unknown, has the wrong type or is out of range. The message names it.
    """

    __slots__ = ("augment_seed", "digest", "json", "parts", "steps")

    augment_seed: int
    digest: bytes
    """The BLAKE2b-128 of the pipeline version and the canonical steps. The augment seed is part of sample
    ids instead. A file that a shipped step reads is included by its SHA-256, regardless of its path.
    """
    json: str
    """The canonical JSON. Equal recipes have equal JSON."""
    parts: Mapping[str, Recipe]
    """The recipe of each field, with ``image`` first and the others by name. Empty if it has none."""
    steps: tuple[Mapping[str, Any], ...]
    """The steps. For samples with fields, those of ``image``."""

    def __init__(
        self,
        steps: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        augment_seed: int = 0,
    ) -> None:
        if isinstance(steps, Mapping) and "op" not in steps:
            self.parts = _parts(steps, augment_seed)
            self.steps = self.parts[MAIN_FIELD].steps
            named: Any = {name: part.steps for name, part in self.parts.items()}
            hashed: Any = {
                name: [*map(_without_file_path, field_steps)] for name, field_steps in named.items()
            }
        else:
            self.parts = {}
            self.steps = named = canonical_steps(steps)
            hashed = [*map(_without_file_path, named)]
        if isinstance(augment_seed, bool) or not isinstance(augment_seed, int):
            raise RecipeError(f"augment_seed must be an integer, not {augment_seed!r}")
        if not -_INT64 <= augment_seed < _INT64:
            raise RecipeError(
                f"augment_seed must fit in a signed 64-bit integer, but {augment_seed} does not"
            )
        # Without random steps, recipes that differ only in their seed are equal.
        self.augment_seed = augment_seed if self.random else 0
        self.digest = digest128(_dump({"pipeline": PIPELINE_VERSION, "steps": hashed}).encode())
        self.json = _dump({"pipeline": PIPELINE_VERSION, "steps": named, "augment_seed": self.augment_seed})

    @classmethod
    def fields(cls, **recipes: Recipe) -> Recipe:
        """Create a recipe for samples that consist of several objects, from one recipe per field.

        A sample is a dict of arrays. ``image`` is the object in the key list's ``key`` column, and ``mask``
        the one in its columns ``mask.key``, ``mask.member`` and so on. A random step in two fields draws the
        same numbers in both. Such steps are matched by their position among the steps of the same kind.

        >>> masks = Recipe.fields(image=Recipe.image(crop=224), mask=Recipe.mask(crop=224))

        Raises:
            RecipeError: there is no ``image``, a name is invalid, or two random recipes have different seeds.
        """
        for name, recipe in recipes.items():
            if not isinstance(recipe, Recipe) or recipe.parts:
                raise RecipeError(
                    f"the field {name} needs a recipe such as Recipe.image(crop=224), not {recipe!r}"
                )
        seeds = {recipe.augment_seed for recipe in recipes.values() if recipe.random}
        if len(seeds) > 1:
            raise RecipeError(
                f"all fields draw the same random numbers, so they need one augment_seed, not {sorted(seeds)}"
            )
        return cls(
            {name: recipe.steps for name, recipe in recipes.items()}, augment_seed=max(seeds, default=0)
        )

    @classmethod
    def mask(cls, *, resize: int | None = None, crop: int | None = None, **unknown: Never) -> Recipe:
        """Create a recipe for segmentation masks: uint8 or uint16 class numbers (height, width), not RGB.

        Args:
            resize: the shorter side in pixels, by nearest neighbour.
            crop: the side of the central square in pixels. A smaller mask is padded with 0.

        Raises:
            RecipeError: a size is out of range.
            TypeError: there is no such argument.
        """
        return cls([{"op": "mask"}, *cls.image(resize=resize, crop=crop, **unknown).steps])

    @property
    def beside(self) -> tuple[str, ...]:
        """The fields of the samples other than ``image``."""
        return tuple(self.parts)[1:]

    @classmethod
    def image(
        cls,
        *,
        resize: int | None = None,
        crop: int | None = None,
        reduced_decode: bool = False,
        truncated: str = "error",
        **unknown: Never,
    ) -> Recipe:
        """Create a recipe for torchvision's usual evaluation preprocessing, ending with uint8 pixels.

        Args:
            resize: the shorter side in pixels, or ``None`` to keep the size.
            crop: the side of the central square in pixels. A smaller image gets a black border, as with
                torchvision's CenterCrop. With ``crop``, every sample is uint8 of shape (crop, crop, 3).
                Otherwise, shapes vary with the images.
            reduced_decode: decode JPEGs whose shorter side is at least twice ``resize`` at 1/2, 1/4 or 1/8 of
                their size before resizing. This is several times faster for large images, but produces
                different pixels, so recipes with and without it share no samples.
            truncated: ``"fill"`` fills the missing part of truncated images with grey, like Pillow's
                ``LOAD_TRUNCATED_IMAGES``. By default, such images are bad samples.

        Raises:
            RecipeError: an argument is out of range, or ``reduced_decode`` is used without ``resize``.
            TypeError: there is no such argument. The message suggests a replacement.
        """
        for name in unknown:
            hint = next((words for names, words in _ELSEWHERE.items() if name in names.split()), _SIZES)
            raise TypeError(f"recipes for images and masks have no argument {name}: {hint}")
        steps: list[Mapping[str, Any]] = []
        if reduced_decode:
            if resize is None:
                raise RecipeError("reduced_decode depends on resize: pass resize too")
            steps.append({"op": "reduced_decode", "size": resize, "truncated": truncated})
        elif truncated != "error":
            steps.append({"op": "decode", "truncated": truncated})
        if resize is not None:
            steps.append({"op": "resize", "size": resize})
        if crop is not None:
            steps.append({"op": "center_crop", "size": crop})
        return cls(steps)

    @classmethod
    def text(
        cls, tokenizer: str | Path, *, length: int | None = None, packed: bool = False, pad_id: int = 0
    ) -> Recipe:
        """Create a recipe that turns UTF-8 texts into int32 token ids. Functions need ``superdl[text]``.

        Args:
            tokenizer: a model's ``tokenizer.json``. Functions read it at the same path, relative to their
                working directory, and refuse a file with a different SHA-256.
            length: the number of tokens. Texts are truncated or padded to shape (length,). By default, the
                shape is (tokens,).
            packed: split texts into rows of shape (rows, length). Only the last row is padded.
            pad_id: the token id to pad with.

        Raises:
            RecipeError: the file cannot be read, ``packed`` lacks a ``length``, or a number is out of range.
        """
        if length is not None and length < 1:
            raise RecipeError(f"length must be at least 1 token, not {length}")
        if packed and length is None:
            raise RecipeError("packed rows need a length: pass length too")
        if not -_INT32 <= pad_id < _INT32:
            raise RecipeError(f"pad_id must be a token id that fits in an int32, not {pad_id}")
        try:
            digest = hashlib.sha256(Path(tokenizer).read_bytes()).hexdigest()
        except OSError as error:
            raise RecipeError(f"the tokenizer cannot be read: {error}") from error
        params: dict[str, object] = {"file": str(tokenizer), "sha256": digest}
        params |= {"length": length or 0, "packed": packed, "pad_id": pad_id}
        return cls([{**_shipped_step("text_steps:tokenize", **params), "input": "bytes"}])

    @classmethod
    def audio(
        cls,
        rate: int,
        *,
        mono: bool = True,
        samples: int | None = None,
        mel: int | None = None,
        window: int = 400,
        hop: int = 160,
        max_seconds: float = 600.0,
    ) -> Recipe:
        """Create a recipe that turns audio files into float32 waveforms or log-mel spectrograms.

        Functions need ``superdl[audio]``.

        Args:
            rate: samples per second after resampling.
            mono: average the channels to shape (samples,). Otherwise, the shape is (channels, samples).
            samples: the length to truncate or zero-pad to, at the end. By default, the file's length.
            mel: return a spectrogram with this many bands, of shape (mel, frames), not the waveform.
            window: the length of the spectrogram's window in samples.
            hop: the number of samples between frames.
            max_seconds: the maximum length. Longer files fail, as do those of over 512 MiB as float32.

        Raises:
            RecipeError: a number is not greater than 0.
        """
        numbers = {"rate": rate, "window": window, "hop": hop, "max_seconds": max_seconds}
        numbers |= {} if samples is None else {"samples": samples}
        numbers |= {} if mel is None else {"mel": mel}
        for name, number in numbers.items():
            if not number > 0 or (name != "max_seconds" and number != int(number)):
                kind = "a number" if name == "max_seconds" else "an integer"
                raise RecipeError(f"{name} must be {kind} greater than 0, not {number!r}")
        rate, window, hop = int(rate), int(window), int(hop)  # recipes for 16000.0 and 16000 are equal
        read = {"rate": rate, "max_seconds": float(max_seconds), "mono": mono, "samples": int(samples or 0)}
        steps = [{**_shipped_step("audio_steps:waveform", **read), "input": "bytes"}]
        if mel is not None:
            steps.append(_shipped_step("audio_steps:mel", rate=rate, bands=int(mel), window=window, hop=hop))
        return cls(steps)

    @classmethod
    def video(cls, frames: int, size: int, *, fps: float | None = None, start: float = 0.0) -> Recipe:
        """Create a recipe for video clips, as RGB uint8 of shape (frames, size, size, 3).

        Functions need ``superdl[video]``.

        Args:
            frames: the number of frames. Each is the frame displayed at its time. Past the end of the
                video, the last frame is repeated.
            size: the side of the central square in pixels, to which the shorter side is resized.
            fps: frames per second. By default, the frames are spread evenly over the video.
            start: the start of the clip in seconds after the video's first frame.

        Raises:
            RecipeError: a number is out of range.
        """
        numbers = {"frames": frames, "size": size} | ({} if fps is None else {"fps": fps})
        for name, number in numbers.items():
            if not number > 0:
                raise RecipeError(f"{name} must be a number greater than 0, not {number!r}")
        if not start >= 0:
            raise RecipeError(f"start must be a number of seconds from 0, not {start!r}")
        params = {"frames": frames, "size": size, "fps": float(fps or 0), "start": float(start)}
        return cls([{**_shipped_step("video_steps:clip", **params), "input": "bytes"}])

    @classmethod
    def from_json(cls, text: str | bytes) -> Recipe:
        """Parse :attr:`json`. Raises ``RecipeError`` if it is invalid or has a different pipeline version."""
        try:
            fields = json.loads(text)
            version, steps, seed = fields["pipeline"], fields["steps"], fields["augment_seed"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RecipeError(
                f"a recipe must be JSON with pipeline, steps and augment_seed: {error!r}"
            ) from error
        if version != PIPELINE_VERSION:
            raise RecipeError(
                f"the recipe is for pipeline {version!r}, not {PIPELINE_VERSION}: use the same version of "
                "SUPER everywhere"
            )
        return cls(steps, augment_seed=seed)

    @property
    def random(self) -> bool:
        """Whether any step is random. If so, every epoch has new sample ids."""
        if self.parts:
            return any(part.random for part in self.parts.values())
        return any(OPS[step["op"]].random or step.get("random", False) for step in self.steps)

    @property
    def decodes(self) -> bool:
        """Whether objects are decoded as images before the first step."""
        return not self.steps or self.steps[0].get("input") != "bytes"

    @property
    def output_shape(self) -> tuple[int, int, int] | None:
        """The shape (height, width, 3) of every sample.

        It is ``None`` for masks and fields, and if shapes vary with the images or depend on a custom step.
        """
        if self.parts or (self.steps and self.steps[0]["op"] == "mask"):
            return None
        shape = DECODED
        for step in self.steps:
            shape = OPS[step["op"]].shape(shape, step)
        height, width, channels = shape
        return None if height is None or width is None else (height, width, channels)

    def __eq__(self, other: object) -> bool:
        return self.json == other.json if isinstance(other, Recipe) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.json)

    def __repr__(self) -> str:
        seed = f", augment_seed={self.augment_seed}" if self.random else ""
        named = {name: [*map(dict, part.steps)] for name, part in self.parts.items()}
        return f"Recipe({named or [*map(dict, self.steps)]}{seed})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Recipe.from_json, (self.json,)


def _parts(steps: Mapping[Any, Any], augment_seed: int) -> dict[str, Recipe]:
    """Return the recipe of each field, with ``image`` first and the others by name."""
    try:
        names = sorted(map(checked_field, steps), key=lambda name: (name != MAIN_FIELD, name))
    except ConfigError as error:
        raise RecipeError(str(error)) from error
    if names[:1] != [MAIN_FIELD] or len(names) > MAX_FIELDS:
        raise RecipeError(
            f"fields must be {MAIN_FIELD}, the object in a list's key column, and up to {MAX_FIELDS - 1} "
            f"others, not {names}"
        )
    return {name: Recipe(canonical_steps(steps[name]), augment_seed=augment_seed) for name in names}


def _shipped_step(step: str, **params: object) -> dict[str, Any]:
    return {"op": "custom", "name": f"{_SHIPPED_STEPS}{step}@1", "params": params}


def _without_file_path(step: Mapping[str, Any]) -> Mapping[str, Any]:
    if step["op"] != "custom" or not step["name"].startswith(_SHIPPED_STEPS):
        return step
    return {**step, "params": {name: step["params"][name] for name in step["params"] if name != "file"}}


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
