"""Reads pretrained weights from a local path or a URL into a model; nothing in them is run."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superdl.experiments.models import NormalisedNetwork, stretch_positions
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import without_credentials

if TYPE_CHECKING:
    from http.client import HTTPMessage

__all__ = ["load_weights"]

_HASH = re.compile(r"-([0-9a-f]{8,64})\.[^.]*$")  # as torch.hub has it: resnet18-f37072fd.pth
_TIMEOUT_S = 60.0
_CHUNK_BYTES = 2**20
_NAMED = 3
_NESTED = ("model", "state_dict")
_PREFIXES = ("module.", "network.")  # of DistributedDataParallel, and of our wrapper


def load_weights(model: nn.Module, place: str) -> str:
    """Load the weights at ``place``, a path or a URL, and return a line about what was taken.

    A classifier of another number of classes is left out.

    Raises:
        ConfigError: there is no such file, it is damaged, it holds code, or it is of another model.

    """
    told = without_credentials(place)
    path = _downloaded(place, told) if "://" in place else Path(place).expanduser()
    network = model.network if isinstance(model, NormalisedNetwork) else model
    if not isinstance(network, nn.Module):
        raise TypeError(f"{type(network).__name__} is no module")
    weights = stretch_positions(network, _read(path, told))
    mine = network.state_dict()
    head = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    left_out = [
        name
        for name in mine
        if name.startswith(f"{head}.") and (name not in weights or weights[name].shape != mine[name].shape)
    ]
    taken = {
        name: value for name, value in weights.items() if not name.startswith(f"{head}.") or not left_out
    }
    try:
        lacking, besides = network.load_state_dict(taken, strict=False)
    except RuntimeError as error:  # shapes differ; torch names each
        raise ConfigError(f"model.weights: {told} is of another model: {_shortened(error)}") from error
    wrong = [f"it lacks {name}" for name in lacking if name not in left_out]
    wrong += [f"it has {name} besides" for name in besides]
    if wrong:
        more = " ..." if len(wrong) > _NAMED else ""
        raise ConfigError(f"model.weights: {told} is of another model: {', '.join(wrong[:_NAMED])}{more}")
    if left_out:
        return f"weights of {told}, but for the classifier ({', '.join(left_out)}), which is of other classes"
    return f"weights of {told}"


def _shortened(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(lines[1 : 1 + _NAMED] or lines)


def _read(path: Path, told: str) -> dict[str, Tensor]:
    if not path.is_file():
        raise ConfigError(f"model.weights: there is no file {told}")
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes it raise whatever there is
        raise ConfigError(
            f"model.weights: {told} is no file of weights that torch.load reads with weights_only=True "
            f"({type(error).__name__}); save it with torch.save(model.state_dict(), path)"
        ) from error
    for key in _NESTED:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"model.weights: {told} holds no state dict but {type(content).__name__}")
    return {_bare(str(name)): value for name, value in content.items() if isinstance(value, Tensor)}


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _downloaded(url: str, told: str) -> Path:
    """The file that a URL names, held to a hash in its name.

    It is downloaded once, into a folder of the whole URL below torch.hub's directory.
    """
    _check_way(url)
    name = Path(urllib.parse.urlsplit(url).path).name
    path = Path(torch.hub.get_dir()) / "superdl" / hashlib.sha256(url.encode()).hexdigest() / name
    if path.is_file():
        return path
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _fetch(url, path, told)
    except OSError as error:  # urllib's own errors among them
        raise ConfigError(f"model.weights: {told} could not be downloaded: {error}") from error
    return path


def _check_way(url: str) -> None:
    """See that nobody on the way can change what comes: by https, or on this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
        raise ConfigError(
            f"model.weights is a path or a URL of https, so that nobody on the way can change it; not "
            f"{without_credentials(url)}"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect where the URL itself could have been named."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _check_way(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url: str, path: Path, told: str) -> None:
    digest = hashlib.sha256()
    descriptor, partial = tempfile.mkstemp(dir=path.parent)
    try:
        opener = urllib.request.build_opener(_SafeRedirects)
        with os.fdopen(descriptor, "wb") as file, opener.open(url, timeout=_TIMEOUT_S) as answer:
            while chunk := answer.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
        found = _HASH.search(path.name)
        if found is not None and not digest.hexdigest().startswith(found.group(1)):
            raise ConfigError(
                f"model.weights: {told} came with the SHA-256 {digest.hexdigest()}, which does not begin "
                f"with {found.group(1)} as its name says; it is damaged or another file"
            )
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)
