"""One connection for each thread of each process, never inherited, never pickled."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import threading

import pytest

from superdl.super_dataset.reading.reader import BatchReader, ReadSettings
from superdl.super_wire.errors import CacheError


def own_id(reader: BatchReader, cache: str) -> bytes:
    nodes = reader.state().link(cache, timeout_s=5.0).nodes
    return nodes.connection(nodes.home).ask(b"CLIENT", b"ID")


def tell_own_ids(reader, cache, pipe):
    pipe.send([own_id(reader, cache), own_id(reader, cache)])
    pipe.close()


def clients(valkey) -> int:
    with valkey.client() as client:
        return len(client.client_list()) - 1  # the one that asks


@pytest.fixture
def reader():
    return BatchReader(ReadSettings(record_bytes=777))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_opens_its_own_and_leaves_the_parents_alone(valkey, reader, method):
    mine = own_id(reader, valkey.unix_url)
    context = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=tell_own_ids, args=(reader, valkey.unix_url, sending))
    child.start()
    sending.close()
    theirs = receiving.recv()
    child.join()
    assert child.exitcode == 0
    assert theirs[0] == theirs[1] != mine
    assert own_id(reader, valkey.unix_url) == mine


def test_each_thread_has_its_own_and_takes_it_along(valkey, reader):
    mine, theirs = own_id(reader, valkey.unix_url), []
    threads = [
        threading.Thread(target=lambda: theirs.append(own_id(reader, valkey.unix_url))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({mine, *theirs}) == 5
    gc.collect()
    assert clients(valkey) == 1


def test_another_cache_gets_another_connection_and_it_goes_with_its_owner(valkey, reader):
    first = own_id(reader, valkey.unix_url)
    assert own_id(reader, valkey.url) != first
    assert clients(valkey) == 1
    copy = pickle.loads(pickle.dumps(reader))
    assert not copy.state().connected
    assert copy.state().record_bytes == 777
    del reader
    gc.collect()


def test_credentials_are_those_of_the_environment(valkey, reader, monkeypatch):
    with valkey.client() as client:
        client.config_set("requirepass", "geheim")
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "wrong")
    with pytest.raises(CacheError, match="WRONGPASS"):
        own_id(reader, valkey.unix_url)
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "geheim")
    assert own_id(reader, valkey.unix_url)
