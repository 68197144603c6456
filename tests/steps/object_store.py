"""An S3 server on this machine."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs as pafs
import pytest


@contextmanager
def empty_bucket() -> Iterator[str]:
    """The URL of a bucket; who the server is and who we are comes from the environment, as it does
    for users. All servers of a process hold the same objects, so each bucket has a name of its own.
    """
    bucket = f"videos-{uuid.uuid4().hex}"
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "anybody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        pafs.FileSystem.from_uri(f"s3://{bucket}?allow_bucket_creation=true")[0].create_dir(bucket)
        yield f"s3://{bucket}/collection"

    server.stop()
