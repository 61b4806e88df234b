"""Settings: precedence of sources, refusals by name, and requirements for remote access."""

import argparse
import dataclasses
import logging

import pytest

from superdl.coordinator.server.settings import Settings, add_arguments, executor_context, load_settings
from superdl.coordinator.server.trust import check_listen_address, leaves_this_machine, warn_if_insecure
from superdl.coordinator.store.opening import StoreChoice
from superdl.super_wire.errors import ConfigError


@pytest.fixture
def toml(tmp_path):
    """Return a function that writes a settings file."""

    def write(text):
        path = tmp_path / "coordinator.toml"
        path.write_text(text, encoding="latin-1")
        return str(path)

    return write


def test_arguments_win_over_variables_over_the_file_over_defaults(toml):
    file = toml("slots = 2\nrequest_samples = 2\nlookahead_batches = 2\nrequest_timeout_s = 5\n")
    environment = {"SUPER_SLOTS": "3", "SUPER_REQUEST_SAMPLES": "3", "SUPER_LISTEN": ""}
    assert load_settings({}, {}) == load_settings({"listen": None}, {"SUPER_LISTEN": ""}) == Settings()
    settings = load_settings({"slots": 4, "listen": None}, environment, file)
    assert (settings.slots, settings.request_samples, settings.lookahead_batches) == (4, 3, 2)
    assert settings.request_timeout_s == 5.0
    assert settings.catalog_max_age_s == Settings().catalog_max_age_s


# Settings that cannot be any text or number of their type.
VALUES = {
    **dict.fromkeys(("cache_bytes", "store_bytes", "shard_cache_bytes"), ("1.5gb", 3 * 2**29)),
    "log_level": ("debug", "DEBUG"),
    "function_memory_mb": ("512", 512),
    **{
        name: (text, text)
        for name, text in {
            "store": "s3://bucket/store",
            "cache": "unix:///run/redis.sock",
            "token": "sixteen-or-more1",
            "listen": "127.0.0.1:7",
            "health_listen": "127.0.0.1:50052",
            "metrics_listen": "127.0.0.1:50053",
            "executor": "local,lambda",
            "file_roots": "/data:/more",
            "log_format": "json",
        }.items()
    },
}


def test_every_setting_is_a_variable_and_all_but_tokens_are_arguments():
    of_type = {"bool": ("true", True), "int": ("7", 7), "float": ("2.5", 2.5), "str": ("any", "any")}
    given = {
        field.name: VALUES.get(field.name, of_type[field.type]) for field in dataclasses.fields(Settings)
    }
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


def test_the_store_must_be_accessible_to_some_functions(tmp_path, monkeypatch):
    directory, real = str(tmp_path / "store"), str(tmp_path.resolve() / "store")
    assert Settings(store="none").store_choice == Settings().store_choice == StoreChoice("")
    assert not {"SUPER_STORE", "SUPER_STORE_READ_ONLY"} & set(executor_context(Settings()).environment)
    mixed = Settings(store=directory, executor="lambda,local", store_read_only=True)
    variables = {"SUPER_STORE": real, "SUPER_STORE_READ_ONLY": "1"}
    assert variables.items() <= executor_context(mixed).environment.items()
    assert Settings(store="s3://bucket/store", executor="workers").store_choice.address == "s3://bucket/store"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Settings(store="auto").store_choice.address.startswith(str(tmp_path.resolve()))


@pytest.mark.parametrize("executor", ["lambda", "workers", "lambda,workers"])
def test_local_functions_serve_a_store_that_no_others_can_access(tmp_path, executor):
    directory, real = str(tmp_path / "store"), str(tmp_path.resolve() / "store")
    settings = Settings(store=directory, executor=executor, slots=8)
    assert settings.store_choice.address == real
    (local, few), (workers, _) = settings.store_only
    assert (local.name, few.slots, workers.name) == ("local", 2, "workers")
    for changes in ({"executor": f"{executor},local"}, {"store": "s3://bucket/store"}, {"store": "none"}):
        assert dataclasses.replace(settings, **changes).store_only == []
    nowhere = {"executor": executor, "function": "no_such_module:handler"}
    with pytest.raises(ConfigError, match=f"directory {real}, .* cannot run no_such_module:handler.* s3://"):
        Settings(store=directory, **nowhere)
    assert "cannot access the directory" in Settings(store="auto", **nowhere).store_choice.reason


