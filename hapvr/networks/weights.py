"""The frozen networks of timm and their weights: published, from a file, or seeded random; and their identity.

timm and the hub's client are imported where they are used: a stored model needs neither, and timm takes 2.5 seconds.
"""

from __future__ import annotations

import difflib
import inspect
import socket
import sys
import urllib.parse
import urllib.request
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hapvr.errors import ConfigError, WeightsUnavailableError
from hapvr.networks.settings import (
    FileWeights,
    FrozenNetworkConfig,
    Precision,
    PretrainedWeights,
    RandomWeights,
    TorchScriptWeights,
)
from hapvr.provenance import file_sha256, tensors_sha256

HUB_FILE = "model.safetensors"
CONNECT_TIMEOUT_S = 5.0
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PREFIXES = ("state_dict.", "module.", "model.", "student.", "teacher.", "backbone.", "encoder.", "visual.", "trunk.")
"""What training code puts before a network's own names, from the outside in."""

NAMED = 5
"""Tensors of each kind that an error names."""


@dataclass(frozen=True)
class WeightsIdentity:
    """Which weights a frozen network has. source: pretrained, file, random; sha256: over all tensors, so equal weights are equal."""

    architecture: str
    source: str
    sha256: str

    def as_dict(self) -> dict[str, str]:
        return {"architecture": self.architecture, "source": self.source, "sha256": self.sha256}


def create_network(config: FrozenNetworkConfig, **build: Any) -> tuple[nn.Module, WeightsIdentity]:
    """A network of timm in eval mode with frozen parameters. build: more arguments of `timm.create_model`.

    Raises ConfigError for an architecture or option that timm refuses, WeightsUnavailableError if the weights cannot be
    had or do not fill the network. Only `PretrainedWeights(fallback="random")` replaces them by random ones, with a
    warning, and the identity then says `random`.
    """
    weights, architecture = config.weights, config.architecture
    source, path = weights.source, None
    if isinstance(weights, FileWeights):
        path = weights.path
    elif isinstance(weights, PretrainedWeights):
        from huggingface_hub.errors import HfHubHTTPError

        _require_known(architecture)
        try:
            path = _published_file(architecture)
        except (OSError, HfHubHTTPError) as error:
            _require_fallback(architecture, weights, error)
            source = "random"
    seed = weights.seed if isinstance(weights, RandomWeights) else 0
    state = None if path is None else _fitted(_read_state(path, architecture), config, path)
    network = _build(config, build, seed=seed, state=state)
    network.eval().requires_grad_(False)
    return network, WeightsIdentity(architecture, source, state_sha256(network.state_dict()))


def create_embedding_network(config: FrozenNetworkConfig) -> tuple[nn.Module, WeightsIdentity]:
    """A network of timm without its classifier: one vector per picture, of any side where the architecture allows it."""
    any_side = {"num_classes": 0, "dynamic_img_size": True}
    try:
        with torch.device("meta"):
            _build(config, any_side)
    except ConfigError:  # convolutional networks take any side without this argument
        return create_network(config, num_classes=0)
    return create_network(config, **any_side)


def load_torchscript(weights: TorchScriptWeights) -> tuple[nn.Module, WeightsIdentity]:
    """A TorchScript network on the CPU and the digest of its file. Raises WeightsUnavailableError for any other file."""
    try:
        network: nn.Module = torch.jit.load(str(weights.path), map_location="cpu")  # type: ignore[no-untyped-call]
        digest = file_sha256(weights.path)
    except (OSError, RuntimeError, ValueError) as error:
        raise WeightsUnavailableError(
            f"weights: {weights.path} cannot be read as TorchScript ({str(error).splitlines()[0][:200]}); wanted is a file "
            f"that torch.jit.save has written"
        ) from error
    network.eval()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network, WeightsIdentity("torchscript", weights.source, digest)


