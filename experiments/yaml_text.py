"""YAML that users write. Whatever is wrong with it is one typed error, with file, line and reason."""

from __future__ import annotations

from typing import Any

import yaml

from superdl.super_wire.errors import ConfigError

__all__ = ["load_yaml"]


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, and has a line for values that Python refuses."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 # yaml's
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, TypeError, KeyError) as error:  # a number of 5,000 digits, day 45
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = set()
        for key, _ in node.value:  # merged ones come later, and may be repeated
            text = key.value if isinstance(key, yaml.ScalarNode) else None
            if text is not None and (key.tag, text) in keys and text != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {text[:80]!r} is given twice", key.start_mark
                )
            keys.add((key.tag, text))
        return super().construct_mapping(node, deep)


def load_yaml(text: str, name: str) -> Any:
    """Parse YAML of plain values; errors call the text ``name``.

    Raises:
        ConfigError: it is none, nested too deep, or has a key twice or a value beyond reason.
    """
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except RecursionError as error:
        line = loader.line + 1 if loader else 1
        raise ConfigError(f"{name} cannot be read as YAML: line {line} is nested too deep") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{name} cannot be read as YAML: line {line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} cannot be read as YAML: {error}") from error
