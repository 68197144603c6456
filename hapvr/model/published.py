"""Checkpoints of the HAP-VR, S2VS, DnS, ViSiL and VVS releases as networks of this package, told apart by what they hold.

Files that others pickled are read without running any code of theirs.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from hapvr.errors import ArgumentError, DataError
from hapvr.files import file_sha256
from hapvr.model.checkpoint import describe_mismatches
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.model.vvs.network import VvsNetwork
from hapvr.model.vvs.published import COMPONENTS, is_vvs, vvs_pca, vvs_settings, vvs_tensors
from hapvr.settings import first_line

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Archive:
    """content: containers, numbers, text and tensors; inert: names of classes and functions in the file, none of them run."""

    content: Any
    inert: tuple[str, ...]


class Inert:
    """Replaces a class or function of the file: takes any arguments, runs nothing, and keeps the state to report it."""

    def __new__(cls, *arguments: object, **options: object) -> Inert:
        return super().__new__(cls)

    def __init__(self, *arguments: object, **options: object) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        self.state = dict(state) if isinstance(state, dict) else {}


def read_archive(file: Path) -> Archive:
    """Read a .pth or .pt (zip or the older format), a .safetensors or a .npz file; tensors come on the CPU.

    Pickles are read with weights_only=True; `Inert` replaces every name that is not on torch's own list. Raises DataError for
    a file that is missing, no regular file, of another format, or names something that torch refuses even so.
    """
    if not file.is_file():  # a device may never end
        raise DataError(f"weights: {file} is not a file; wanted a .pth, .pt, .safetensors or .npz file")
    # A damaged or hostile file can make the readers raise any exception; all of them mean that the file is refused.
    try:
        if file.suffix == ".safetensors":
            return Archive(load_file(file), ())
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return Archive({name: torch.from_numpy(arrays[name]) for name in arrays.files}, ())
        names = _named_globals(file)
        with safe_globals([(type("Inert", (Inert,), {}), name) for name in names]):
            return Archive(torch.load(file, map_location="cpu", weights_only=True), tuple(names))
    except Exception as error:
        # torch's message advises to load without protection, so only its cause is passed on.
        reason = first_line(error.__context__ or error)
        raise DataError(
            f"weights: {file} cannot be read: {reason}; wanted a state dict saved by torch.save, a .safetensors or a .npz file"
        ) from error


def plain_values(content: object) -> dict[str, Any]:
    """Numbers, texts and lists of them in a mapping or an inert object, by name; all else is left out."""
    state = content.state if isinstance(content, Inert) else content
    if not isinstance(state, Mapping):
        return {}
    return {
        str(name): value
        for name, value in state.items()
        if isinstance(value, PLAIN) or (isinstance(value, list) and all(isinstance(item, PLAIN) for item in value))
    }


def _named_globals(file: Path) -> list[str]:
    if zipfile.is_zipfile(file):
        return sorted(get_unsafe_globals_in_checkpoint(file))
    # The older format has four pickles before the raw storages: three with format information, then the content.
    names: set[str] = set()
    with file.open("rb") as stream:
        for _ in range(4):
            for opcode, argument, _position in pickletools.genops(stream):
                if opcode.name == "GLOBAL" and isinstance(argument, str):
                    names.add(argument.replace(" ", "."))
    return sorted(name for name in names if not name.startswith(("torch.", "collections.OrderedDict")))


COMPARATOR_PREFIXES = {
    "comparator_module.": "hap-vr",
    "visil_head.video_comperator.": "visil",
    "video_comperator.": "visil",
    "visil_head.": "s2vs",
}
"""The CNN's name in each release. "s2vs" includes the fine-grained students of DnS, which have the same names."""

COMPARATOR_LAYERS = {"conv1": "conv1", "conv2": "conv2", "conv3": "conv3", "fconv": "output"}
ATTENTION_PREFIXES = ("visil_head.attention.", "attention.")
BACKBONE_PREFIXES = ("cnn.", "feature_extractor.", "normalizer.")
SIMILARITY_MODULES = {"Chamfer": 0.0, "Average": 1.0}
"""What HAP-VR's files record in place of TopKChamfer, as rates."""

VVS_NOTES = (
    "the file records no temperatures: those of the paper are used (512 for topic guidance, 1 for the others)",
    "the vectors need this file's own PCA: `hapvr models import --pca` makes it the whitening of a data root",
)

AnyNetwork = TypeVar("AnyNetwork", bound=VideoNetwork)


@dataclass(frozen=True)
class ImportReport:
    """What an import found and did.

    release: "hap-vr", "s2vs" (also DnS students), "visil" or "vvs"; tensors: our name of each published tensor; ignored:
    tensors of a backbone, which is configured elsewhere; recorded: settings that the file holds; inert: classes that the
    file names, which were not loaded; notes: what a reader should know about the scores; sha256: of the file.
    """

    release: str
    tensors: Mapping[str, str]
    ignored: tuple[str, ...]
    recorded: Mapping[str, Any]
    inert: tuple[str, ...]
    notes: tuple[str, ...]
    sha256: str

    def as_metadata(self) -> dict[str, Any]:
        """As JSON can hold it, for `save_network`."""
        return asdict(self)


