"""Pretrained weights: from paths and URLs, for other classes and sizes, and what is refused."""

from __future__ import annotations

import functools
import hashlib
import pickle
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
import torch

from superdl.experiments.models import build_model, load_weights
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CPU = torch.device("cpu")


def model_of(seed: int, classes: int = 5, name: str = "resnet18", side: int = 32) -> torch.nn.Module:
    torch.manual_seed(seed)
    return build_model(name, classes, CPU, side=side)


def same(one: torch.nn.Module, other: torch.nn.Module, *, but: str = "nothing") -> bool:
    theirs = other.state_dict()
    return all(
        torch.equal(value, theirs[name]) for name, value in one.state_dict().items() if but not in name
    )


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A directory and its URL; torch.hub's directory is new."""
    directory = tmp_path / "served"
    directory.mkdir()
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(directory))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    try:
        yield directory, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
def test_weights_of_torchvision_and_of_a_checkpoint_load(tmp_path, nested):
    """Those of transformers under the names of layers that torchvision's published files have, too."""
    saved, model = model_of(1, name="vit_mini"), model_of(2, name="vit_mini")
    older = {
        name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): value
        for name, value in saved.network.state_dict().items()
    }
    assert sum("linear_" in name for name in older) == 4 * 4
    weights = older if nested is None else {nested: saved.state_dict()}
    torch.save(weights, tmp_path / "weights.pt")
    assert load_weights(model, str(tmp_path / "weights.pt")) == f"weights of {tmp_path / 'weights.pt'}"
    assert same(model, saved)


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "vit_mini"])
def test_a_classifier_of_other_classes_is_left_out_and_said(tmp_path, name):
    saved, model = model_of(1, 1000, name), model_of(2, 5, name)
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    told = load_weights(model, str(tmp_path / "weights.pt"))
    head = {"small_cnn": "classifier", "resnet18": "fc", "vit_mini": "heads.head"}[name]
    assert told.endswith(f"but for the classifier ({head}.weight, {head}.bias), which is of other classes")
    assert same(model, saved, but=head)
    assert not same(model, model_of(2, 5, name))


def test_positions_of_a_transformer_are_stretched_to_the_images(tmp_path):
    saved, model = model_of(1, 5, "vit_mini", side=32), model_of(2, 5, "vit_mini", side=64)
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    load_weights(model, str(tmp_path / "weights.pt"))
    theirs = saved.network.encoder.pos_embedding
    assert model.network.encoder.pos_embedding.shape == (1, 65, 128)
    assert torch.equal(model.network.encoder.pos_embedding[:, 0], theirs[:, 0])


def test_a_file_that_is_not_there_or_holds_something_else_is_named(tmp_path):
    model = model_of(0)
    with pytest.raises(ConfigError, match=r"model\.weights: there is no file"):
        load_weights(model, str(tmp_path / "absent.pt"))
    damaged = tmp_path / "damaged.pt"
    torch.save(model.state_dict(), damaged)
    damaged.write_bytes(damaged.read_bytes()[:5000])
    with pytest.raises(ConfigError, match="no file of weights that torch.load reads"):
        load_weights(model, str(damaged))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="holds no state dict but list"):
        load_weights(model, str(tmp_path / "list.pt"))
    torch.save(model_of(0, name="resnet50").state_dict(), tmp_path / "other.pt")
    with pytest.raises(ConfigError, match=r"other\.pt is of another model: of another shape are layer1"):
        load_weights(model, str(tmp_path / "other.pt"))


class _Evil:
    def __reduce__(self):
        return (pytest.fail, ("code of a file of weights was run",))


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_not_run(tmp_path, zipped):
    path = tmp_path / "evil.pt"
    if zipped:
        torch.save({"fc.weight": _Evil()}, path)
    else:
        path.write_bytes(pickle.dumps(_Evil(), protocol=2))
    with pytest.raises(ConfigError, match="no file of weights"):
        load_weights(model_of(0), str(path))


def test_a_url_is_downloaded_once_and_held_to_the_hash_in_its_name(served):
    directory, url = served
    saved, model = model_of(1), model_of(2)
    torch.save(saved.network.state_dict(), directory / "weights.pth")
    content = (directory / "weights.pth").read_bytes()
    name = f"resnet18-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    (directory / name).write_bytes(content)
    load_weights(model, f"{url}/{name}")
    assert same(model, saved)
    (directory / name).unlink()
    load_weights(model_of(3), f"{url}/{name}")  # it is in torch.hub's directory

    (directory / "resnet18-00000000.pth").write_bytes(content)
    with pytest.raises(ConfigError, match="does not begin with 00000000 as its name says"):
        load_weights(model, f"{url}/resnet18-00000000.pth")
    with pytest.raises(ConfigError, match=r"absent\.pth could not be downloaded: HTTP Error 404"):
        load_weights(model, f"{url}/absent.pth")


def test_a_url_that_anyone_could_change_on_the_way_is_refused():
    with pytest.raises(ConfigError, match="neither of https nor named with its whole SHA-256"):
        load_weights(model_of(0), "http://models.example/resnet18.pth")
    with pytest.raises(ConfigError, match="neither of https nor named with its whole SHA-256"):
        load_weights(model_of(0), "http://models.example/resnet18-f37072fd.pth")
    with pytest.raises(ConfigError, match=r"a path, or a URL of https; not ftp://\*\*\*@models"):
        load_weights(model_of(0), "ftp://me:secret@models.example/resnet18.pth")


@pytest.mark.parametrize("target", ["http://models.example/weights.pth", "ftp://models.example/weights.pth"])
def test_a_redirect_to_what_anyone_could_change_is_not_followed(served, monkeypatch, target):
    _, url = served

    def redirect(handler):
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    monkeypatch.setattr(SimpleHTTPRequestHandler, "do_GET", redirect)
    with pytest.raises(
        ConfigError, match=r"(http|ftp)://models\.example/weights\.pth is neither of https nor"
    ):
        load_weights(model_of(0), f"{url}/resnet18-f37072fd.pth")


def test_urls_of_one_name_have_a_file_each_which_is_downloaded_once(served, tmp_path):
    directory, url = served
    others = tmp_path / "hub" / "checkpoints" / "weights.pth"
    others.parent.mkdir(parents=True)
    others.write_bytes(b"another tool's")
    for seed, folder in ((1, "a"), (2, "b")):
        (directory / folder).mkdir()
        torch.save(model_of(seed).network.state_dict(), directory / folder / "weights.pth")
    for seed, folder in ((1, "a"), (2, "b"), (1, "a")):
        model = model_of(3)
        load_weights(model, f"{url}/{folder}/weights.pth")
        assert same(model, model_of(seed))
        (directory / folder / "weights.pth").unlink(missing_ok=True)
    assert others.read_bytes() == b"another tool's"
