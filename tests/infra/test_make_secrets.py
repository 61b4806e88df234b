"""Certificates and tokens get into Secrets Manager once, are renewed when due, and are good for TLS."""

from __future__ import annotations

import json
import ssl

import pytest

from infra import make_secrets as module
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


def shakes_hands(server, client, host):
    """Whether two ends of TLS agree; raises what one of them has against it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    done = set()
    for _ in range(8):
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    return len(done) == 2


def server_context(tmp_path, pair, client_ca=""):
    """A server's; Python loads keys from files alone."""
    (tmp_path / "cert.pem").write_text(pair["cert"])
    (tmp_path / "key.pem").write_text(pair["key"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    if client_ca:
        context.load_verify_locations(cadata=client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca):
    context = ssl.create_default_context(cadata=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python 3.13's default
    return context


def test_the_first_run_makes_what_the_template_asks_for(manager, capsys):
    parameters, _ = run(capsys)
    assert set(parameters) == {"CoordinatorSecretArn", "TokenSecretArn", "CaSecretArn"}
    assert all(arn.startswith("arn:aws:secretsmanager:us-east-1:") for arn in parameters.values())
    assert set(everything(manager)) == {f"super-1/{n}" for n in ("authority", "ca", "coordinator", "token")}
    assert set(content(manager, "coordinator")) == {"cert", "key", "client_ca"}
    token = content(manager, "token")
    assert token["accepted"] == token["token"]
    assert len(token["token"]) >= 32
    for secret in manager.list_secrets()["SecretList"]:
        assert {"Key": "super:stack", "Value": "super-1"} in secret["Tags"], secret["Name"]
    assert "PRIVATE KEY" not in repr(new_authority("a"))


def test_another_run_changes_nothing_but_what_is_to_be_renewed(manager, capsys):
    parameters, said = run(capsys, "--mutual-tls")
    shown = f"{parameters}{said}"
    assert "PRIVATE KEY" not in shown
    assert content(manager, "token")["token"] not in shown
    before = everything(manager)
    again, said = run(capsys)  # the trainers' certificate is kept up once there is one
    assert (again, everything(manager), said) == (parameters, before, "")
    again, said = run(capsys, "--renew")
    assert "renewed super-1/client" in said
    after = everything(manager)
    assert {name for name in before if before[name] != after[name]} == {
        *("super-1/coordinator", "super-1/client")
    }
    assert again == parameters


def test_the_certificate_is_good_for_the_private_name(manager, capsys, tmp_path):
    run(capsys)
    pair, ca = content(manager, "coordinator"), content(manager, "ca")["cert"]
    server = server_context(tmp_path, pair)
    assert shakes_hands(server, client_context(ca), HOST)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shakes_hands(server, client_context(ca), "coordinator.super-2.internal")
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(server, client_context(new_authority("other").cert), HOST)


def test_mutual_tls_takes_the_trainers_certificate_and_no_other(manager, capsys, tmp_path):
    parameters, _ = run(capsys, "--mutual-tls")
    assert "ClientSecretArn" in parameters
    pair, ca, trainer = (content(manager, name) for name in ("coordinator", "ca", "client"))
    server = server_context(tmp_path, pair, pair["client_ca"])
    (tmp_path / "c.pem").write_text(trainer["cert"] + trainer["key"])
    client = client_context(ca["cert"])
    client.load_cert_chain(tmp_path / "c.pem")
    assert shakes_hands(server, client, HOST)
    stranger = sign(new_authority("other"), "client.super-1.internal", days=1)
    (tmp_path / "c.pem").write_text(stranger.cert + stranger.key)
    client.load_cert_chain(tmp_path / "c.pem")
    with pytest.raises(ssl.SSLError):
        shakes_hands(server, client, HOST)


def test_a_certificate_that_runs_out_within_a_month_is_renewed(manager, capsys):
    run(capsys)
    kept = content(manager, "authority")
    old = sign(Pair(kept["cert"], kept["key"]), HOST, days=29)
    aged = {"cert": old.cert, "key": old.key, "client_ca": kept["cert"]}
    manager.put_secret_value(SecretId="super-1/coordinator", SecretString=json.dumps(aged))
    _, said = run(capsys)
    assert "renewed super-1/coordinator" in said
    assert days_left(content(manager, "coordinator")["cert"]) > 390


@pytest.mark.slow
def test_an_authority_that_runs_out_is_told_of(manager, capsys, monkeypatch):
    run(capsys)
    monkeypatch.setattr(module, "_VALID_DAYS", 10**6)
    assert "delete the secret super-1/authority for good" in run(capsys)[1]


@pytest.mark.slow
def test_another_authority_signs_everything_anew(manager, capsys):
    run(capsys, "--mutual-tls")
    manager.delete_secret(SecretId="super-1/authority", ForceDeleteWithoutRecovery=True)
    before = everything(manager)
    run(capsys, "--mutual-tls")
    after = everything(manager)
    assert {n for n in before if before[n] != after[n]} == {
        f"super-1/{name}" for name in ("ca", "coordinator", "client")
    }


def test_a_token_is_rotated_without_a_gap(manager, capsys):
    run(capsys)
    old = content(manager, "token")["token"]
    run(capsys, "--rotate-token")
    both = content(manager, "token")
    assert both["token"] != old
    assert both["accepted"] == f"{both['token']},{old}"
    run(capsys, "--rotate-token")
    three = content(manager, "token")
    assert three["accepted"] == f"{three['token']},{both['token']},{old}"
    run(capsys, "--retire-token")
    assert content(manager, "token") == {"token": three["token"], "accepted": three["token"]}


@pytest.mark.slow
def test_what_was_marked_for_deletion_comes_back(manager, capsys):
    run(capsys)
    before = content(manager, "token")
    manager.delete_secret(SecretId="super-1/token", RecoveryWindowInDays=7)
    assert "restored super-1/token" in run(capsys)[1]
    assert content(manager, "token") == before


@pytest.mark.parametrize("name", ["Super", "super_1", "super-", "a--b", "1a", "a" * 25])
def test_a_name_that_elasticache_would_not_take(name, capsys):
    with pytest.raises(SystemExit):
        main(["--stack", name])
    assert "at most 24 lower-case" in capsys.readouterr().err


def test_no_way_to_aws_is_one_sentence(monkeypatch, capsys):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    assert main(["--stack", "super-1", "--region", "us-east-1"]) == 1
    assert "Secrets Manager: " in capsys.readouterr().err


def test_the_region_is_the_clis(manager, capsys, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    parameters, _ = run(capsys)
    assert parameters["TokenSecretArn"].split(":")[3] == "eu-west-1"
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert main(["--stack", "super-1"]) == 1
    assert "name the region: --region, AWS_REGION or AWS_DEFAULT_REGION" in capsys.readouterr().err
