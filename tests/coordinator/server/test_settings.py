"""Settings: precedence of sources, refusals by name, and requirements for remote access."""

import argparse
import dataclasses
import logging

import pytest

from superdl.coordinator.server.settings import Settings, add_arguments, executor_context, load_settings
from superdl.coordinator.server.trust import check_listen_address, leaves_this_machine, warn_if_insecure
from superdl.coordinator.store.opening import StoreChoice
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import socket_path


@pytest.fixture
def toml(tmp_path):
    """Return a function that writes a settings file."""

    def write(text):
        path = tmp_path / "coordinator.toml"
        path.write_text(text, encoding="latin-1")
        return str(path)

    return write


def test_arguments_win_over_variables_over_the_file_over_defaults(toml):
    file = toml("slots = 2\nrequest_samples = 2\nlookahead_batches = 2\n")
    environment = {"SUPER_SLOTS": "3", "SUPER_REQUEST_SAMPLES": "3", "SUPER_LISTEN": ""}
    assert load_settings({}, {}) == load_settings({"listen": None}, {"SUPER_LISTEN": ""}) == Settings()
    settings = load_settings({"slots": 4, "listen": None}, environment, file)
    assert (settings.slots, settings.request_samples, settings.lookahead_batches) == (4, 3, 2)
    assert settings.catalog_max_age_s == Settings().catalog_max_age_s


OTHERS = {
    "cache_bytes": ("1.5gb", 3 * 2**29),
    "store_bytes": ("1.5gb", 3 * 2**29),
    "shard_cache_bytes": ("1.5gb", 3 * 2**29),
    "store": ("s3://bucket/store", "s3://bucket/store"),
    "cache": ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    "token": ("sixteen-or-more1", "sixteen-or-more1"),
    "listen": ("127.0.0.1:7", "127.0.0.1:7"),
    "health_listen": ("127.0.0.1:50052", "127.0.0.1:50052"),
    "metrics_listen": ("127.0.0.1:50053", "127.0.0.1:50053"),
    "executor": ("local,lambda", "local,lambda"),
    "file_roots": ("/data:/more", "/data:/more"),
    "log_level": ("debug", "DEBUG"),
    "log_format": ("json", "json"),
    "function_memory_mb": ("512", 512),
}
"""What cannot be any text or number of its type."""


def test_every_setting_can_be_given_as_a_variable_and_all_but_tokens_as_an_argument():
    of_type = {"bool": ("true", True), "int": ("7", 7), "float": ("2.5", 2.5), "str": ("any", "any")}
    given = {one.name: OTHERS.get(one.name, of_type[one.type]) for one in dataclasses.fields(Settings)}
    expected = {name: value for name, (_, value) in given.items()}
    settings = load_settings({}, {f"SUPER_{name.upper()}": text for name, (text, _) in given.items()})
    assert dataclasses.asdict(settings) == expected
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = [
        word
        for name, (text, value) in given.items()
        if name != "token"
        for word in [f"--{name.replace('_', '-')}", text][: 1 if value is True else 2]
    ]
    settings = load_settings(vars(parser.parse_args(words)), {})
    assert dataclasses.asdict(settings) == expected | {"token": ""}


def test_a_file_gives_typed_values(toml):
    settings = load_settings({}, {}, toml('cache_bytes = 4096\nrequest_timeout_s = 5\nlog_level = "error"\n'))
    assert (settings.cache_bytes, settings.request_timeout_s, settings.log_level) == (4096, 5.0, "ERROR")


@pytest.mark.parametrize("text", ['"local, lambda"', '["local", "lambda"]', '"local,lambda"'])
def test_several_executors_have_their_order(toml, text):
    assert load_settings({}, {}, toml(f"executor = {text}")).executors == ("local", "lambda")


