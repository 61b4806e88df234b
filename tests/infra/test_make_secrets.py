"""Certificates and tokens are stored in Secrets Manager once, renewed when due, and valid for TLS."""

import contextlib
import json
import ssl

import pytest

from infra.make_secrets import Pair, days_left, main, new_authority, sign
from tests.infra.account import client

HOST = "coordinator.super-1.internal"


@pytest.fixture
def manager(aws):
    return client("secretsmanager")


def run(capsys, *words):
    """The parameters that it prints, and what it said."""
    assert main(["--stack", "super-1", *words]) == 0
    shown = capsys.readouterr()
    return dict(word.split("=", 1) for word in shown.out.split()), shown.err


def content(manager, name):
    return json.loads(manager.get_secret_value(SecretId=f"super-1/{name}")["SecretString"])


def everything(manager):
    names = [secret["Name"] for secret in manager.list_secrets()["SecretList"]]
    return {name: manager.get_secret_value(SecretId=name)["SecretString"] for name in names}


def changed(manager, before):
    """The secrets that differ from what they were."""
    after = everything(manager)
    assert after.keys() >= before.keys()
    return {name for name in before if before[name] != after[name]}


def shakes_hands(server, client, host):
    """Whether two ends of TLS agree; raises what either has against it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(8):
        for end in list(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
    return not ends


def context_of(tmp_path, cert, key, *, ca, is_server):
    """A context with a certificate, which trusts ``ca``; Python loads keys from files alone."""
    (tmp_path / "pair.pem").write_text(cert + key)
    if is_server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(cadata=ca)
        context.verify_mode = ssl.CERT_REQUIRED
    else:
        context = ssl.create_default_context(cadata=ca)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python 3.13's default
    context.load_cert_chain(tmp_path / "pair.pem")
    return context


def test_the_first_run_makes_what_the_template_asks_for(manager, capsys):
    parameters, _ = run(capsys)
    assert set(parameters) == {"CoordinatorSecretArn", "TokenSecretArn", "CaSecretArn"}
    assert all(arn.startswith("arn:aws:secretsmanager:us-east-1:") for arn in parameters.values())
    assert set(everything(manager)) == {f"super-1/{n}" for n in ("authority", "ca", "coordinator", "token")}
    token = content(manager, "token")
    assert token["accepted"] == token["token"]
    assert len(token["token"]) >= 32
    for secret in manager.list_secrets()["SecretList"]:
        assert {"Key": "super:stack", "Value": "super-1"} in secret["Tags"], secret["Name"]


def test_another_run_changes_nothing_but_what_is_to_be_renewed(manager, capsys):
    parameters, said = run(capsys, "--mutual-tls")
    shown = f"{parameters}{said}"
    assert "PRIVATE KEY" not in shown + repr(new_authority("a"))
    assert content(manager, "token")["token"] not in shown
    before = everything(manager)
    assert run(capsys) == (parameters, "")  # the trainers' certificate is kept up once there is one
    assert changed(manager, before) == set()
    assert run(capsys, "--renew")[0] == parameters
    assert changed(manager, before) == {"super-1/coordinator", "super-1/client"}


def test_both_sides_take_the_certificates_of_this_stack_and_no_others(manager, capsys, tmp_path):
    assert "ClientSecretArn" in run(capsys, "--mutual-tls")[0]
    pair, ca, trainer = (content(manager, name) for name in ("coordinator", "ca", "client"))
    server = context_of(tmp_path, pair["cert"], pair["key"], ca=pair["client_ca"], is_server=True)
    client = context_of(tmp_path, trainer["cert"], trainer["key"], ca=ca["cert"], is_server=False)
    assert shakes_hands(server, client, HOST)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shakes_hands(server, client, "coordinator.super-2.internal")
    other = new_authority("other")
    stranger = sign(other, "client.super-1.internal", days=1)
    for cert, key, trusted in (
        (trainer["cert"], trainer["key"], other.cert),
        (stranger.cert, stranger.key, ca["cert"]),
    ):
        with pytest.raises(ssl.SSLError):
            shakes_hands(server, context_of(tmp_path, cert, key, ca=trusted, is_server=False), HOST)


def test_a_certificate_that_runs_out_within_a_month_is_renewed(manager, capsys):
    run(capsys)
    kept = content(manager, "authority")
    old = sign(Pair(kept["cert"], kept["key"]), HOST, days=29)
    aged = {"cert": old.cert, "key": old.key, "client_ca": kept["cert"]}
    manager.put_secret_value(SecretId="super-1/coordinator", SecretString=json.dumps(aged))
    run(capsys)
    assert days_left(content(manager, "coordinator")["cert"]) > 390


def test_a_token_is_rotated_without_a_gap(manager, capsys):
    run(capsys)
    tokens = [content(manager, "token")["token"]]
    for _ in range(2):
        run(capsys, "--rotate-token")
        tokens.insert(0, content(manager, "token")["token"])
        assert content(manager, "token")["accepted"] == ",".join(tokens)
    assert len(set(tokens)) == 3
    run(capsys, "--retire-token")
    assert content(manager, "token") == {"token": tokens[0], "accepted": tokens[0]}


@pytest.mark.slow
def test_what_was_marked_for_deletion_comes_back(manager, capsys):
    run(capsys)
    before = content(manager, "token")
    manager.delete_secret(SecretId="super-1/token", RecoveryWindowInDays=7)
    run(capsys)
    assert content(manager, "token") == before


@pytest.mark.parametrize("name", ["Super", "super_1", "super-", "a--b", "1a", "a" * 25])
def test_a_name_that_elasticache_would_not_take(name, capsys):
    with pytest.raises(SystemExit):
        main(["--stack", name])
    assert name in capsys.readouterr().err


@pytest.mark.usefixtures("aws")
def test_the_region_is_the_clis_and_what_is_missing_is_named(capsys, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert run(capsys)[0]["TokenSecretArn"].split(":")[3] == "eu-west-1"
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert main(["--stack", "super-1"]) == 1
    assert "AWS_DEFAULT_REGION" in capsys.readouterr().err
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    assert main(["--stack", "super-1", "--region", "us-east-1"]) == 1
    assert "Secrets Manager" in capsys.readouterr().err