def import_released(
    file: Path, *, dims: int | None = None, symmetric_chamfer: bool = False
) -> tuple[VideoNetwork, ImportReport]:
    """Read a released checkpoint of any family; no code in it is run.

    dims: values per region, needed only if no tensor tells. symmetric_chamfer: see `import_published`. Raises DataError,
    which names each tensor that does not fit.
    """
    archive = read_archive(file)
    if not is_vvs(archive.content):
        return import_published(file, dims=dims, symmetric_chamfer=symmetric_chamfer)
    tensors, names, ignored = vvs_tensors(archive.content)
    unknown = [name for name in tensors if name not in names and name not in ignored]
    if unknown or not names:
        raise DataError(
            f"import: {file}: not a network of VVS; tensors that do not fit: {', '.join(unknown) or 'none found'}"
        )
    dims = known_dims(ignored[COMPONENTS].shape[-1:] if COMPONENTS in ignored else (), dims, file)
    weights = {own: tensors[name] for name, own in names.items()}
    weights = {own: value.float() if value.is_floating_point() else value for own, value in weights.items()}

    def build() -> VvsNetwork:
        settings, extras_dims = vvs_settings(weights)
        return VvsNetwork(settings, dims=dims, extras_dims=extras_dims, generator=torch.Generator())

    report = ImportReport("vvs", names, tuple(ignored), {}, archive.inert, VVS_NOTES, file_sha256(file))
    return take_weights(build, weights, names, file), report


def import_published(
    file: Path,
    *,
    dims: int | None = None,
    symmetric_chamfer: bool = False,
) -> tuple[SimilarityNetwork, ImportReport]:
    """Read a released checkpoint. Its tensors tell architecture and sizes; no code in it is run.

    dims: values per region, needed only if no tensor tells. symmetric_chamfer: the file is ViSiL_sym, whose tensors look like
    those of ViSiL_v. Raises DataError, which names each tensor that does not fit.
    """
    archive = read_archive(file)
    state = _find_state(archive.content, file)
    recorded = plain_values(archive.content.get("args"))
    release, tensors, ignored = _own_names(state, file)
    weights = {own: state[published].float().contiguous() for published, own in tensors.items()}
    context, projection = weights.get("attention.context_vector.weight"), weights.get("binarization.projection")
    told = context.shape[-1:] if context is not None else projection.shape[:1] if projection is not None else ()
    dims = known_dims(told, dims, file)
    rates, notes = _rates(release, recorded, file)
    symmetric = symmetric_chamfer or recorded.get("symmetric") is True
    if symmetric and max(rates) > 0:
        notes.append("symmetric: both directions use the recorded rates; the release's code falls back to 0.3 there")
    if release == "visil" and not symmetric:
        notes.append("scored as ViSiL_v; if the file is ViSiL_sym, import it again with --symmetric-chamfer")
    gated = context is None or "attention.transform.weight" in weights

    def build() -> SimilarityNetwork:
        settings = NetworkSettings(
            spatial_rate=rates[0],
            temporal_rate=rates[1],
            attention=context is not None,
            attention_form="gated" if gated else "linear" if release == "visil" else "cosine",
            binary_bits=0 if projection is None else projection.shape[-1],
            comparator=any(name.startswith("comparator.") for name in weights),
            padding_mode="replicate" if release == "visil" else "zeros",
            min_frames=8 if release == "hap-vr" else 4,
            symmetric_chamfer=symmetric,
        )
        return SimilarityNetwork(settings, dims=dims, generator=torch.Generator())

    report = ImportReport(release, tensors, ignored, recorded, archive.inert, tuple(notes), file_sha256(file))
    return take_weights(build, weights, tensors, file), report


def take_weights(
    build: Callable[[], AnyNetwork], weights: dict[str, Tensor], tensors: Mapping[str, str], file: Path
) -> AnyNetwork:
    """Build a network and load weights under own names, every one of them. Raises DataError, which names what does not fit.

    tensors: own names by published ones.
    """
    try:
        network = build()
    except (ValidationError, ArgumentError, IndexError) as error:
        raise DataError(f"import: {file}: its settings or shapes cannot be used: {first_line(error)}") from error
    for name in network.state_dict():
        if name.endswith("num_batches_tracked"):  # counts steps only, and older files leave it out
            weights.setdefault(name, torch.zeros((), dtype=torch.long))
    published = {own: name for name, own in tensors.items()}
    if mismatches := describe_mismatches(network.state_dict(), weights, published):
        raise DataError(f"import: {file} does not fit the network that its tensors tell of: {'; '.join(mismatches)}")
    network.load_state_dict(weights)
    return network.eval()


def known_dims(told: Sequence[int], dims: int | None, file: Path) -> int:
    """Values per region: the one that a tensor's shape tells, or else what the caller says."""
    found = told[0] if told else dims
    if found is None:
        raise DataError(f"import: {file}: no tensor tells the dimensions of a region; give dims, e.g. dims=512")
    return found