def test_a_store_is_one_that_some_functions_see(tmp_path, monkeypatch):
    directory, real = str(tmp_path / "store"), str(tmp_path.resolve() / "store")
    assert Settings(store="none").store_choice == Settings().store_choice == StoreChoice("")
    assert not {"SUPER_STORE", "SUPER_STORE_READ_ONLY"} & set(executor_context(Settings()).environment)
    mixed = Settings(store=directory, executor="lambda,local", store_read_only=True)
    told = {"SUPER_STORE": real, "SUPER_STORE_READ_ONLY": "1"}
    assert told.items() <= executor_context(mixed).environment.items()
    assert Settings(store="s3://bucket/store", executor="workers").store_choice.address == "s3://bucket/store"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Settings(store="auto").store_choice.address.startswith(str(tmp_path.resolve()))


@pytest.mark.parametrize("executor", ["lambda", "workers", "lambda,workers"])
def test_where_no_functions_see_the_store_this_machine_has_some_for_it_alone(tmp_path, executor):
    directory, real = str(tmp_path / "store"), str(tmp_path.resolve() / "store")
    settings = Settings(store=directory, executor=executor, slots=8)
    assert settings.store_choice.address == real
    (local, few), (calling_in, _) = settings.store_only
    assert (local.name, few.slots, calling_in.name) == ("local", 2, "workers")
    for changes in ({"executor": f"{executor},local"}, {"store": "s3://bucket/store"}, {"store": "none"}):
        assert dataclasses.replace(settings, **changes).store_only == []
    nowhere = {"executor": executor, "function": "no_such_module:handler"}
    words = (
        f"functions of {executor} cannot see the directory {real}, and .* cannot run no_such_module:handler"
    )
    with pytest.raises(ConfigError, match=f"{words} instead: choose a store .* s3://"):
        Settings(store=directory, **nowhere)
    assert "cannot see the directory" in Settings(store="auto", **nowhere).store_choice.reason


@pytest.mark.parametrize("text", ["", "local,", "local,local", "local,lambada"])
def test_executors_are_known_and_named_once(text):
    with pytest.raises(ConfigError, match="executor must be one of local, workers, lambda, or several"):
        Settings(executor=text)
    with pytest.raises(ConfigError, match="renamed to SUPER_SLOTS"):
        load_settings({}, {"SUPER_WORKERS": "2"})
    with pytest.raises(ConfigError, match="'ray' was replaced by 'workers'"):
        Settings(executor="ray,lambda")


@pytest.mark.parametrize("line", ["executor = [1]", "slots = 2.5", "listen = 5", "insecure = 1"])
def test_an_ill_typed_value_of_a_file_is_named_with_the_file(toml, line):
    file = toml(line)
    with pytest.raises(ConfigError, match=f"{file}: {line.split()[0]} "):
        load_settings({}, {}, file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", 0),
        ("slots", 1025),
        ("cache_bytes", -1),
        ("request_timeout_s", float("nan")),
        ("executor", "lambada"),
        ("log_level", "CHATTY"),
        ("cache_bytes", 2**60 + 1),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be .*{value}"):
        load_settings({name: value}, {})


@pytest.mark.parametrize("name", ["token", "tls_key"])
def test_a_secret_of_the_wrong_type_is_not_repeated(toml, name):
    with pytest.raises(ConfigError, match=f"{name} must be of type str, not int") as caught:
        load_settings({}, {}, toml(f"{name} = 1234567890123456\n"))
    assert "1234567890123456" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "slots = ", "\xff\xfe"])
def test_a_file_that_is_no_toml_or_not_there_is_named(toml, content):
    file = "/nowhere/coordinator.toml" if content is None else toml(content)
    with pytest.raises(ConfigError, match=f"{file} cannot be read"):
        load_settings({}, {}, file)


AWAY = "0.0.0.0:50051"
TLS = {"tls_cert": "/run/server.pem", "tls_key": "/run/server.key"}
TOKEN = {"token": "0123456789abcdef"}


@pytest.mark.parametrize(
    ("listen", "leaves"),
    [
        ("localhost:1", False),
        ("[::1]:65535", False),
        ("unix:///" + "x" * 106, False),
        ("0.0.0.0:50051", True),
        ("[2001:db8::1]:1", True),
    ],
)
def test_what_is_beyond_loopback_leaves_this_machine(listen, leaves):
    check_listen_address(listen)
    assert leaves_this_machine(listen) is leaves


