"""One connection for each thread of each process, never inherited, never pickled."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import threading
import time

import pytest

from superdl.super_dataset.reading.link import open_link
from superdl.super_dataset.reading.reader_state import ReaderStates
from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import CacheError


def own_id(states: ReaderStates, cache: str) -> str:
    nodes = states.here().link(cache, timeout_s=5.0).nodes
    return nodes.connection(nodes.home).ask(b"CLIENT", b"ID")


def tell_own_ids(states, cache, pipe):
    pipe.send([own_id(states, cache), own_id(states, cache)])
    pipe.close()


def clients(valkey) -> int:
    with valkey.client() as client:
        return len(client.client_list()) - 1  # the one that asks


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_opens_its_own_and_leaves_the_parents_alone(valkey, method):
    states = ReaderStates(None, time.monotonic, open_link)
    mine = own_id(states, valkey.unix_url)
    context = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=tell_own_ids, args=(states, valkey.unix_url, sending))
    child.start()
    sending.close()
    theirs = receiving.recv()
    child.join()
    assert child.exitcode == 0
    assert theirs[0] == theirs[1] != mine
    assert own_id(states, valkey.unix_url) == mine


def test_each_thread_has_its_own_and_takes_it_along(valkey):
    states = ReaderStates(None, time.monotonic, open_link)
    mine = own_id(states, valkey.unix_url)
    theirs = []
    threads = [
        threading.Thread(target=lambda: theirs.append(own_id(states, valkey.unix_url))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({mine, *theirs}) == 5
    assert own_id(states, valkey.unix_url) == mine
    gc.collect()
    assert clients(valkey) == 1


def test_pickling_takes_no_connection_along(valkey):
    states = ReaderStates(777, time.monotonic, open_link)
    own_id(states, valkey.unix_url)
    copy = pickle.loads(pickle.dumps(states))
    assert not copy.here().connected
    assert copy.here().record_bytes == 777


def test_another_cache_gets_another_connection(valkey):
    states = ReaderStates(None, time.monotonic, open_link)
    first = own_id(states, valkey.unix_url)
    assert own_id(states, valkey.url) != first
    assert clients(valkey) == 1


def test_the_connection_goes_with_its_owner(valkey):
    states = ReaderStates(None, time.monotonic, open_link)
    own_id(states, valkey.unix_url)
    del states
    gc.collect()
    assert clients(valkey) == 0


def test_credentials_are_those_of_the_environment(valkey, monkeypatch):
    with valkey.client() as client:
        client.config_set("requirepass", "geheim")
    states = ReaderStates(None, time.monotonic, open_link)
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "wrong")
    with pytest.raises(CacheError, match="WRONGPASS"):
        own_id(states, valkey.unix_url)
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "geheim")
    assert own_id(states, valkey.unix_url)
    assert Credentials.from_environment({}).password == ""
