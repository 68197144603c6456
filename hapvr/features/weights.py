"""Weights of the frozen networks: published, from a file, or seeded random; and their identity."""

from __future__ import annotations

import hashlib
import socket
import urllib.parse
import urllib.request
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from safetensors.torch import load_file
from torch import Tensor, nn

from hapvr.config import FileWeights, PretrainedWeights, RandomWeights, Weights
from hapvr.errors import WeightsUnavailableError

HUB_FILE = "model.safetensors"
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class WeightsIdentity:
    """Which weights a frozen network has. source: pretrained, file, random; sha256: over all tensors, so equal weights are equal."""

    architecture: str
    source: str
    sha256: str

    def as_dict(self) -> dict[str, str]:
        return {"architecture": self.architecture, "source": self.source, "sha256": self.sha256}


def create_network(architecture: str, weights: Weights, **timm_options: Any) -> tuple[nn.Module, WeightsIdentity]:
    """A timm network in eval mode with frozen parameters.

    Raises WeightsUnavailableError if the weights cannot be had. Only `PretrainedWeights(fallback="random")` replaces
    them by random ones, with a warning, and the identity then says `random`.
    """
    source = weights.source
    if isinstance(weights, RandomWeights):
        network = _random(architecture, weights.seed, timm_options)
    elif isinstance(weights, FileWeights):
        network = _random(architecture, 0, timm_options)
        _load_file(network, weights.path, architecture)
    else:
        network = _random(architecture, 0, timm_options)
        try:
            _load_file(network, _published_file(architecture), architecture)
        except (OSError, HfHubHTTPError) as error:
            _require_fallback(architecture, weights, error)
            source = "random"
    network.eval().requires_grad_(False)
    return network, WeightsIdentity(architecture, source, state_sha256(network.state_dict()))


def state_sha256(state: dict[str, Tensor]) -> str:
    """Hex SHA-256 over names, dtypes, shapes and bytes of all tensors, in name order."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _random(architecture: str, seed: int, timm_options: dict[str, Any]) -> nn.Module:
    """Seeded random weights.

    Last norms are not initialised with zero, because such residual blocks would compute nothing.
    """
    options = dict(timm_options)
    if architecture.startswith("resnet"):
        options["zero_init_last"] = False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = timm.create_model(architecture, pretrained=False, **options)
    return network


def _published_file(architecture: str) -> Path:
    """The path of the published weights in the hub's cache, which are downloaded if necessary.

    Raises OSError or HfHubHTTPError.
    """
    published = timm.get_pretrained_cfg(architecture)
    if published is None or not published.hf_hub_id:
        raise OSError(f"no weights of {architecture} are published")
    repository = str(published.hf_hub_id)
    try:
        return Path(hf_hub_download(repository, HUB_FILE, local_files_only=True))
    except LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE:
            raise
    _require_hub()
    return Path(hf_hub_download(repository, HUB_FILE))


def _require_hub() -> None:
    """Raises OSError within seconds if the hub cannot be reached.

    The hub's own client retries for a minute per file.
    """
    if urllib.request.getproxies().get("https"):
        return
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    port = address.port or (443 if address.scheme == "https" else 80)
    socket.create_connection((address.hostname or "", port), timeout=CONNECT_TIMEOUT_S).close()


def _require_fallback(architecture: str, weights: PretrainedWeights, error: Exception) -> None:
    message = (
        f"weights: the published weights of {architecture} are neither in the local hub cache nor could they be "
        f"downloaded ({type(error).__name__})"
    )
    if weights.fallback == "random":
        warnings.warn(f"{message}; going on with seeded random weights, as this configuration allows", stacklevel=3)
        return
    raise WeightsUnavailableError(
        f"{message}. Two ways out: put them into the hub cache of this machine (run once with a network connection, or copy "
        f"the cache and set HF_HOME), or give a local file: weights: {{source: file, path: ...}}"
    ) from error


def _load_file(network: nn.Module, path: Path, architecture: str) -> None:
    if not path.is_file():
        raise WeightsUnavailableError(f"weights: {path} for {architecture} does not exist; correct weights.path")
    try:
        if path.suffix == ".safetensors":
            state: dict[str, Tensor] = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            state = loaded.get("state_dict", loaded)
        wanted = network.state_dict()
        missing = sorted(name for name in wanted if name not in state and not name.endswith("num_batches_tracked"))
        if missing:
            raise WeightsUnavailableError(
                f"weights: {path} lacks {len(missing)} tensors of {architecture}, e.g. {missing[0]}; "
                f"wanted is a state dict with timm's names"
            )
        # A classifier head may be in the file; the frozen networks have none.
        network.load_state_dict({name: state[name] for name in wanted if name in state}, strict=False)
    except WeightsUnavailableError:
        raise
    except Exception as error:
        raise WeightsUnavailableError(
            f"weights: {path} cannot be read as weights of {architecture}: {error}; wanted is .safetensors, or .pth of plain tensors"
        ) from error