def test_both_forms_of_a_socket_address_name_one_path():
    assert socket_path("unix:/run/a.sock") == socket_path("unix:///run/a.sock") == "/run/a.sock"
    assert socket_path("127.0.0.1:50051") is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        *(
            ({"listen": text}, "listen must be host:port")
            for text in ("", "50051", "[::1", "127.0.0.1:65536")
        ),
        *(({"listen": text}, "must be absolute") for text in ("unix:relative.sock", "unix:/directory/")),
        ({"listen": "unix:/" + "x" * 107}, "at most 107 bytes long, not 108"),
        ({"cache": "127.0.0.1:6379"}, "address"),
        ({"cache": "redis://10.1.2.3"}, "not at a loopback address.* rediss://.* SUPER_INSECURE"),
        ({"tls_cert": "c.pem"}, "tls_cert is set, but tls_key is not"),
        ({"tls_key": "c.key"}, "tls_key is set, but tls_cert is not"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca is set, but tls_cert is not"),
        ({"listen": "unix:/run/c.sock", **TLS}, "it does not use TLS"),
        ({"health_listen": "127.0.0.1"}, "health_listen must be host:port or unix:/path"),
        ({"health_listen": "127.0.0.1:50051"}, "health_listen and listen are both"),
        ({"metrics_listen": "9400"}, "metrics_listen must be host:port"),
        ({"metrics_listen": "unix:/run/m.sock"}, "need a host:port of their own"),
        ({"metrics_listen": "127.0.0.1:50051"}, "need a host:port of their own"),
        ({"metrics_listen": "0.0.0.0:9400"}, "metrics_listen=0.0.0.0:9400: beyond loopback .* has neither"),
    ],
)
def test_what_cannot_be_or_does_not_go_together_is_told(given, reason):
    with pytest.raises(ConfigError, match=reason):
        Settings(**given)


@pytest.mark.parametrize(
    "cache", ["redis://user:secret@127.0.0.1", "unix:///redis.sock?username=me&password=secret"]
)
def test_credentials_in_the_caches_address_are_refused_and_not_repeated(cache):
    with pytest.raises(ConfigError, match="SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD") as caught:
        Settings(cache=cache)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "lacks"),
    [({}, "has neither"), (TLS, "has no token"), (TOKEN, "has no TLS"), ({"token_file": "/t"}, "has no TLS")],
)
def test_listening_beyond_loopback_needs_tls_and_a_token(given, lacks, caplog):
    with pytest.raises(ConfigError, match=rf"listen=0\.0\.0\.0:50051: beyond loopback .*{lacks}.*--insecure"):
        Settings(listen=AWAY, **given)
    with caplog.at_level(logging.WARNING):
        warn_if_insecure(Settings(listen=AWAY, insecure=True, **given))
    assert f"INSECURE: listening on {AWAY}" in caplog.text


@pytest.mark.parametrize("token", [TOKEN, {"token_file": "/run/tokens"}])
def test_with_both_it_may_listen_anywhere_and_nobody_is_warned(token, caplog):
    warn_if_insecure(Settings(listen=AWAY, metrics_listen="0.0.0.0:9400", **TLS, **token))
    warn_if_insecure(Settings(insecure=True))
    assert not caplog.text


@pytest.mark.parametrize("token", ["zq", "0123456789abcdef,short", "0123456789 abcdef", "ü" * 20])
def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused_and_not_repeated(token):
    with pytest.raises(ConfigError, match="16 to 512 letters.*openssl rand") as caught:
        Settings(token=token)
    assert token not in str(caught.value)


@pytest.mark.parametrize("token", [",", "\n", "# a remark, or a token that begins so"])
@pytest.mark.parametrize("insecure", [False, True])
def test_a_token_that_is_none_is_not_taken_for_one(token, insecure):
    with pytest.raises(ConfigError, match="token is set but contains no token"):
        Settings(listen=AWAY, **TLS, token=token, insecure=insecure)


def test_secrets_are_in_no_picture_of_the_settings():
    settings = Settings(token="0123456789abcdef", tls_cert="cert", tls_key="-----BEGIN PRIVATE KEY-----")
    assert "0123456789abcdef" not in repr(settings)
    assert "PRIVATE" not in repr(settings)
