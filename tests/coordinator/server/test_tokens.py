"""Which tokens are accepted, also after their file has changed, and how others are refused."""

import logging

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from superdl.coordinator.core import Team
from superdl.coordinator.server.tokens import Tokens
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import ERROR_METADATA_KEY
from tests.coordinator.running import serving

ONE, TWO, THREE = "0123456789abcdef", "fedcba9876543210", "a-third-one-that-is-longer"


def test_any_of_several_tokens_is_accepted_and_nothing_similar():
    tokens = Tokens(f" {ONE}, {TWO},")
    assert tokens.accept(ONE)
    assert tokens.accept(TWO)
    for wrong in ("", ONE[:-1], ONE + "0", f"{ONE},{TWO}", ONE.upper(), "\udcff", "\0"):
        assert not tokens.accept(wrong)


def test_a_token_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path, caplog):
    file = tmp_path / "tokens"
    file.write_text(f"# of the first team\n{ONE}\r\n\n{TWO}\n")
    tokens = Tokens(THREE, str(file))
    assert all(map(tokens.accept, (ONE, TWO, THREE)))
    file.write_text(f"{TWO}\n")
    assert list(map(tokens.accept, (ONE, TWO, THREE))) == [False, True, True]
    with caplog.at_level(logging.ERROR):
        file.unlink()
        assert tokens.accept(TWO)  # replacing the file must not lock anyone out
        file.write_text("short\n")
        assert tokens.accept(TWO)
    assert caplog.text.count("keeping the previous tokens") == 2
    assert not any(token in caplog.text for token in (ONE, TWO, THREE, "short"))


@pytest.mark.parametrize("content", ["", "# all revoked\n"])
def test_emptying_the_file_revokes_its_tokens(tmp_path, content):
    file = tmp_path / "tokens"
    file.write_text(f"{ONE}\n")
    tokens, alone = Tokens(TWO, str(file)), Tokens("", str(file))
    file.write_text(content)
    assert list(map(tokens.accept, (ONE, TWO))) == [False, True]
    assert not any(map(alone.accept, (ONE, TWO, "")))
    file.unlink()
    assert not tokens.accept(ONE)
    file.write_text(f"{THREE}\n")
    assert tokens.accept(THREE)


def test_a_clients_own_token_keeps_its_team(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"{ONE} team=vision\n")
    assert Tokens(f"{ONE},{TWO}", str(file)).team(ONE) == "vision"
    file.write_text(f"{ONE}\n")
    assert Tokens(f"{ONE} team=vision", str(file)).team(ONE) == "vision"


def test_a_token_file_names_teams_and_their_limits(tmp_path, caplog):
    file = tmp_path / "tokens"
    file.write_text(f"{ONE} team=vision share=3 max_usd=20\n{TWO} team=vision\n{THREE}\n")
    tokens = Tokens("", str(file))
    assert [tokens.team(token) for token in (ONE, TWO, THREE, "unknown")] == ["vision", "vision", "", ""]
    assert tokens.teams_now() == (Team("vision", share=3.0, max_usd=20.0),)
    file.write_text(f"{ONE} team=speech priority=-1\n")
    assert tokens.teams_now() == (Team("speech", priority=-1),)
    file.write_text(f"{ONE} team=speech share=many\n")
    assert tokens.teams_now() == (Team("speech", priority=-1),)
    assert "keeping the previous tokens: token_file: team speech: share and max_usd must be" in caplog.text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "token_file=.*No such file"),
        ("", "token_file=.*contains no token"),
        ("\xff" * 20, "token_file=.*non-ASCII"),
        ("short", "token_file=.*has 5 characters"),
        (f"{ONE} share=3", "token 1 of 1 .* add team=NAME"),
        (f"{ONE} team=a share=3\n{TWO} team=a share=4", "token 2 of 2 .* share"),
        (f"{ONE} team=a priority=0.5", "token_file: team a: .* priority must be an integer"),
        (f"{ONE} team=a share=0", "team a: share must be from 0.001"),
        (f"{ONE} team=a share=nan", "team a: share must be"),
        (f"{ONE} team=a priority=2000", "team a: priority must be from -1000 to 1000"),
        (f"{ONE} team=a max_usd=-1", "team a: max_usd must be from 0"),
        (f"{ONE} team=a/b", "a team's name must .* 1 to 64 letters"),
        (f"{ONE} {TWO}", "second token on a line of its own"),
        (f"{ONE} team=a team=b", "each at most once"),
        (f"{ONE} team=a\n{ONE} team=b", "token 2 of 2 was already listed for another team"),
        (f"{ONE} team=vision, max_usd=1000000000", "token 2 of 2 begins with team="),
        (f"{ONE}\nteam=computer-vision", "after their token"),
    ],
)
def test_a_file_without_valid_tokens_and_teams_is_refused(tmp_path, content, reason):
    file = tmp_path / "tokens"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=reason) as caught:
        Tokens("", str(file))
    assert not any(token in str(caught.value) for token in (ONE, TWO))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((), "requires a token: set SUPER_TOKEN"),
        ((("authorization", ONE),), "requires a token"),
        ((("authorization", f"Basic {ONE}"),), "requires a token"),
        ((("authorization", f"Bearer {ONE}"), ("authorization", f"Bearer {ONE}")), "requires a token"),
        ((("authorization", f"Bearer {TWO}"),), "does not accept this token"),
        ((("authorization", "Bearer "),), "does not accept this token"),
    ],
)
def test_a_missing_or_wrong_token_is_refused_by_every_method(serving_loop, metadata, reason):
    def call(port, _):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            right = (("authorization", f"Bearer {ONE}"),)
            assert CoordinatorStub(channel).CloseJob(pb.CloseJobRequest(), metadata=right, timeout=10).closed
            health = health_pb2_grpc.HealthStub(channel)
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status == 1
            for method in (
                "super.v1.Coordinator/CloseJob",
                "super.v1.Coordinator/RegisterDataset",
                "super.v1.Coordinator/NoSuchMethod",
                "no.such.Service/Method",
                "grpc.health.v1.Health/Watch",
                "grpc.health.v1.Health/CheckNot",
            ):
                ask = channel.unary_unary(f"/{method}")
                with pytest.raises(grpc.RpcError, match=reason) as caught:
                    ask(b"", metadata=metadata, timeout=10)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert (ERROR_METADATA_KEY, "CoordinatorTrustError") in caught.value.trailing_metadata()
                assert not any(token in caught.value.details() for token in (ONE, TWO))

    serving(serving_loop, call, tokens=Tokens(ONE))
