"""An S3 server of this process, played by moto; no network and no credentials."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NEEDS_S3 = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("moto", "s3fs"))), reason="moto and s3fs are not installed"
)


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Options for a server with the bucket `graphs`; the environment has what its clients need meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "of-nobody")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        from aiobotocore.session import AioSession
        from fsspec import filesystem
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}", "session": AioSession()}  # one, which is slow to make
        filesystem("s3", **options, skip_instance_cache=True).mkdir("graphs")
        yield options
        server.stop()
