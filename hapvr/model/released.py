"""Checkpoints of all releases as networks of this package, told apart by what they hold."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import ValidationError

from hapvr.errors import ArgumentError, DataError
from hapvr.model.archive import read_archive
from hapvr.model.family import VideoNetwork
from hapvr.model.published import ImportReport, import_published, take_weights
from hapvr.model.vvs.network import VvsNetwork
from hapvr.model.vvs.published import COMPONENTS, is_vvs, vvs_settings, vvs_tensors
from hapvr.provenance import file_sha256
from hapvr.settings import first_line

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
    dims = known.shape[-1] if known is not None and known.ndim == 2 else dims
    if dims is None:
        raise DataError(f"import: {file}: no tensor tells the dimensions of a region; give dims, e.g. dims=512")
    weights = {own: tensors[name] for name, own in names.items()}
    weights = {own: value.float() if value.is_floating_point() else value for own, value in weights.items()}
    try:
        settings, extras_dims = vvs_settings(weights)
        network = VvsNetwork(settings, dims=dims, extras_dims=extras_dims, generator=torch.Generator())
    except (ValidationError, ArgumentError, IndexError) as error:
        raise DataError(f"import: {file}: its shapes cannot be used: {first_line(error)}") from error
    for name in network.state_dict():
        if name.endswith("num_batches_tracked"):  # counts steps only, and older files leave it out
            weights.setdefault(name, torch.zeros((), dtype=torch.long))
    take_weights(network, weights, names, file=file)
    report = ImportReport(
        release="vvs",
        settings=network.scoring_settings(),
        tensors=names,
        ignored=tuple(ignored),
        recorded={},
        inert=archive.inert,
        notes=VVS_NOTES,
        sha256=file_sha256(file),
    )
    return network.eval(), report
