"""Checkpoints of all releases as networks of this package, told apart by what they hold."""

from __future__ import annotations

from pathlib import Path

import torch

from hapvr.errors import DataError
from hapvr.files import file_sha256
from hapvr.model.archive import read_archive
from hapvr.model.family import VideoNetwork
from hapvr.model.published import ImportReport, import_published, known_dims, take_weights
from hapvr.model.vvs.network import VvsNetwork
from hapvr.model.vvs.published import COMPONENTS, is_vvs, vvs_settings, vvs_tensors

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
