"""Read objects of a source as a function does, and get the outcome for unreadable ones."""

import pytest

from superdl.lambda_prefetch.handler import open_source
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.sources import SampleFailedError, read_object
from superdl.super_wire.objects import Span

LIMIT = 1000  # bytes per object


def read(bucket, key, version, span=None, reserve=lambda _: None, *, hosts=None):
    source = open_source(bucket, FunctionSettings(http_hosts=hosts))
    return read_object(source, key, version, limit_bytes=LIMIT, reserve=reserve, span=span)


def unread(size_bytes):
    """A ``reserve`` that fails, for objects that must be refused before their bytes are received."""
    pytest.fail(f"{size_bytes} bytes were to be read")


def failure(*place, reserve=lambda _: None, hosts=None):
    """The outcome for an object that cannot be read, and the reason."""
    with pytest.raises(SampleFailedError) as caught:
        read(*place, reserve=reserve, hosts=hosts)
    return caught.value.outcome, caught.value.message


def assert_spans(place, body):
    """Assert that spans within, across and beyond the end of an object match its bytes."""
    for span in (Span(0, 3), Span(2, 4), Span(1, 5000), Span(-4, 0), Span(-5000, 0)):
        asked, found = [], span.within(len(body))
        assert read(*place, span, asked.append) == body[found.begin : found.end]
        assert asked[-1] == found.size_bytes
