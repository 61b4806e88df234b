"""Limits of the order that a user's sampler draws."""

import itertools

import pytest

from superdl.sampler import ordering
from superdl.sampler.ordering import UserOrder
from superdl.super_wire.errors import ConfigError


def order_of(sampler, batch_size=None):
    order = UserOrder(sampler, batch_size)
    order.size = 2
    return order


@pytest.mark.parametrize(("item", "batch_size"), [([0, 1], None), (1, 2)])
def test_an_endless_sampler_is_rejected(monkeypatch, item, batch_size):
    monkeypatch.setattr(ordering, "NUMBERS_MAX", 1000)
    yielded = itertools.repeat(item, 2000)
    with pytest.raises(ConfigError, match="at most 1,000 indices per epoch"):
        order_of(yielded, batch_size).draw(0)
    assert next(yielded, None) is not None
