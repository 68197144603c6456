"""Checkpoints of all releases as networks of this package, told apart by what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import ValidationError

from hapvr.errors import ArgumentError, DataError
from hapvr.model.archive import read_archive
from hapvr.model.checkpoint import describe_mismatches
from hapvr.model.family import VideoNetwork
from hapvr.model.published import ImportReport, import_published
from hapvr.model.vvs.network import VvsNetwork
from hapvr.model.vvs.published import COMPONENTS, is_vvs, vvs_settings, vvs_tensors
from hapvr.settings import explain

VVS_NOTES = (
    "the file records no temperatures: those of the paper are used (512 for topic guidance, 1 for the others)",
    "the vectors need this file's own PCA: `hapvr models import --pca` makes it the whitening of a data root",
)


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
    tensors, names, ignored, unknown = vvs_tensors(archive.content)
    if unknown or not names:
        raise DataError(
            f"import: {file}: not a network of VVS; tensors that do not fit: {', '.join(unknown) or 'none found'}"
        )
    known = ignored.get(COMPONENTS)
    found = known.shape[-1] if known is not None and known.ndim == 2 else dims
    if found is None:
        raise DataError(f"import: {file}: no tensor tells the dimensions of a region; give dims, e.g. dims=512")
    weights = {own: tensors[name] for name, own in names.items()}
    weights = {own: value.float() if value.is_floating_point() else value for own, value in weights.items()}
    try:
        settings, side_dims = vvs_settings(weights)
        network = VvsNetwork(settings, dims=found, side_dims=side_dims, generator=torch.Generator())
    except ValidationError as error:
        raise DataError(f"import: {file}: its shapes cannot be used: {explain(error)}") from error
    except (ArgumentError, IndexError) as error:
        raise DataError(f"import: {file}: its shapes cannot be used: {error}") from error
    mismatches = _mismatches(network, weights, names)
    if mismatches:
        raise DataError(f"import: {file} does not fit a network of VVS: {'; '.join(mismatches)}")
    network.load_state_dict(weights)
    report = ImportReport(
        release="vvs",
        settings=network.scoring_settings(),
        tensors=names,
        ignored=tuple(ignored),
        recorded={},
        inert=archive.inert,
        notes=VVS_NOTES,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    return network.eval(), report


def _mismatches(network: VvsNetwork, weights: dict[str, torch.Tensor], names: Mapping[str, str]) -> list[str]:
    published = {own: name for name, own in names.items()}
    for name in network.state_dict():
        if name.endswith("num_batches_tracked"):  # counts steps only, and older files leave it out
            weights.setdefault(name, torch.zeros((), dtype=torch.long))
            published.setdefault(name, name)
    lines = describe_mismatches(
        {published.get(own, f"{own} (as named here)"): tuple(t.shape) for own, t in network.state_dict().items()},
        {published[own]: tuple(tensor.shape) for own, tensor in weights.items()},
    )
    broken = [own for own, value in weights.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    return lines + [f"{published[own]} has NaN or infinite values" for own in broken]
