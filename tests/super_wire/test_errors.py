"""The tree of errors is the one drawn, and errors travel: by name, by pickle, by message alone."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire import errors
from superdl.super_wire.errors import CoordinatorError, SuperError, error_from_name


def below(root):
    """The class and all that is derived from it in the module."""
    found = [root]
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found += below(child)
    return found


ERRORS = below(SuperError)


def drawn():
    """Name -> (name of its parent in the drawing, names of other bases in brackets)."""
    found, path = {}, []
    for line in errors.__doc__.splitlines():
        match = re.fullmatch(r" {4}([│├└─ ]*)(\w+)(?: \((\w+)\))?(?: {2,}.*)?", line)
        if match:
            branch, name, other = match.groups()
            depth = len(branch) // 4
            del path[depth:]
            found[name] = (path[-1] if path else None, other)
            path.append(name)
    return found


def test_the_tree_is_the_one_drawn():
    tree = drawn()
    assert set(tree) == {error.__name__ for error in ERRORS}
    for error in ERRORS:
        parent, other = tree[error.__name__]
        bases = [base.__name__ for base in error.__bases__]
        if error is SuperError:
            assert (parent, bases) == (None, ["Exception"])
        else:
            assert bases == [parent, *([other] if other else [])]


def test_all_are_public():
    assert {error.__name__ for error in ERRORS} | {"error_from_name"} == set(errors.__all__)
    assert errors.__all__ == sorted(errors.__all__)


@pytest.mark.parametrize("error", ERRORS)
@given(message=st.text())
def test_rebuilt_from_the_message_alone(error, message):
    original = error(message)
    assert str(original) == message
    for back in (
        error_from_name(error.__name__, message),
        pickle.loads(pickle.dumps(original)),
        type(original)(str(original)),
    ):
        assert type(back) is error
        assert back.args == (message,)


@given(
    name=st.text() | st.sampled_from(["Exception", "SystemExit", "coordinatorerror", "", "__init__"]),
    message=st.text(),
)
def test_any_name_gives_an_error(name, message):
    back = error_from_name(name, message)
    assert type(back) is CoordinatorError or type(back).__name__ == name
    assert str(back) == message


@pytest.mark.parametrize("error", ERRORS)
def test_says_what_it_means(error):
    assert error.__doc__
