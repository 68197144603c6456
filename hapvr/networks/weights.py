"""The frozen networks of timm and their weights: published, packaged, from a file, or seeded
random; and their identity.

timm and the hub's client are imported where they are used: a stored model needs neither, and timm
takes 2.5 seconds.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hapvr.errors import ConfigError, DataError
from hapvr.files import arrays_sha256
from hapvr.model.archive import read_archive
from hapvr.model.checkpoint import MAX_MISMATCHES, describe_mismatches
from hapvr.networks.packaged import WeightsIdentity, packaged_tensors
from hapvr.networks.settings import FrozenNetworkConfig, Precision
from hapvr.seeding import seeded

HUB_FILE = "model.safetensors"
MAX_PARAMETERS = 4_000_000_000

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PREFIXES = (
    "state_dict.",
    "module.",
    "model.",
    "student.",
    "teacher.",
    "backbone.",
    "encoder.",
    "visual.",
    "trunk.",
)
"""What training code puts before a network's own names, from the outside in."""


@dataclass(frozen=True)
class FrozenNetwork:
    """A network whose weights are never trained, with its identity."""

    network: nn.Module
    identity: WeightsIdentity
    settings: dict[str, Any]
    """The settings that determine the output for a crop (weights, precision and what the
    configuration changes), as features and models record them."""
    crop_px: int
    """Side of the frames that it sees."""
    mean: tuple[float, ...]
    """The mean of pixels in [0, 1], by channel."""
    std: tuple[float, ...]
    precision: Precision = "float32"

    def state(self) -> dict[str, NDArray[Any]]:
        """Its weights by name."""
        return {
            name: tensor.cpu().contiguous().numpy()
            for name, tensor in self.network.state_dict().items()
        }

    def output(self, frames: Tensor) -> Any:
        """The output of the network for [B, 3, crop_px, crop_px] uint8."""
        pixels = normalize_pixels(frames, self.mean, self.std).contiguous(
            memory_format=torch.channels_last
        )
        with torch.autocast(
            pixels.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"
        ):
            return self.network(pixels)


def create_network(config: FrozenNetworkConfig, **build: Any) -> tuple[nn.Module, WeightsIdentity]:
    """A network of timm in evaluation mode with frozen parameters. build: more arguments of
    `timm.create_model`. Raises ConfigError for an architecture or option that timm refuses,
    DataError if the weights cannot be obtained or do not fill the network."""
    state = _stored_state(config)
    if config.options:
        _require_buildable(config, build)
    network = _build(config, build, seed=config.weights.seed, state=state)
    network.eval().requires_grad_(False).to(memory_format=torch.channels_last)
    digest = state_sha256(network.state_dict())
    return network, WeightsIdentity(config.architecture, config.weights.source, digest)


def _stored_state(config: FrozenNetworkConfig) -> dict[str, Tensor] | None:
    """The tensors of a package or a file that fill the network; None for random weights."""
    weights = config.weights
    if weights.source == "random":
        return None
    if weights.source == "packaged":
        tensors = map(torch.from_numpy, packaged_tensors(config.architecture).values())
        with torch.device("meta"):
            names = _build(config, {}).state_dict()
        state = dict(zip(names, tensors, strict=True))
        return _fitted(state, config, Path(config.architecture))

    path = weights.path or _published_file(config.architecture)
    return _fitted(read_archive(path)[0], config, path)


def _require_buildable(config: FrozenNetworkConfig, build: Mapping[str, Any]) -> None:
    """Raise ConfigError for a network of too many parameters."""
    with torch.device("meta"):
        size = sum(values.numel() for values in _build(config, build).parameters())
    if size > MAX_PARAMETERS:
        raise ConfigError(
            f"options: {config.architecture} has {size:,} parameters; at most "
            f"{MAX_PARAMETERS:,} are built"
        )


def create_embedding_network(config: FrozenNetworkConfig) -> tuple[nn.Module, WeightsIdentity]:
    """A network of timm without its classifier, which gives one vector per picture. It takes any
    side where the architecture allows it. Raises as `create_network` does."""
    try:
        return create_network(config, num_classes=0, dynamic_img_size=True)
    except ConfigError:  # convolutional networks take any side without this argument
        return create_network(config, num_classes=0)