def pixel_statistics(config: FrozenNetworkConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of pixels in [0, 1], per channel: the configuration's, else the architecture's."""
    import timm

    known = None if isinstance(config.weights, TorchScriptWeights) else timm.get_pretrained_cfg(config.architecture)
    mean = config.mean or (known.mean if known else None) or IMAGENET_MEAN
    std = config.std or (known.std if known else None) or IMAGENET_STD
    return tuple(mean), tuple(std)


def normalize_pixels(frames: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """[B, 3, H, W] uint8 -> float32 in [0, 1], then mean and standard deviation taken out per channel."""
    means = torch.tensor(mean, device=frames.device).view(-1, 1, 1)
    deviations = torch.tensor(std, device=frames.device).view(-1, 1, 1)
    return (frames.float() / 255 - means) / deviations


def run_network(network: nn.Module, pixels: Tensor, precision: Precision) -> Any:
    """network(pixels) under autocast of that precision and no other; what is done with the result is not under it.

    pixels: float32. Returns what the network does, partly in bfloat16 if that is the precision.
    """
    with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        return network(pixels)


def stated_settings(config: FrozenNetworkConfig, identity: WeightsIdentity) -> dict[str, Any]:
    """What determines a frozen network's output, as data and models record it: weights, and what differs from defaults."""
    stated = config.model_dump(mode="json", include={"options", "mean", "std"}, exclude_defaults=True)
    precision = {} if config.precision == "float32" else {"precision": config.precision}
    return identity.as_dict() | precision | stated


def state_sha256(state: dict[str, Tensor]) -> str:
    """Hex SHA-256 over names, dtypes, shapes and bytes of all tensors, in name order."""
    return tensors_sha256(
        (name, str(tensor.dtype), tuple(tensor.shape), _bytes(tensor)) for name, tensor in state.items()
    )


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _build(
    config: FrozenNetworkConfig, build: Mapping[str, Any], *, seed: int = 0, state: dict[str, Tensor] | None = None
) -> nn.Module:
    """The network with seeded random weights, or with a `state` that `_fitted` gave.

    Zero-initialised last norms of random networks are left out, since such residual blocks would compute nothing.
    """
    import timm

    architecture = config.architecture
    _require_known(architecture)
    own = sorted(config.options.keys() & inspect.signature(timm.create_model).parameters.keys())
    if own:
        raise ConfigError(
            f"options: {own[0]} is not an option of a network; where weights come from is said by `weights`"
        )
    options: dict[str, Any] = config.options | dict(build)
    if architecture.startswith("resnet"):
        options["zero_init_last"] = False
    if state is not None:
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": state}}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network: nn.Module = timm.create_model(architecture, **options)
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"architecture: timm cannot make {architecture} with {config.options | dict(build)}: {said}"
        ) from error
    return network


def _fitted(state: dict[str, Tensor], config: FrozenNetworkConfig, path: Path) -> dict[str, Tensor]:
    """The tensors of a file under timm's names, which fill the network: all but its classifier must be there.

    Prefixes of wrappers are taken off, and what timm converts on loading (position embeddings of another side, names of
    other releases) is converted. timm itself would leave what is missing random: it is strict for whole networks alone.
    Raises WeightsUnavailableError naming tensors that are missing, unknown, or of another shape, dtype or not finite.
    """
    with torch.device("meta"):
        whole = _build(config, {})
    wanted = whole.state_dict()
    for prefix in PREFIXES:
        inner = {name.removeprefix(prefix): values for name, values in state.items() if name.startswith(prefix)}
        if inner and not any(name.startswith(prefix) for name in wanted):
            state = inner  # the rest belongs to other networks, e.g. a projection head
    convert = getattr(sys.modules[type(whole).__module__], "checkpoint_filter_fn", None)
    found = dict(state)
    if convert is not None:
        with suppress(AttributeError, KeyError, RuntimeError, ValueError):  # of tensors that do not fit
            found = convert(state, whole)
    classifiers = whole.pretrained_cfg["classifier"]  # type: ignore[index]
    unused = tuple(f"{name}." for name in ([classifiers] if isinstance(classifiers, str) else classifiers or ()))
    found = {name: values for name, values in found.items() if not name.startswith(unused)}
    wanted = {name: values for name, values in wanted.items() if not name.startswith(unused)}
    problems = {
        "missing": [name for name in wanted if name not in found and not name.endswith(".num_batches_tracked")],
        "unexpected": [name for name in found if name not in wanted],
        "mismatched": [name for name, values in wanted.items() if name in found and not _fits(found[name], values)],
    }
    if any(problems.values()):
        said = "; ".join(
            f"{len(names)} {kind}, e.g. {', '.join(names[:NAMED])}" for kind, names in problems.items() if names
        )
        raise WeightsUnavailableError(
            f"weights: {path} does not fit {config.architecture}: {said}. Every tensor but the classifier's is needed, by "
            "timm's name, in its shape and as finite floats; give the file of this architecture, or correct "
            "`architecture` and `options`"
        )
    return found


def _fits(found: Any, wanted: Tensor) -> bool:
    """Whether a tensor of a file can stand for one of a network: shape, kind of number, finite."""
    return (
        isinstance(found, Tensor)
        and found.shape == wanted.shape
        and found.is_floating_point() == wanted.is_floating_point()
        and bool(found.isfinite().all())
    )


def _require_known(architecture: str) -> None:
    import timm

    if not timm.is_model(architecture):
        similar = difflib.get_close_matches(architecture, timm.list_models(), n=3, cutoff=0.4)
        raise ConfigError(
            f"architecture: timm {timm.__version__} does not know {architecture!r}; similar names: {', '.join(similar)}"
        )


def _published_file(architecture: str) -> Path:
    """The published weights in the hub's cache, downloaded if they are not there. Raises OSError or HfHubHTTPError."""
    import timm
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

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
    """Raises OSError within seconds if the hub cannot be reached; the hub's client would try again for a minute per file."""
    from huggingface_hub import constants

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


def _read_state(path: Path, architecture: str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth file, of which nothing else is unpickled."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        for key in ("state_dict", "model", "teacher"):
            loaded = loaded.get(key, loaded)
        return dict(loaded)
    except Exception as error:
        raise WeightsUnavailableError(
            f"weights: {path} cannot be read as weights of {architecture}: {error}; wanted is .safetensors, or .pth of plain "
            f"tensors"
        ) from error
