"""Custom steps: user functions named ``module:function@version`` and deployed with SUPER's function.

A request contains only the name of a step. The step's module is imported if it is part of SUPER or listed in
``SUPER_STEP_MODULES``. The module marks each step with a version::

    from superdl.lambda_prefetch import custom_step

    @custom_step("1")
    def invert(array):
        return 255 - array

A step is called as ``function(array, **params)``. A random step also gets ``seed=``, an integer that depends
on the sample and the epoch. The array is the image as uint8 of shape (height, width, 3), or the result of the
previous custom step. For a first step with ``"input": "bytes"``, it is the raw object as uint8 of shape
(bytes,). A step must not write to the array and must return an array that a record can store. It may run in
several threads at once. It may also return a dict of named arrays, such as an image and a mask, after which
only custom steps can follow.
"""

from __future__ import annotations

import importlib
import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.recipe_steps import split_custom_name
from superdl.super_wire.record import DTYPE_CODES, MAX_NDIM
from superdl.super_wire.record_kinds import MAX_ARRAYS, MAX_NAME_BYTES
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# A processed sample: an array, or several named arrays.
Arrays: TypeAlias = "NDArray[Any] | dict[str, NDArray[Any]]"

# Modules that SUPER_STEP_MODULES need not list. Each needs an extra of the package.
SHIPPED = frozenset(f"superdl.lambda_prefetch.{kind}_steps" for kind in ("audio", "text", "video"))

_MARK = "__step_version__"
_CHECK = "__step_check__"

# Old name -> current name. Old names stay valid after a move, because recipes hash them.
_MOVED_MODULES = {"experiments.augmentations.heavy": "superdl.experiments.augmentations.heavy"}
_Step = TypeVar("_Step", bound="Callable[..., Any]")


def custom_step(version: str, *, check: Callable[..., object] | None = None) -> Callable[[_Step], _Step]:
    """Mark a function as a custom step. Change the version whenever the step's results change.

    ``check`` is called with the step's parameters before the first sample of a request. An error in
    ``check`` refuses the whole request, whereas an error in the step fails only one sample.

    Raises:
        TypeError: ``version`` is not a string, for example because the decorator was used without arguments.
    """
    if not isinstance(version, str):
        raise TypeError('custom_step needs a version: write @custom_step("1")')

    def mark(function: _Step) -> _Step:
        setattr(function, _MARK, version)
        setattr(function, _CHECK, check)
        return function

    return mark


class CustomStep:
    """An imported custom step. Raises ``ConfigError`` if it is not allowed or not deployed."""

    def __init__(
        self, name: str, params: Mapping[str, Any], *, random: bool, allowed: frozenset[str]
    ) -> None:
        self._name, self._params, self._random = name, params, random
        self._function = _find(name, allowed)
        if check := getattr(self._function, _CHECK, None):
            try:
                check(**params)
            except Exception as error:  # the user's code may raise anything
                raise ConfigError(
                    f"the custom step {name} cannot run here: {type(error).__name__}: {error}"
                ) from error

    def run(self, array: Arrays, seed: int) -> Arrays:
        """Run the step. If it fails, the outcome is ``step_error``."""
        drawn = {"seed": seed} if self._random else {}
        try:
            result = self._function(array, **self._params, **drawn)
        except (SampleFailedError, MemoryError):
            raise  # a built-in step reports bad bytes, or too little memory
        except Exception as error:  # the user's code may raise anything; other samples continue
            raise SampleFailedError(
                Outcome.STEP_ERROR, f"the custom step {self._name} raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(result, Mapping):
            return self._checked(result)
        named = all(isinstance(name, str) and 0 < len(name.encode()) <= MAX_NAME_BYTES for name in result)
        if not (named and 1 <= len(result) <= MAX_ARRAYS):
            raise self._wrong_result(f"a dict with the keys {reprlib.repr(list(result))}")
        return {name: self._checked(array) for name, array in result.items()}

    def _checked(self, result: object) -> NDArray[Any]:
        if not isinstance(result, np.ndarray):
            raise self._wrong_result(type(result).__name__)
        if result.dtype.name not in DTYPE_CODES or result.ndim > MAX_NDIM:
            raise self._wrong_result(f"{result.dtype} of shape {result.shape}")
        return result.copy()  # the step may reuse its memory before the record is pushed

    def _wrong_result(self, shown: str) -> SampleFailedError:
        return SampleFailedError(
            Outcome.STEP_ERROR,
            f"the custom step {self._name} returned {shown}, but must return a numpy array of up to "
            f"{MAX_NDIM} dimensions of {', '.join(DTYPE_CODES)}, or a dict of 1 to {MAX_ARRAYS} such arrays "
            "by name",
        )


def _find(name: str, allowed: frozenset[str]) -> Callable[..., Any]:
    named, function_name, version = split_custom_name(name)
    module_name = _MOVED_MODULES.get(named, named)
    if not (allowed | SHIPPED) & {named, module_name}:
        raise ConfigError(
            f"the custom step {name} is not allowed: this function's SUPER_STEP_MODULES does not list "
            f"{named} (it lists {', '.join(sorted(allowed)) or 'none'})"
        )
    try:
        module = importlib.import_module(module_name)  # noqa: TID251  # in SUPER_STEP_MODULES
    except Exception as error:
        raise ConfigError(
            f"cannot import the custom step {name}: {type(error).__name__}: {error}. Deploy it with the "
            "function"
        ) from error
    function: Any = getattr(module, function_name, None)
    home, declared = getattr(function, "__module__", None), getattr(function, _MARK, None)
    if not callable(function):
        message = f"{module_name} has no function {function_name}"
    # An imported function is not a step: `from pickle import loads` would execute code in an image.
    elif home != module_name:
        message = (
            f"{module_name} imports {function_name} from {home}, but a step must be defined in the module "
            "itself"
        )
    elif declared is None:
        message = (
            f"{function_name} is not marked as a step. Decorate it with "
            f'@custom_step("{version}") from superdl.lambda_prefetch'
        )
    elif declared != version:
        message = f"version {declared} is deployed. Deploy {version}, or use {declared} in the recipe"
    else:
        step: Callable[..., Any] = function
        return step
    raise ConfigError(f"the custom step {name}: {message}")