AWAY = "0.0.0.0:50051"
TLS = {"tls_cert": "/run/server.pem", "tls_key": "/run/server.key"}
TOKEN = {"token": "0123456789abcdef"}
REFUSED = [  # settings, and what the error names
    *(({"executor": text}, "executor must be one of") for text in ("", "local,", "local,local", "lambada")),
    ({"executor": "ray,lambda"}, "'ray' was replaced by 'workers'"),
    ({"slots": 0}, "slots must be .*0"),
    ({"slots": 1025}, "slots must be .*1025"),
    ({"cache_bytes": -1}, "cache_bytes must be .*-1"),
    ({"cache_bytes": 2**60 + 1}, "cache_bytes must be"),
    ({"request_timeout_s": float("nan")}, "request_timeout_s must be .*nan"),
    ({"log_level": "CHATTY"}, "log_level must be .*CHATTY"),
    *(({"listen": text}, "listen must be host:port") for text in ("", "50051", "[::1", "127.0.0.1:65536")),
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
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
def test_invalid_and_contradictory_settings_are_refused_by_name(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        Settings(**settings)


@pytest.mark.parametrize(
    "content",
    [None, "slots = ", "\xff\xfe", "executor = 1", "slots = 2.5", "listen = 5", "insecure = 1", "speed = 1"],
)
def test_a_settings_file_that_cannot_be_used_is_named(toml, content):
    file = "/nowhere/coordinator.toml" if content is None else toml(content)
    with pytest.raises(ConfigError, match=file):
        load_settings({}, {}, file)


@pytest.mark.parametrize("name", ["token", "tls_key"])
def test_errors_do_not_repeat_a_secret(toml, name):
    with pytest.raises(ConfigError, match=f"{name} must be of type str, not int") as caught:
        load_settings({}, {}, toml(f"{name} = 1234567890123456\n"))
    assert "1234567890123456" not in str(caught.value)


@pytest.mark.parametrize(
    "cache", ["redis://user:secret@127.0.0.1", "unix:///redis.sock?username=me&password=secret"]
)
def test_credentials_in_the_caches_address_are_refused_without_repeating_them(cache):
    with pytest.raises(ConfigError, match="SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD") as caught:
        Settings(cache=cache)
    assert "secret" not in str(caught.value)


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
def test_other_machines_reach_only_addresses_beyond_loopback(listen, leaves):
    check_listen_address(listen)
    assert leaves_this_machine(listen) is leaves


@pytest.mark.parametrize(
    ("protection", "lacks"),
    [({}, "has neither"), (TLS, "has no token"), (TOKEN, "has no TLS"), ({"token_file": "/t"}, "has no TLS")],
)
def test_listening_beyond_loopback_requires_tls_and_a_token(protection, lacks, caplog):
    with pytest.raises(ConfigError, match=rf"listen=0\.0\.0\.0:50051: beyond loopback .*{lacks}.*--insecure"):
        Settings(listen=AWAY, **protection)
    with caplog.at_level(logging.WARNING):
        warn_if_insecure(Settings(listen=AWAY, insecure=True, **protection))
    assert f"INSECURE: listen={AWAY} {lacks}" in caplog.text


@pytest.mark.parametrize("token", [TOKEN, {"token_file": "/run/tokens"}])
def test_with_tls_and_a_token_nobody_is_warned(token, caplog):
    warn_if_insecure(Settings(listen=AWAY, metrics_listen="0.0.0.0:9400", **TLS, **token))
    warn_if_insecure(Settings(insecure=True))
    assert not caplog.text


@pytest.mark.parametrize("token", ["zq", "0123456789abcdef,short", "0123456789 abcdef", "ü" * 20])
def test_tokens_that_could_be_guessed_or_not_be_sent_are_refused_without_repeating_them(token):
    with pytest.raises(ConfigError, match="16 to 512 letters.*openssl rand") as caught:
        Settings(token=token)
    assert token not in str(caught.value)


@pytest.mark.parametrize("token", [",", "\n", "# a remark, or a token that begins so"])
@pytest.mark.parametrize("insecure", [False, True])
def test_a_setting_without_a_token_in_it_is_refused(token, insecure):
    with pytest.raises(ConfigError, match="token is set but contains no token"):
        Settings(listen=AWAY, **TLS, token=token, insecure=insecure)


def test_the_settings_repr_has_no_secrets():
    settings = Settings(token="0123456789abcdef", tls_cert="cert", tls_key="-----BEGIN PRIVATE KEY-----")
    assert "0123456789abcdef" not in repr(settings)
    assert "PRIVATE" not in repr(settings)


def test_a_renamed_variable_is_refused():
    with pytest.raises(ConfigError, match="SUPER_SLOTS"):
        load_settings({}, {"SUPER_WORKERS": "2"})
