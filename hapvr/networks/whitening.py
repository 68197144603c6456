"""PCA whitening of region vectors (method 1.2)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load as load_safetensors, save as save_safetensors

from hapvr.data.filesystem import DataRoot
from hapvr.errors import ArgumentError, DataError
from hapvr.files import arrays_sha256
from hapvr.provenance import Provenance

STAGE = "whitening"
WEIGHTS_NAME = "whitening/whitening.safetensors"
PROVENANCE_NAME = "whitening/whitening.json"
RESTORE = "restore it from a copy, or remove whitening/ to begin anew"
HINT = "materialise whitening again (`hapvr extract` does), or import it again if it was imported"
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Whitening:
    """The projection of regions of C values onto D of their principal components."""

    mean: Floats
    """[C]."""
    eigenvectors: Floats
    """[C, D], columns by falling eigenvalue."""
    eigenvalues: Floats
    """[D], of the covariance."""
    eps: float = 1e-7

    @property
    def dims(self) -> int:
        return int(self.eigenvectors.shape[1])

    @property
    def scale(self) -> Floats:
        """[C, D], V / sqrt(d + eps)."""
        return np.asarray(self.eigenvectors / np.sqrt(self.eigenvalues + self.eps), np.float32)

    @property
    def sha256(self) -> str:
        return arrays_sha256(
            {"mean": self.mean, "eigenvectors": self.eigenvectors, "eigenvalues": self.eigenvalues}
        )

    def apply(self, regions: ArrayLike) -> Floats:
        """[..., C] -> [..., D] unit vectors: (x - mean) V / sqrt(d + eps), then L2. Raises
        ArgumentError for another C."""
        values = np.asarray(regions, np.float32)
        self.require(values.shape[-1])
        projected = (values - self.mean) @ self.scale
        norms = np.linalg.norm(projected, axis=-1, keepdims=True).clip(min=1e-12)
        return np.asarray(projected / norms, projected.dtype)

    def require(self, channels: int) -> None:
        """Raise ArgumentError for a backbone of another number of channels."""
        if channels != len(self.mean):
            raise ArgumentError(
                f"whitening: it has {len(self.mean)} channels, and the backbone gives {channels}; "
                "import the whitening of this backbone, or remove the folder whitening/ to have "
                "one fitted"
            )


def fit_whitening(regions: ArrayLike, *, dims: int, eps: float = 1e-7) -> Whitening:
    """Fit on regions [N, C], finite, N > dims and C >= dims."""
    sample = np.asarray(regions)
    mean = sample.mean(0, dtype=np.float64)
    # one block in float64 at a time
    centered = (sample[start : start + 8192] - mean for start in range(0, len(sample), 8192))
    covariance = sum(part.T @ part for part in centered) / (len(sample) - 1)
    rising_values, rising_vectors = np.linalg.eigh(covariance)
    values = rising_values[::-1][:dims]
    vectors = rising_vectors[:, ::-1][:, :dims]
    return Whitening(
        mean=np.ascontiguousarray(mean, np.float32),
        eigenvectors=np.ascontiguousarray(vectors, np.float32),
        eigenvalues=np.ascontiguousarray(values.clip(min=0), np.float32),
        eps=eps,
    )


def whitening_to_bytes(whitening: Whitening) -> bytes:
    """A whitening as a safetensors file."""
    # safetensors writes the memory of an array as it is
    tensors = {
        name: np.ascontiguousarray(getattr(whitening, name))
        for name in ("mean", "eigenvectors", "eigenvalues")
    }
    return save_safetensors({**tensors, "eps": np.array(whitening.eps, np.float64)})


def whitening_from_bytes(data: bytes) -> Whitening:
    """The inverse of `whitening_to_bytes`. Raises KeyError, ValueError or SafetensorError for
    anything else."""
    tensors = load_safetensors(data)
    mean = tensors["mean"]
    eigenvectors = tensors["eigenvectors"]
    eigenvalues = tensors["eigenvalues"]
    eps = tensors["eps"]
    fits = (*mean.shape, *eigenvalues.shape) == eigenvectors.shape and not eps.ndim
    finite = all(
        values.dtype.kind == "f" and np.isfinite(values).all() for values in tensors.values()
    )
    if not fits or not finite:
        raise ValueError("its tensors do not go together, or hold other values than finite numbers")
    return Whitening(mean, eigenvectors, eigenvalues, float(eps))


def save_whitening(root: DataRoot, whitening: Whitening, provenance: Provenance) -> None:
    """Store a whitening below the data root. The JSON is written first, so that tensors without it
    belong to a whitening that was lost."""
    data = {"provenance": provenance.to_json(), "sha256": whitening.sha256, "dims": whitening.dims}
    root.write_json(PROVENANCE_NAME, data)
    with root.write(WEIGHTS_NAME) as stream:
        stream.write(whitening_to_bytes(whitening))


def load_whitening(root: DataRoot) -> Whitening:
    """The stored whitening. Raises DataError if it has not been fitted, DamagedError if its files
    are damaged."""
    wanted = root.read_json(PROVENANCE_NAME, hint=RESTORE).get("sha256")
    with root.corruption_errors(WEIGHTS_NAME, hint=HINT):
        if not root.exists(WEIGHTS_NAME):
            raise ValueError("it is lost")
        with root.open(WEIGHTS_NAME) as file:
            whitening = whitening_from_bytes(file.read())
        if whitening.sha256 != wanted:
            raise ValueError(f"its digest is not that of {PROVENANCE_NAME}")

    return whitening


def whitening_provenance(root: DataRoot) -> Provenance | None:
    """What the stored whitening was fitted on; None if there is no whitening. Raises DamagedError
    if that cannot be read, and DataError if the whitening is lost, since another one would mean
    extracting all features again."""
    if not root.exists(PROVENANCE_NAME):
        if root.exists(WEIGHTS_NAME):
            raise DataError(f"whitening: {PROVENANCE_NAME} is lost; {RESTORE}")
        return None

    data = root.read_json(PROVENANCE_NAME, hint=RESTORE)
    with root.corruption_errors(PROVENANCE_NAME, hint=RESTORE):
        return Provenance.from_json(data["provenance"])


def unwhitened(dims: int) -> Whitening:
    """The whitening that leaves unit vectors of `dims` values as they are, for networks whose
    vectors are compared directly."""
    return Whitening(
        mean=np.zeros(dims, np.float32),
        eigenvectors=np.eye(dims, dtype=np.float32),
        eigenvalues=np.ones(dims, np.float32),
        eps=0.0,
    )