@dataclass(frozen=True)
class PublishedPca:
    """mean [C]; eigenvectors [C, D], columns by falling eigenvalue; eigenvalues [D]; float32. eps: what the release adds to
    eigenvalues, None where it does not say."""

    mean: Tensor
    eigenvectors: Tensor
    eigenvalues: Tensor
    eps: float | None = None


def import_pca(file: Path, *, dims: int | None = None) -> PublishedPca:
    """Read a released PCA: a .pth or .npz file with mean [C], d [C] and V [C, C], or a checkpoint of VVS, which has its own.

    dims: how many of the largest eigenvalues are kept, None for all. Raises DataError, which says what is missing or does not
    fit, and ArgumentError for more dims than the file has.
    """
    content = read_archive(file).content
    arrays, eps = (vvs_pca(content), 0.0) if is_vvs(content) else (content, None)
    found = [arrays.get(name) if isinstance(arrays, Mapping) else None for name in ("mean", "d", "V")]
    mean, values, vectors = (part.double() if isinstance(part, Tensor) else torch.empty(0, 0, 0) for part in found)
    mean = mean.flatten()
    fits = values.ndim == 1 and vectors.shape == (len(mean), len(values)) and not (eps == 0 and (values <= 0).any())
    if not fits or not all(tensor.isfinite().all() for tensor in (mean, values, vectors)):
        shapes = ", ".join(str(tuple(part.shape) if isinstance(part, Tensor) else "none") for part in found)
        raise DataError(
            f"import: {file}: wanted finite mean [C], d [K] above 0 and V [C, K] of a PCA, got shapes {shapes}"
        )
    kept = len(values) if dims is None else dims
    if not 1 <= kept <= len(values):
        raise ArgumentError(f"dims: got {dims}, wanted 1 to {len(values)}, the eigenvalues in {file}")
    order = values.argsort(descending=True)[:kept]
    return PublishedPca(mean.float(), vectors[:, order].float().contiguous(), values[order].float(), eps)


def _find_state(content: Any, file: Path) -> dict[str, Tensor]:
    candidates = [content.get("model"), content.get("state_dict"), content] if isinstance(content, Mapping) else []
    for candidate in candidates:
        if isinstance(candidate, Mapping):
            # DataParallel and DDP put a prefix before every name.
            tensors = {str(name).removeprefix("module."): v for name, v in candidate.items() if isinstance(v, Tensor)}
            if tensors:
                return tensors
    raise DataError(f"import: {file} holds no state dict; wanted one, or one under the key 'model' or 'state_dict'")


def _own_names(state: Mapping[str, Tensor], file: Path) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """The release, the own name of each weight, and the tensors of a backbone."""
    known = {
        f"{prefix}{theirs}.{kind}": (f"comparator.{own}.{kind}", release)
        for prefix, release in COMPARATOR_PREFIXES.items()
        for theirs, own in COMPARATOR_LAYERS.items()
        for kind in ("weight", "bias")
    }
    tensors, releases = {}, set()
    for name in state:
        if name in known:
            tensors[name], release = known[name]
            releases.add(release)
        elif name == "binarization.W":
            tensors[name] = "binarization.projection"
        elif name.startswith(ATTENTION_PREFIXES):
            tensors[name] = "attention." + name.split("attention.", 1)[1]
    ignored = tuple(name for name in state if name.startswith(BACKBONE_PREFIXES))
    unknown = [name for name in state if name not in tensors and name not in ignored]
    unknown += [name for name in tensors if not state[name].is_floating_point() or state[name].layout != torch.strided]
    if unknown or not tensors or len(releases) > 1 or len(set(tensors.values())) < len(tensors):
        raise DataError(
            f"import: {file}: not a network of HAP-VR, S2VS, DnS (fine-grained), ViSiL or VVS, whose files are the ones that "
            f"can be imported; tensors that do not fit: {', '.join(unknown or state)}"
        )
    release = releases.pop() if releases else ("visil" if "visil_head." in next(iter(tensors)) else "s2vs")
    return release, tensors, ignored


def _rates(release: str, recorded: Mapping[str, Any], file: Path) -> tuple[list[float], list[str]]:
    """The rates of both levels, as recorded, or else as the paper says, and notes on them."""
    paper, rates = NetworkSettings(), []
    for level, default in (("f", paper.spatial_rate), ("v", paper.temporal_rate)):
        top = recorded.get(f"{level}_topk_rate", default) if release == "hap-vr" else 0.0
        way = str(recorded.get(f"{level}2{level}_sim_module"))
        if way == "Max":
            raise DataError(
                f"import: {file}: {level}2{level}_sim_module: Max is not supported; wanted a kind of Chamfer"
            )
        rates.append(SIMILARITY_MODULES.get(way, top))
    if release != "hap-vr" or "f_topk_rate" in recorded:
        return rates, []
    return rates, [f"the file records no top-k rates: the paper's {rates[0]} and {rates[1]} are used"]
