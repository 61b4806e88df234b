"""The users of docs/reference.md, created as the page says: what a real Valkey forbids each of them.

``test_networks.py`` and ``test_on_lambda.py`` cover what they may do, in whole epochs.
"""

import re
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials
from superdl.super_wire.errors import CacheError
from superdl.super_wire.keys import FINGERPRINT_KEY, LOCK_KEY, RECORD_PREFIX, REPORT_PREFIX
from tests.fixtures.valkey import Valkey

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
LINES = re.findall(r"^ACL SETUSER (super-[a-z]+) .*$", PAGE, re.MULTILINE)

RECORD = RECORD_PREFIX.decode() + "0" * 32
REPORTS = REPORT_PREFIX.decode() + "job"
LOCK, GOLDEN = LOCK_KEY.decode(), FINGERPRINT_KEY.decode()

# Commands that no user needs, separated by semicolons: other keys, bulk access, server, code.
NOBODYS = f"""
GET other; SET other 1; XADD other * a b; DEL other; GET super
KEYS *; FLUSHALL; FLUSHDB; SWAPDB 0 1; RANDOMKEY; SHUTDOWN NOSAVE; SAVE; MONITOR
CONFIG GET requirepass; CONFIG SET maxmemory 1; ACL LIST; ACL SETUSER me on; ACL WHOAMI
CLIENT KILL TYPE normal; CLIENT LIST; REPLICAOF NO ONE; MODULE LIST; SLOWLOG GET; LATENCY RESET
SUBSCRIBE news; PUBLISH news 1; SCRIPT FLUSH; FUNCTION LIST; CLUSTER RESET; CLUSTER MEET h 1
EVALSHA 0000 0; FCALL f 0; MIGRATE h 1 k 0 1; DUMP {RECORD}; OBJECT FREQ {RECORD}
RENAME {RECORD} super:r1:b; COPY {RECORD} super:r1:b; RESTORE super:r1:b 0 x
"""
A_COORDINATORS = f"SET super:r2:x 1; EVAL return 0; SCAN 0; DBSIZE; INFO; UNLINK {RECORD}; PEXPIRE {RECORD} 1"
FORBIDDEN = {
    "super-reader": f"""
        SET {RECORD} 1; DEL {RECORD}; GETDEL {RECORD}; APPEND {RECORD} x; GETSET {RECORD} 1; MGET {RECORD}
        XADD {RECORD} * a b; GET {REPORTS}; XREAD STREAMS {REPORTS} 0; XRANGE {REPORTS} - +; DEL {REPORTS}
        XTRIM {REPORTS} MAXLEN 0; GET {LOCK}; GET {GOLDEN}; {A_COORDINATORS}
    """,
    "super-function": f"""
        GET {RECORD}; SET {RECORD} 1 GET; DEL {RECORD}; SET {LOCK} me; SET {GOLDEN} x; SET {REPORTS} 1
        XADD {REPORTS} * a b; XADD {LOCK} * a b; GET {REPORTS}; XREAD STREAMS {REPORTS} 0; DEL {REPORTS}
        {A_COORDINATORS}
    """,
    "super-coordinator": f"MGET {RECORD}; GETDEL {RECORD}; XTRIM {REPORTS} MAXLEN 0",
}


@pytest.fixture(scope="module")
def server():
    """A server with only the page's users, and one key of each kind."""
    with Valkey() as running:
        with running.client() as client:
            for line in re.findall(r"^ACL SETUSER super-.*$", PAGE, re.MULTILINE):
                client.execute_command(*line.split())
            client.mset({RECORD: b"r", LOCK: b"l", GOLDEN: b"g", "other": b"o"})
            client.xadd(REPORTS, {"a": "b"})
            (line,) = re.findall(r"^ACL SETUSER default .*$", PAGE, re.MULTILINE)
            client.execute_command(*line.split())
        yield running


def test_the_page_has_three_users():
    assert sorted(LINES) == sorted(FORBIDDEN)


@pytest.mark.parametrize("user", FORBIDDEN)
def test_a_user_may_do_nothing_but_what_its_side_needs(server, user):
    with redis.Redis(
        unix_socket_path=f"{server.directory}/redis.sock", username=user, password="SECRET"
    ) as client:
        done = []
        for command in re.split(r";|\n", f"{FORBIDDEN[user]};{NOBODYS}"):
            if not command.strip():
                continue
            try:
                client.execute_command(*command.split())
            except redis.exceptions.NoPermissionError:
                continue
            except redis.exceptions.ResponseError as error:
                done.append(f"{command}: {error}")
            else:
                done.append(command)
    assert not done


def test_nobody_comes_in_without_the_right_password(server):
    address = CacheAddress.parse(server.url)
    for credentials in (Credentials(), Credentials("super-reader", "geheim"), Credentials(password="SECRET")):
        with pytest.raises(CacheError, match="SUPER_CACHE_USERNAME|SUPER_CACHE_PASSWORD") as caught:
            CacheConnection(address, credentials, timeout_s=5.0).ask(b"GET", RECORD.encode())
        assert not any(word in str(caught.value) for word in ("geheim", "SECRET"))


def test_once_the_page_was_followed_the_default_user_may_do_nothing(server):
    path = f"{server.directory}/redis.sock"
    for password in (None, "", "SECRET"):
        at_once = Retry(NoBackoff(), 0)  # redis-py would retry a refused login
        with redis.Redis(unix_socket_path=path, password=password, retry=at_once) as client:
            for command in ("GET " + RECORD, "PING", "FLUSHALL", "ACL SETUSER default on"):
                with pytest.raises(redis.exceptions.RedisError, match="uthenticat|WRONGPASS|invalid"):
                    client.execute_command(*command.split())