def pixel_statistics(config: FrozenNetworkConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of pixels in [0, 1], per channel, that the architecture was
    trained with."""
    import timm

    published = timm.get_pretrained_cfg(config.architecture)
    if published and published.mean and published.std:
        return published.mean, published.std
    return IMAGENET_MEAN, IMAGENET_STD


def normalize_pixels(frames: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """[B, 3, H, W] uint8 -> float32 in [0, 1], then standardised by the mean and standard deviation
    of each channel."""
    means = torch.tensor(mean, device=frames.device).view(-1, 1, 1)
    deviations = torch.tensor(std, device=frames.device).view(-1, 1, 1)
    return (frames.float() / 255 - means) / deviations


def state_sha256(state: dict[str, Tensor]) -> str:
    """Hex SHA-256 over names, dtypes, shapes and bytes of all tensors, in name order."""
    return arrays_sha256({name: tensor.detach().cpu().numpy() for name, tensor in state.items()})


def _build(
    config: FrozenNetworkConfig,
    build: Mapping[str, Any],
    *,
    seed: int = 0,
    state: dict[str, Tensor] | None = None,
) -> nn.Module:
    """The network with seeded random weights, or with a `state` that `_fitted` gave.
    Zero-initialised last norms of random networks are left out, since such residual blocks would
    compute nothing."""
    import timm

    architecture = config.architecture
    options: dict[str, Any] = config.options | dict(build)
    if architecture.startswith("resnet"):
        options["zero_init_last"] = False
    if state is not None:
        # `_fitted` has said what fits; timm would name the layers that are not built.
        logging.getLogger("timm").setLevel(logging.ERROR)
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": state}}

    try:
        with seeded(seed):
            network: nn.Module = timm.create_model(architecture, **options)
    except (
        ArithmeticError,
        AssertionError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigError(
            f"architecture: timm {timm.__version__} cannot make {architecture} with "
            f"{config.options | dict(build)}: "
            f"{' '.join(str(error).split())[:300]}; `timm.list_models()` has the names"
        ) from error

    return network


def _fitted(state: dict[str, Tensor], config: FrozenNetworkConfig, path: Path) -> dict[str, Tensor]:
    """The tensors of a file by timm's names; they must fill the network, except for its classifier.
    timm itself would leave missing tensors random: it is strict only for whole networks.
    """
    with torch.device("meta"):
        whole = _build(config, {})
    unused = _classifier_prefixes(whole)
    given = {
        name: values
        for name, values in _as_timm_names(state, whole).items()
        if isinstance(values, Tensor) and not name.startswith(unused)
    }
    # Some files lack counts of steps.
    wanted = {
        name: values
        for name, values in whole.state_dict().items()
        if not name.startswith(unused)
        and (name in given or not name.endswith(".num_batches_tracked"))
    }
    for name in wanted.keys() & given.keys():
        if given[name].is_floating_point() and wanted[name].is_floating_point():
            given[name] = given[name].to(wanted[name].dtype)

    mismatches = describe_mismatches(wanted, given)
    if mismatches:
        raise DataError(
            f"weights: {path} does not fit {config.architecture}: "
            f"{'; '.join(mismatches[:MAX_MISMATCHES])}; give a file with every tensor but the "
            "classifier's, by timm's name, in its shape and of finite floats, or correct "
            "`architecture` and `options`"
        )

    return given


def _as_timm_names(state: dict[str, Tensor], whole: nn.Module) -> dict[str, Any]:
    """The tensors without the prefixes of wrappers, and as timm converts them on loading (position
    embeddings of another side, names of other releases).

    whole: the network that they are to fill."""
    wanted = whole.state_dict()
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in wanted):
            continue
        inner = {
            name.removeprefix(prefix): values
            for name, values in state.items()
            if name.startswith(prefix)
        }
        if inner:
            state = inner  # the rest belongs to other networks, e.g. a projection head

    convert = getattr(sys.modules[type(whole).__module__], "checkpoint_filter_fn", None)
    if convert is not None:
        # It raises these for tensors that do not fit, which are described later.
        with suppress(AttributeError, KeyError, RuntimeError, ValueError):
            converted: dict[str, Any] = convert(dict(state), whole)
            return converted

    return state


def _classifier_prefixes(whole: nn.Module) -> tuple[str, ...]:
    """The beginnings of the names of the classifier's tensors."""
    names = whole.pretrained_cfg["classifier"]  # type: ignore[index]
    if isinstance(names, str):
        names = [names]
    return tuple(f"{name}." for name in names or ())


def _published_file(architecture: str) -> Path:
    """The published weights in the hub's cache, downloaded if they are missing."""
    import timm
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    published = timm.get_pretrained_cfg(architecture)
    repository = (published and published.hf_hub_id) or architecture
    try:
        cached = try_to_load_from_cache(repository, HUB_FILE)
        return Path(cached if isinstance(cached, str) else hf_hub_download(repository, HUB_FILE))
    except Exception as error:  # of the hub's clients and those that they use
        raise DataError(
            f"weights: the published ones of {architecture} are not in the local hub cache "
            "and could not be downloaded "
            f"({type(error).__name__}); run once with a network connection, copy the cache "
            "and set HF_HOME, or give a local "
            "file: weights: {source: file, path: ...}"
        ) from error
