"""Models: shapes, sizes and layouts of their inputs, and pretrained weights."""

import pickle

import pytest
import torch

from superdl.experiments.models import build_model, load_weights
from superdl.super_wire.errors import ConfigError

CPU = torch.device("cpu")


def random_images(side, count=2):
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("name", "side", "parameters"),
    [
        ("small_cnn", 8, 140e3),
        ("small_cnn", 37, 140e3),
        ("resnet18", 40, 11.2e6),
        ("resnet50", 40, 23.5e6),
        ("vit_b_32", 64, 87.4e6),
        ("vit_mini", 64, 0.564e6),
    ],
)
def test_a_model_accepts_uint8_in_either_layout(name, side, parameters):
    torch.manual_seed(0)
    model = build_model(name, 7, CPU, side=side).eval()
    images = random_images(side)
    with torch.inference_mode():
        logits = model(images)
        torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), logits)
    assert (logits.shape, logits.dtype) == ((2, 7), torch.float32)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(parameters, rel=0.05)
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


# ----------------------------------------------------------------------------------- pretrained weights


def model_of(seed, classes=5, name="resnet18", side=32):
    torch.manual_seed(seed)
    return build_model(name, classes, CPU, side=side)


def equal(model, other, *, except_for="nothing"):
    values = other.state_dict()
    return all(
        torch.equal(value, values[name])
        for name, value in model.state_dict().items()
        if except_for not in name
    )


@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
def test_weights_of_torchvision_and_of_checkpoints_load(tmp_path, nested):
    """Published transformers have older names of layers, which load too."""
    saved, model = model_of(1, name="vit_mini"), model_of(2, name="vit_mini")
    older = {
        name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): value
        for name, value in saved.network.state_dict().items()
    }
    assert sum("linear_" in name for name in older) == 4 * 4
    torch.save(older if nested is None else {nested: saved.state_dict()}, tmp_path / "weights.pt")
    assert load_weights(model, str(tmp_path / "weights.pt")) == f"weights of {tmp_path / 'weights.pt'}"
    assert equal(model, saved)


@pytest.mark.parametrize(
    ("name", "head"), [("small_cnn", "classifier"), ("resnet18", "fc"), ("vit_mini", "heads.head")]
)
def test_a_classifier_of_other_classes_is_skipped(tmp_path, name, head):
    saved, model = model_of(1, 1000, name), model_of(2, 5, name)
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    note = load_weights(model, str(tmp_path / "weights.pt"))
    assert note.endswith(f"except for the classifier of other classes ({head}.weight, {head}.bias)")
    assert equal(model, saved, except_for=head)
    assert not equal(model, model_of(2, 5, name))


class _Evil:
    def __reduce__(self):
        return (pytest.fail, ("ran code from a file of weights",))


def test_a_file_without_weights_is_refused_and_its_code_is_not_run(tmp_path):
    path = tmp_path / "weights.pt"

    def refused(message):
        with pytest.raises(ConfigError, match=message):
            load_weights(model_of(0), str(path))

    refused(r"model\.weights: there is no file")
    torch.save(model_of(0).state_dict(), path)
    path.write_bytes(path.read_bytes()[:5000])
    refused("nor a weights file that torch.load can read")
    torch.save([1, 2], path)
    refused("contains list instead of a state dict")
    torch.save(model_of(0, name="resnet50").state_dict(), path)
    refused(r"weights\.pt does not match this model: .*layer1")
    torch.save({"fc.weight": _Evil()}, path)
    refused("nor a weights file that torch.load can read")
    path.write_bytes(pickle.dumps(_Evil(), protocol=2))
    refused("nor a weights file that torch.load can read")
