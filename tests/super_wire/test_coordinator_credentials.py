"""What a client is let in with: from its environment alone, and which hosts it speaks to by TLS."""

from __future__ import annotations

import pytest

from superdl.super_wire.credentials import CoordinatorCredentials, insecure_in, is_loopback, parse_tokens
from superdl.super_wire.errors import ConfigError

TOKEN = "0123456789abcdef"


def test_the_token_itself_goes_before_its_file_and_the_first_before_others():
    """So that both sides may have the same variable."""
    found = CoordinatorCredentials.from_environment(
        {"SUPER_TOKEN": f"{TOKEN},other-{TOKEN}", "SUPER_TOKEN_FILE": "/x"}
    )
    assert found.current_token() == TOKEN
    assert TOKEN not in repr(found)


@pytest.mark.parametrize("name", ["SUPER_COORDINATOR_CERT_FILE", "SUPER_COORDINATOR_KEY_FILE"])
def test_certificate_and_key_belong_together(name):
    with pytest.raises(ConfigError, match="belong together"):
        CoordinatorCredentials.from_environment({name: "/x.pem"})


@pytest.mark.parametrize(
    "environment",
    [
        {"SUPER_TOKEN": "too-short-zq"},
        {"SUPER_TOKEN": " , "},
        {"SUPER_TOKEN": "# too-short-zq"},
        {"SUPER_TOKEN_FILE": "/nowhere/token"},
    ],
)
def test_what_is_no_token_is_told_when_the_client_is_made(environment):
    (name,) = environment
    with pytest.raises(ConfigError, match=name) as caught:
        CoordinatorCredentials.from_environment(environment)
    assert "too-short-zq" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "encrypted"),
    [
        ({}, [False, False, False, True]),
        ({"ca_file": "/ca.pem"}, [False, True, True, True]),
        ({"insecure": True}, [False, False, False, False]),
        ({"insecure": True, "ca_file": "/ca.pem"}, [False, True, True, True]),
    ],
)
def test_who_is_spoken_to_by_tls(given, encrypted):
    hosts = ("", "localhost", "::1", "10.1.2.3")
    assert [CoordinatorCredentials(**given).encrypts(host) for host in hosts] == encrypted


def test_loopback_is_this_machine_alone():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "localhost", "LocalHost", "::1")))
    others = ("0.0.0.0", "::", "10.0.0.7", "fe80::1", "localhost.example.org", "example.org", "")
    assert not any(map(is_loopback, others))


@pytest.mark.parametrize(
    ("text", "meant"), [("", False), ("0", False), ("FALSE", False), ("1", True), ("true", True)]
)
def test_insecure_is_yes_or_no(text, meant):
    assert insecure_in({"SUPER_INSECURE": text}) is meant


def test_tokens_stand_in_lines_and_between_commas():
    text = f"# remark\n {TOKEN} , b{TOKEN} team=a  share=3\n\nc{TOKEN}\n"
    assert parse_tokens(text, "x") == (
        (TOKEN, {}),
        (f"b{TOKEN}", {"team": "a", "share": "3"}),
        (f"c{TOKEN}", {}),
    )


@pytest.mark.parametrize("word", ["teams=a", "team=", TOKEN, "share=1=2 x", "=", "team"])
def test_a_word_after_a_token_that_says_nothing_is_refused_and_not_repeated(word):
    with pytest.raises(
        ConfigError, match="x: after token 2 of 2 there is what is none of team=NAME"
    ) as caught:
        parse_tokens(f"{TOKEN}\nb{TOKEN} {word}", "x")
    assert TOKEN not in str(caught.value)
