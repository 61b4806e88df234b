"""Reads pretrained weights from a local path or a URL into a model; nothing in them is run.

The models are made in `experiments.models`; a run's own checkpoints are read in `experiments.training`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superdl.experiments.models import NormalisedNetwork, fit_transformer
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import without_credentials

if TYPE_CHECKING:
    from http.client import HTTPMessage

__all__ = ["load_weights"]

_HASH = re.compile(r"-([0-9a-f]{8,64})\.[^.]*$")  # as torch.hub has it: resnet18-f37072fd.pth
_WHOLE_HASH = 64
_TIMEOUT_S = 60.0
_CHUNK_BYTES = 2**20
_BYTES_MAX = 2**35
_NAMED = 3
_NESTED = ("model", "state_dict")
_PREFIXES = ("module.", "network.")  # of DistributedDataParallel, and of our wrapper


def load_weights(model: nn.Module, place: str) -> str:
    """Load the weights at ``place``, a path or a URL, and return a line about what was taken.

    A classifier of another number of classes is left out.

    Raises:
        ConfigError: there is no such file, it is damaged, it holds code, or it is of another model.

    """
    path = _downloaded(place) if "://" in place else Path(place).expanduser()
    weights = _read(path, place)
    network = model.network if isinstance(model, NormalisedNetwork) else model
    if not isinstance(network, nn.Module):
        raise TypeError(f"{type(network).__name__} is no module")
    weights = fit_transformer(network, weights)
    mine = network.state_dict()
    head = _classifier(network)
    left_out = [
        name
        for name in mine
        if name.startswith(f"{head}.") and (name not in weights or weights[name].shape != mine[name].shape)
    ]
    told = without_credentials(place)
    needed = [name for name in mine if name not in left_out]
    faults = {
        "it lacks": [name for name in needed if name not in weights],
        "of another shape are": [
            name for name in needed if name in weights and weights[name].shape != mine[name].shape
        ],
        "it has besides": [name for name in weights if name not in mine and not name.startswith(f"{head}.")],
    }
    described = [
        f"{fault} {', '.join(names[:_NAMED])}{' ...' if len(names) > _NAMED else ''}"
        for fault, names in faults.items()
        if names
    ]
    if described:
        raise ConfigError(f"model.weights: {told} is of another model: {'; '.join(described)}")
    network.load_state_dict({name: weights[name] for name in needed}, strict=not left_out)
    if left_out:
        return f"weights of {told}, but for the classifier ({', '.join(left_out)}), which is of other classes"
    return f"weights of {told}"


def _classifier(network: nn.Module) -> str:
    """The name of the last linear layer."""
    names: list[str] = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return names[-1]


def _read(path: Path, place: str) -> dict[str, Tensor]:
    told = without_credentials(place)
    if not path.is_file():
        raise ConfigError(f"model.weights: there is no file {told}")
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes it raise whatever there is
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"model.weights: {told} is no file of weights that torch.load reads with weights_only=True "
            f"({reason}); save it with torch.save(model.state_dict(), path)"
        ) from error
    for key in _NESTED:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"model.weights: {told} holds no state dict but {type(content).__name__}")
    return {
        _bare(name): value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _downloaded(url: str) -> Path:
    """The file that a URL names, held to a hash in its name. It is downloaded once, into a folder of the
    whole URL below torch.hub's directory; with a hash, what others have put there serves too.
    """
    told = without_credentials(url)
    parts = urllib.parse.urlsplit(url)
    name = Path(parts.path).name
    found = _HASH.search(name)
    wanted = None if found is None else found.group(1)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    if parts.scheme not in ("http", "https") or not name:
        raise ConfigError(f"model.weights is a path, or a URL of https; not {told}")
    _check_way(url, wanted)
    hub = Path(torch.hub.get_dir())
    path = hub / "superdl" / hashlib.sha256(url.encode()).hexdigest() / name
    for present in (path, hub / "checkpoints" / name):
        if present.is_file() and (present == path if wanted is None else _digest(present).startswith(wanted)):
            return present
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _fetch(url, path, wanted, told)
    except (urllib.error.URLError, OSError) as error:
        raise ConfigError(f"model.weights: {told} could not be downloaded: {error}") from error
    return path


def _check_way(url: str, wanted: str | None) -> None:
    """See that nobody on the way can change what comes: by https, or by the whole of its SHA-256."""
    parts = urllib.parse.urlsplit(url)
    safe = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or ""))
    if not safe and (parts.scheme != "http" or wanted is None or len(wanted) < _WHOLE_HASH):
        raise ConfigError(
            f"model.weights: {without_credentials(url)} is neither of https nor named with its whole "
            "SHA-256, so that anyone on the way could change it; use https, or download it"
        )


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect where the URL itself could have been named."""

    def __init__(self, wanted: str | None) -> None:
        self._wanted = wanted

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _check_way(newurl, self._wanted)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _fetch(url: str, path: Path, wanted: str | None, told: str) -> None:
    opener = urllib.request.build_opener(_SafeRedirects(wanted))
    digest = hashlib.sha256()
    size = 0
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            opener.open(url, timeout=_TIMEOUT_S) as answer,
        ):
            while chunk := answer.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > _BYTES_MAX:
                    raise ConfigError(f"model.weights: {told} is longer than {_BYTES_MAX:,} bytes")
                digest.update(chunk)
                file.write(chunk)
        if wanted is not None and not digest.hexdigest().startswith(wanted):
            raise ConfigError(
                f"model.weights: {told} came with the SHA-256 {digest.hexdigest()}, which does not begin "
                f"with {wanted} as its name says; it is damaged or another file"
            )
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
