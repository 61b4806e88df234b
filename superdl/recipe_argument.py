"""A recipe as it is written on a command line: ``resize=256,crop=224``, its JSON, or a file with that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from super_wire.errors import ConfigError, RecipeError

if TYPE_CHECKING:
    from super_wire.recipe import Recipe

__all__ = ["DEFAULT_RECIPE", "RECIPE_FORMS", "read_recipe"]

DEFAULT_RECIPE = "resize=256,crop=224"
RECIPE_FORMS = "resize=256,crop=224 (or one of the two), the recipe's JSON, or @FILE that holds that JSON"
_SIDES = ("resize", "crop")


def read_recipe(text: str) -> Recipe:
    """The recipe that ``text`` means.

    Raises:
        ConfigError: it means none; RecipeError: its steps are wrong.
    """
    from super_wire.recipe import Recipe

    if text.startswith("@"):
        return Recipe.from_json(_content(text[1:]))
    if text.lstrip().startswith("{"):
        return Recipe.from_json(text)
    sides: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in _SIDES or name in sides or not value.isdecimal():
            msg = f"--recipe is {RECIPE_FORMS}; not {text[:200]!r}"
            raise ConfigError(msg)
        sides[name] = int(value)
    return Recipe.image(resize=sides.get("resize"), crop=sides.get("crop"))


def _content(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        msg = f"the recipe in {file} cannot be read: {error}"
        raise RecipeError(msg) from error
