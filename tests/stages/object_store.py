"""An S3 server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs as pafs
import pytest


@contextmanager
def empty_bucket() -> Iterator[str]:
    """The URL of a bucket; who the server is and who we are comes from the environment, as it does for users."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "anybody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        pafs.FileSystem.from_uri("s3://videos?allow_bucket_creation=true")[0].create_dir("videos")
        yield "s3://videos/collection"
    server.stop()
