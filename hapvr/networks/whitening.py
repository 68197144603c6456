"""PCA whitening of region vectors (method 1.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor
from torch.nn import functional as F

from hapvr.data.filesystem import DataRoot
from hapvr.errors import ArgumentError
from hapvr.networks.weights import state_sha256
from hapvr.provenance import Provenance

STAGE = "whitening"
WEIGHTS_NAME = "whitening/whitening.safetensors"
PROVENANCE_NAME = "whitening/whitening.json"
HINT = "materialise whitening again (`hapvr extract` does), or import it again if it was imported"


@dataclass(frozen=True)
class Whitening:
    """mean [C]; eigenvectors [C, D], columns by falling eigenvalue; eigenvalues [D] of the covariance; eps."""

    mean: Tensor
    eigenvectors: Tensor
    eigenvalues: Tensor
    eps: float = 1e-7

    @property
    def dims(self) -> int:
        return self.eigenvectors.shape[1]

    @property
    def sha256(self) -> str:
        return state_sha256({"mean": self.mean, "eigenvectors": self.eigenvectors, "eigenvalues": self.eigenvalues})

    def apply(self, regions: Tensor) -> Tensor:
        """[..., C] -> [..., D] unit vectors: (x - mean) V / sqrt(d + eps), then L2. Raises ArgumentError for another C."""
        if regions.shape[-1] != len(self.mean):
            raise ArgumentError(
                f"whitening: it is of {len(self.mean)} channels, and the backbone gives {regions.shape[-1]}; take the "
                "whitening that was fitted with this backbone"
            )
        scale = self.eigenvectors * torch.rsqrt(self.eigenvalues + self.eps)
        return F.normalize((regions - self.mean) @ scale, dim=-1)

    def to(self, device: torch.device | str) -> Whitening:
        return Whitening(self.mean.to(device), self.eigenvectors.to(device), self.eigenvalues.to(device), self.eps)


def fit_whitening(regions: Tensor, *, dims: int, eps: float = 1e-7) -> Whitening:
    """Fit on regions [N, C], float32, N > dims and C >= dims. Raises ArgumentError if a value is not finite."""
    count, channels = regions.shape
    if not torch.isfinite(regions).all():
        raise ArgumentError("whitening: regions hold NaN or infinite values; check the backbone's weights and input")
    mean = regions.double().mean(0)
    centered = regions.double() - mean
    if count < channels:
        # Fewer samples than channels: the small Gram matrix has the same non-zero spectrum.
        values, vectors = torch.linalg.eigh(centered @ centered.T / (count - 1))
        values, vectors = values.flip(0)[:dims], vectors.flip(1)[:, :dims]
        eigenvectors = F.normalize(centered.T @ vectors, dim=0)
    else:
        values, vectors = torch.linalg.eigh(centered.T @ centered / (count - 1))
        values, eigenvectors = values.flip(0)[:dims], vectors.flip(1)[:, :dims]
    return Whitening(mean.float(), eigenvectors.float(), values.clamp_min(0).float(), eps)


def whitening_to_bytes(whitening: Whitening) -> bytes:
    """As a safetensors file."""
    tensors = {
        "mean": whitening.mean,
        "eigenvectors": whitening.eigenvectors.contiguous(),
        "eigenvalues": whitening.eigenvalues,
        "eps": torch.tensor(whitening.eps, dtype=torch.float64),
    }
    return save_safetensors(tensors)


def whitening_from_bytes(data: bytes) -> Whitening:
    """The inverse of `whitening_to_bytes`. Raises KeyError, ValueError or SafetensorError for anything else."""
    tensors = load_safetensors(data)
    mean, eigenvectors, eigenvalues, eps = (tensors[name] for name in ("mean", "eigenvectors", "eigenvalues", "eps"))
    fits = [*mean.shape, *eigenvalues.shape] == [*eigenvectors.shape] and not eps.ndim
    if not fits or not all(one.is_floating_point() and one.isfinite().all() for one in tensors.values()):
        raise ValueError("its tensors do not go together, or hold other values than finite numbers")
    return Whitening(mean, eigenvectors, eigenvalues, float(eps))


def save_whitening(root: DataRoot, whitening: Whitening, provenance: Provenance) -> None:
    """Store under the data root; the JSON with the provenance comes last."""
    root.delete(PROVENANCE_NAME)
    with root.write(WEIGHTS_NAME) as stream:
        stream.write(whitening_to_bytes(whitening))
    data = {"provenance": provenance.to_json(), "sha256": whitening.sha256, "dims": whitening.dims}
    root.write_json(PROVENANCE_NAME, data)


def load_whitening(root: DataRoot) -> Whitening:
    """The stored whitening. Raises DataError if it has not been fitted, DamagedError if its files are damaged."""
    wanted = root.read_json(PROVENANCE_NAME).get("sha256")
    with root.corruption_errors(WEIGHTS_NAME, hint=HINT), root.open(WEIGHTS_NAME) as file:
        whitening = whitening_from_bytes(file.read())
        if whitening.sha256 != wanted:
            raise ValueError(f"its digest is not that of {PROVENANCE_NAME}")
    return whitening


def whitening_provenance(root: DataRoot) -> Provenance | None:
    """What the stored whitening was fitted on; None while there is none. Raises DamagedError if that cannot be read."""
    if not root.exists(PROVENANCE_NAME):
        return None
    data = root.read_json(PROVENANCE_NAME)
    with root.corruption_errors(PROVENANCE_NAME, hint=HINT):
        return Provenance.from_json(data["provenance"])
