"""Errors travel: by name, by pickle, by message alone."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire import errors
from superdl.super_wire.errors import CoordinatorError, SuperError, error_from_name
from superdl.super_wire.redaction import shown_lines


def below(root):
    """The class and all that is derived from it in the module."""
    found = [root]
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found += below(child)
    return found


ERRORS = below(SuperError)


@pytest.mark.parametrize("error", ERRORS)
@given(message=st.text())
def test_rebuilt_from_the_message_alone(error, message):
    original = error(message)
    assert str(original) == shown_lines(message)
    for back in (
        error_from_name(error.__name__, message),
        pickle.loads(pickle.dumps(original)),
        type(original)(str(original)),
    ):
        assert type(back) is error
        assert str(back) == str(original)


@given(
    name=st.text() | st.sampled_from(["Exception", "SystemExit", "coordinatorerror", "", "__init__"]),
    message=st.text(),
)
def test_any_name_gives_an_error(name, message):
    back = error_from_name(name, message)
    assert type(back) is CoordinatorError or type(back).__name__ == name
    assert back.args == (message,)
