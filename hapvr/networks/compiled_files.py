"""What OpenVINO made of a packaged network, in the user's cache: reading it takes a third of the
processor time of compiling, and the network computes the same."""

import hashlib
import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hapvr.files import cache_folder, digest_of, read_bytes, write_atomic

_DIGEST_BYTES = 32


def compiled(
    core: Any, content: bytes, properties: Mapping[str, Any], compile_content: Callable[[], Any]
) -> Any:
    """A compiled network of OpenVINO, from the cache or for the cache, if there is one.

    core: of OpenVINO
    content: of the network's file
    properties: that it is compiled with
    compile_content: compiles the content
    """
    try:
        folder = cache_folder("networks")
    except OSError:
        return compile_content()
    place = folder / f"{_key(core, content, properties)}.blob"
    # what is damaged, or of no use to this OpenVINO, is replaced
    with suppress(OSError, ValueError, RuntimeError):
        return core.import_model(io.BytesIO(_read(place)), "CPU", dict(properties))
    network = compile_content()
    with suppress(OSError):  # a full disk, or one that may only be read
        _write(place, network.export_model().getvalue())
    return network


def _key(core: Any, content: bytes, properties: Mapping[str, Any]) -> str:
    """32 hex digits of everything that decides what is made."""
    made_by = [
        str(core.get_versions("CPU")["CPU"].build_number),
        str(core.get_property("CPU", "FULL_DEVICE_NAME")),
        sorted(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
    ]
    return digest_of([hashlib.sha256(content).hexdigest(), dict(properties), made_by])[:32]


def _read(place: Path) -> bytes:
    """Raises OSError where there is no such file, ValueError for one that is damaged."""
    stored = read_bytes(place)
    blob = stored[_DIGEST_BYTES:]
    if hashlib.sha256(blob).digest() != stored[:_DIGEST_BYTES]:
        raise ValueError(f"{place} is damaged")
    return blob


def _write(place: Path, blob: bytes) -> None:
    with write_atomic(place) as part:
        part.write_bytes(hashlib.sha256(blob).digest() + blob)
