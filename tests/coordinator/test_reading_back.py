"""A real record is read back from a real cache, and one that was spoilt on its way is produced again."""

from __future__ import annotations

from superdl.super_wire.record import HEADER_BYTES
from tests.coordinator import running as running_module
from tests.coordinator.running import running


def test_a_record_that_was_spoilt_on_its_way_into_the_cache_is_found_and_produced_again(
    valkey, serving_loop, source, monkeypatch, caplog
):
    written: set[str] = set()

    def spoilt(key: str, sample_id: bytes) -> bytes:
        record = bytearray(whole(key, sample_id))
        record[-1] ^= key not in written
        written.add(key)
        return bytes(record)

    whole = running_module.record_of
    monkeypatch.setattr(running_module, "record_of", spoilt)

    async def work():
        async with running(valkey) as coordinator:
            await coordinator.open(await coordinator.register(source))
            await coordinator.page()
            await coordinator.until(lambda: "does not read back" in caplog.text)
            await coordinator.until(lambda: len(coordinator.executor.keys_asked) > 10)
            await coordinator.until(lambda: not coordinator.engine.busy)
            return coordinator.executor.keys_asked

    keys = serving_loop.run(work())
    (again,) = {key for key in keys if keys.count(key) > 1}
    with valkey.client() as client:
        payloads = [client.get(name)[HEADER_BYTES:] for name in client.keys("super:r1:*")]
    assert whole(again, bytes(16))[HEADER_BYTES:] in payloads
    assert caplog.text.count("does not read back") == 1
