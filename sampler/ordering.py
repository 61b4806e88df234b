"""The order of an epoch, drawn by a torch sampler or another iterable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch

from superdl.super_wire.draws import NUMBERS_MAX, Draws
from superdl.super_wire.errors import ConfigError

# The order of a job before its first epoch is drawn: a single sample, already delivered.
UNDRAWN = Draws.in_order([0], [1])

_CHUNK = 2**16
_EPOCHS_KEPT = 2
_OWN, _GENERATOR, _GLOBAL = "state_dict", "generator", "torch"


class _Drawn(NamedTuple):
    draws: Draws
    # The sampler's state before this draw.
    before: dict[str, Any]


class UserOrder:
    """Each epoch's order, drawn by the user's sampler in the main process when the epoch begins.

    Args:
        sampler: yields the indices of an epoch, or lists of them if ``batch_size`` is ``None``.
        batch_size: samples per batch, or ``None`` if the sampler yields batches.
        drop_last: whether to drop an incomplete last batch.
        indices: int64 tensor mapping the sampler's indices to the dataset's. ``None`` if they are the same.

    Raises:
        ConfigError: ``sampler`` is not iterable.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        batch_size: int | None,
        *,
        drop_last: bool = False,
        indices: torch.Tensor | None = None,
    ) -> None:
        if not isinstance(sampler, Iterable):
            raise ConfigError(f"a sampler must be an iterable of indices, not {type(sampler).__name__}")
        self._sampler, self.batch_size, self._drop_last = sampler, batch_size, drop_last
        self.size = 0  # samples in the dataset; set it before drawing
        self._indices = indices
        self._drawn: dict[int, _Drawn] = {}
        self._loaded: dict[int, Mapping[str, Any]] = {}

    def __len__(self) -> int:
        """Return the number of batches per epoch. Raises ``TypeError`` if the sampler has no length."""
        count = len(self._sampler)  # type: ignore[arg-type]  # most of torch's samplers have one
        if self.batch_size is None:
            return count
        return count // self.batch_size if self._drop_last else -(-count // self.batch_size)

    def draw(self, epoch: int) -> Draws:
        """Draw an epoch, or return the order that a loaded state describes.

        Raises:
            ConfigError: the sampler yields no indices, invalid indices, or an order other than the state's.
        """
        loaded, known = self._loaded.pop(epoch, {}), self._drawn.get(epoch)
        expected = loaded.get("order", "")
        if known is not None and expected == known.draws.digest.hex():
            return known.draws
        for part in self._parts():
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)
        saved = loaded.get("sampler", {})
        with torch.random.fork_rng(devices=(), enabled=_GLOBAL in saved):
            self._restore(saved)
            # The state before the draw can repeat the draw.
            before = self._state()
            draws = self._draw_epoch()
        if expected and draws.digest.hex() != expected:
            raise ConfigError(
                f"the sampler draws epoch {epoch} in a different order than when the state was saved, so the "
                "epoch cannot be resumed. Give the sampler state_dict and load_state_dict methods, or a "
                "seeded generator"
            )
        self._drawn[epoch] = _Drawn(draws, before)
        for other in sorted(self._drawn)[:-_EPOCHS_KEPT]:
            if other != epoch:
                del self._drawn[other]
        return draws

    def state_of(self, epoch: int) -> dict[str, Any]:
        """Return the entries of a state that describe an epoch's order."""
        drawn = self._drawn.get(epoch)
        if drawn is None:
            return {"order": "", "sampler": {k: v for k, v in self._state().items() if k != _GLOBAL}}
        return {"order": drawn.draws.digest.hex(), "sampler": drawn.before}

    def load(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Restore a state, so that :meth:`draw` repeats its order when the epoch begins."""
        order, sampler = state.get("order", ""), state.get("sampler", {})
        if not isinstance(order, str) or not isinstance(sampler, Mapping):
            raise ConfigError("this state's order or sampler is invalid")
        self._loaded = {epoch: {"order": order, "sampler": sampler}}

    def _parts(self) -> list[Any]:
        """Return the sampler and, for a batch sampler, its inner sampler."""
        return [part for part in (self._sampler, getattr(self._sampler, "sampler", None)) if part is not None]

    def _state(self) -> dict[str, Any]:
        for part in self._parts():
            if callable(getattr(part, "state_dict", None)) and callable(
                getattr(part, "load_state_dict", None)
            ):
                return {_OWN: part.state_dict()}
        # torch's samplers draw from the global generator unless they have their own.
        states = {_GLOBAL: _hex(torch.get_rng_state())}
        for part in self._parts():
            if isinstance(generator := getattr(part, "generator", None), torch.Generator):
                states[_GENERATOR] = _hex(generator.get_state())
        return states

    def _restore(self, saved: Mapping[str, Any]) -> None:
        for part in self._parts():
            if _OWN in saved and callable(getattr(part, "load_state_dict", None)):
                part.load_state_dict(saved[_OWN])
                break
            generator = getattr(part, "generator", None)
            if _GENERATOR in saved and isinstance(generator, torch.Generator):
                generator.set_state(_bytes(saved[_GENERATOR]))
        if _GLOBAL in saved:
            torch.set_rng_state(_bytes(saved[_GLOBAL]))

    def _draw_epoch(self) -> Draws:
        if self.batch_size is None:
            batches = self._draw_batches()
            lengths = [len(batch) for batch in batches]
            indices = torch.cat(batches) if batches else torch.empty(0)
        else:
            indices = self._checked(self._sampler)
            whole, rest = divmod(len(indices), self.batch_size)
            lengths = [self.batch_size] * whole + [rest] * (rest > 0 and not self._drop_last)
            indices = indices[: sum(lengths)]
        if not len(indices):
            raise ConfigError("the sampler yielded no indices, so the epoch would be empty")
        if len(indices) > NUMBERS_MAX:
            raise ConfigError(f"a sampler may yield at most {NUMBERS_MAX:,} indices per epoch")
        return Draws.in_order(indices, lengths)

    def _draw_batches(self) -> list[torch.Tensor]:
        batches, count = [], 0
        for batch in self._sampler:
            try:
                indices = iter(batch)
            except TypeError as error:
                raise ConfigError(
                    f"a batch_sampler must yield lists of indices, not {str(batch)[:80]!r}. If it yields "
                    "indices, pass it as sampler="
                ) from error
            batches.append(self._checked(indices))
            if not len(batches[-1]):
                raise ConfigError("the batch_sampler yielded an empty batch")
            count += len(batches[-1])
            if count > NUMBERS_MAX:  # it may be endless
                break
        return batches

    def _checked(self, yielded: Any) -> torch.Tensor:
        """Check a sampler's indices, and return them as int64 indices into the full dataset."""
        # In chunks and with a limit, since a sampler may be endless.
        chunks, remaining = [torch.empty(0, dtype=torch.int64)], iter(islice(yielded, NUMBERS_MAX + 1))
        while chunk := list(islice(remaining, _CHUNK)):
            try:
                tensor = torch.tensor(chunk)
            except (TypeError, ValueError, RuntimeError, OverflowError):
                tensor = torch.empty(0)
            if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex():
                hint = ". If it yields lists, pass it as batch_sampler=" if tensor.ndim > 1 else ""
                raise ConfigError(f"a sampler must yield integers, not {str(chunk[0])[:80]!r}{hint}")
            chunks.append(tensor.to(torch.int64))
        indices = torch.cat(chunks)
        size = self.size if self._indices is None else len(self._indices)
        wrong = indices[(indices < 0) | (indices >= size)]
        if len(wrong):
            raise ConfigError(f"the sampler yielded index {wrong[0]}, but there are only {size:,} samples")
        return indices if self._indices is None else self._indices[indices]


def _hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _bytes(text: Any) -> torch.Tensor:
    try:
        return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"this state's generator is invalid: {error}") from error
