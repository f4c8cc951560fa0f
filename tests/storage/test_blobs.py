"""Blobs: the same promises from a folder, from memory, and from S3, which moto plays."""

import gc
import importlib.util
import itertools
import os
import resource
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from s3_server import NEEDS_S3

from kgexp.errors import CheckpointError, ConfigError
from kgexp.storage.base import Storage
from kgexp.storage.blobs import Blobs, LocalBlobs
from kgexp.storage.local import LocalStorage
from kgexp.storage.memory import MemoryStorage
from kgexp.storage.remote import RemoteBlobs, RemoteStorage

KINDS = ["folder", "file://", "memory://", "s3://"]
_numbers = itertools.count()


@pytest.fixture(params=[pytest.param(kind, marks=NEEDS_S3 if kind == "s3://" else ()) for kind in KINDS])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    """Blobs of every kind, of which there are none yet."""
    if request.param == "folder":
        return opened(MemoryStorage(), tmp_path / "run")
    if request.param == "s3://":
        return RemoteStorage(f"s3://graphs/{next(_numbers)}", request.getfixturevalue("s3"), 2).blobs()
    place = f"file://{tmp_path}/run/" if request.param == "file://" else f"memory://graphs/{next(_numbers)}"
    return RemoteStorage(place, {}, 2).blobs()


def opened(storage: Storage, folder: Path) -> Blobs:
    storage.open(folder)
    return storage.blobs()


def read(blobs: Blobs, name: str, start: int, size: int) -> bytes:
    into = bytearray(size)
    blobs.read(name, start, memoryview(into))
    return bytes(into)


def test_any_range_of_a_blob_is_read(blobs: Blobs) -> None:
    data = os.urandom(1013)
    assert blobs.write("rows/entity-00003.17.safetensors", [data[:8], memoryview(data)[8:500], b"", data[500:]]) == 1013
    assert blobs.size("rows/entity-00003.17.safetensors") == 1013
    for start, size in [(0, 1013), (0, 8), (499, 3), (1012, 1)]:
        assert read(blobs, "rows/entity-00003.17.safetensors", start, size) == data[start : start + size]
    numbers = memoryview(bytearray(16)).cast("q")  # of any format
    blobs.read("rows/entity-00003.17.safetensors", 1, numbers)
    assert numbers.tobytes() == data[1:17]


def test_a_blob_of_many_parts_and_pieces_is_whole(blobs: Blobs) -> None:
    chunk = os.urandom(1_000_003)
    assert blobs.write("big", itertools.repeat(chunk, 21)) == 21_000_063  # two parts of an upload
    assert read(blobs, "big", 0, 21_000_063) == chunk * 21
    assert read(blobs, "big", 19_999_999, 1_000_064) == (chunk * 21)[19_999_999:]


def test_an_empty_blob_is_there(blobs: Blobs) -> None:
    assert blobs.write("empty", []) == 0
    assert blobs.size("empty") == 0 and blobs.names() == ["empty"]


def parts_of_which_the_last_fails(size: int) -> Iterator[bytes]:
    yield bytes(size)
    raise OSError("a part of ours cannot be had")


def test_a_blob_whose_parts_fail_is_not_there_at_all(blobs: Blobs) -> None:
    with pytest.raises(OSError, match="a part of ours"):
        blobs.write("rows/a", parts_of_which_the_last_fails(9_000_000))
    assert blobs.size("rows/a") is None and blobs.names() == []
    if isinstance(blobs, LocalBlobs):
        assert not list((blobs.folder / "rows").iterdir())


def test_a_blob_that_a_killed_process_left_is_replaced(blobs: Blobs) -> None:
    blobs.write("a", [b"from before"])
    blobs.write("a", [b"now"])
    assert read(blobs, "a", 0, 3) == b"now" and blobs.size("a") == 3


def test_a_missing_or_short_blob_is_named(blobs: Blobs) -> None:
    with pytest.raises(CheckpointError, match=f"^{blobs.describe('rows/a')} .*take another checkpoint"):
        read(blobs, "rows/a", 0, 5)
    blobs.write("rows/a", [b"0123456"])
    for start, size in [(0, 8), (5, 3), (7, 1), (100, 3), (0, 20_000_000)]:
        with pytest.raises(
            CheckpointError, match=f"^{blobs.describe('rows/a')} ends at byte 7 instead of {start + size}"
        ):
            read(blobs, "rows/a", start, size)


def test_names_are_sorted_and_chosen_by_how_they_begin(blobs: Blobs) -> None:
    assert blobs.names() == blobs.names("rows/") == []
    names = ["rows/entity-1", "rows/entity-0.1", "rows/relation-0", "rows", "rowsets/a/b", "index.json"]
    if isinstance(blobs, (LocalBlobs, RemoteBlobs)) and not blobs.describe("").startswith("s3"):
        names.remove("rows")  # which is a folder there
    for name in names:
        blobs.write(name, [b"x"])
    assert blobs.names() == sorted(names)
    assert blobs.names("rows/entity-") == ["rows/entity-0.1", "rows/entity-1"]
    assert blobs.names("rows/") == ["rows/entity-0.1", "rows/entity-1", "rows/relation-0"]
    assert blobs.names("row") == sorted(name for name in names if name.startswith("row"))
    assert blobs.names("nowhere/a") == []
    assert blobs.size("rowsets") is None


def test_what_is_deleted_is_gone_and_may_be_deleted_again(blobs: Blobs) -> None:
    blobs.write("rows/a", [b"x"])
    blobs.write("rows/b", [b"y"])
    for _ in range(2):
        blobs.delete("rows/a")
        blobs.delete("nowhere/at/all")
        assert blobs.names() == ["rows/b"] and blobs.size("rows/a") is None


def test_what_is_synced_is_read_by_others(blobs: Blobs) -> None:
    for name in ("rows/a", "deep/er/b", "c"):
        blobs.write(name, [name.encode()])
    blobs.sync(["rows/a", "deep/er/b", "c"])
    blobs.sync([])
    assert read(blobs, "deep/er/b", 0, 9) == b"deep/er/b"


def test_of_eight_that_create_a_blob_one_wins(blobs: Blobs) -> None:
    everyone = threading.Barrier(8)

    def create(number: int) -> bool:
        everyone.wait()
        return blobs.create("commits/last", f"by {number}".encode())

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert sum(won) == 1
    assert read(blobs, "commits/last", 0, 4) == f"by {won.index(True)}".encode()
    assert blobs.names() == ["commits/last"]
    assert not blobs.create("commits/last", b"late")


def test_threads_read_and_write_at_once(blobs: Blobs) -> None:
    def work(number: int) -> None:
        for round_ in range(3):
            data = os.urandom(10_007 + number)
            blobs.write(f"rows/{number}.{round_}", [data])
            assert read(blobs, f"rows/{number}.{round_}", 7, 10_000 + number) == data[7:]
            if round_:
                blobs.delete(f"rows/{number}.{round_ - 1}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert blobs.names() == [f"rows/{number}.2" for number in range(6)]


def test_a_local_blob_is_a_file_and_temporary_ones_are_none(tmp_path: Path) -> None:
    blobs = opened(LocalStorage(str(tmp_path / "tables")), tmp_path / "run")
    blobs.write("rows/a", [b"x"])
    assert (tmp_path / "run/checkpoints/rows/a").read_bytes() == b"x"
    (tmp_path / "run/checkpoints/rows/b.17.0.tmp").write_bytes(b"killed")
    assert blobs.names() == ["rows/a"]


def test_a_full_disk_is_said_with_its_folder_and_the_bytes(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, limits[1]))  # of a file: for the writer, as a full disk
    try:
        with pytest.raises(ConfigError, match=rf"^{tmp_path} has room for [\d,]+ bytes, but not for the [\d,]+ of a "):
            blobs.write("a", [bytes(30_000_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"file/a cannot be written \("):
        LocalBlobs(tmp_path / "file").write("a", [b"x"])


class Trouble:
    """Fails so often, then does as it should."""

    def __init__(self, function, error, times):
        self.function, self.error, self.times, self.calls = function, error, times, 0

    def __call__(self, *args, **options):
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.function(*args, **options)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr("time.sleep", taken.append)
    return taken


def failing(monkeypatch, method, error, times):
    from fsspec.implementations.memory import MemoryFileSystem

    trouble = Trouble(getattr(MemoryFileSystem, method), error, times)
    monkeypatch.setattr(MemoryFileSystem, method, lambda *args, **options: trouble(*args, **options))
    return trouble


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), OSError(16, "Please slow down")])
def test_what_passes_is_tried_again_after_longer_and_longer_pauses(monkeypatch, pauses, error) -> None:
    blobs = RemoteBlobs(f"memory://{next(_numbers)}", {}, 3)
    blobs.write("a", [b"0123"])
    for method, use in [
        ("cat_file", lambda: read(blobs, "a", 1, 2) == b"12"),
        ("info", lambda: blobs.size("a") == 4),
        ("find", lambda: blobs.names() == ["a"]),
        ("pipe_file", lambda: blobs.write("b", [b"x"]) == 1),
        ("rm_file", lambda: blobs.delete("a") is None),
    ]:
        trouble = failing(monkeypatch, method, error, 3)
        pauses.clear()
        assert use()
        assert trouble.calls >= 4 and len(pauses) == 3
        assert all(0.5 <= after / before <= 4 for before, after in itertools.pairwise(pauses)) and pauses[2] > pauses[0]


def test_tries_end_with_the_url_and_what_to_do(monkeypatch, pauses) -> None:
    blobs = RemoteBlobs("memory://tired", {}, 2)
    blobs.write("a", [b"0123"])
    trouble = failing(monkeypatch, "cat_file", TimeoutError("no answer"), 9)
    with pytest.raises(
        CheckpointError, match=r"^memory://tired/a cannot be read \(no answer\): .*resume the run once .*\.$"
    ):
        read(blobs, "a", 0, 4)
    assert trouble.calls == 3


def test_who_is_refused_does_not_try_again(monkeypatch, pauses) -> None:
    blobs = RemoteBlobs("memory://closed", {}, 5)
    blobs.write("a", [b"0123"])
    trouble = failing(monkeypatch, "cat_file", PermissionError("Access Denied"), 9)
    with pytest.raises(CheckpointError, match=r"a cannot be read \(Access Denied\): give credentials .*environment"):
        read(blobs, "a", 0, 4)
    assert trouble.calls == 1 and not pauses


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """Answers every request for an object with the next of its `answers`: a status; then it has ten bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = self.server.answers
            self.server.asked += 1
            status = answers.pop(0) if answers else 206
            body = b"0123456789" if status == 206 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.asked = [], 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@NEEDS_S3
@pytest.mark.parametrize(
    ("answers", "asked", "words"), [([503], 2, None), ([403] * 9, 1, "give credentials"), ([500] * 9, 2, "resume")]
)
def test_the_client_of_s3_tries_each_request_again(s3, server, answers, asked, words) -> None:
    options = s3 | {"endpoint_url": f"http://127.0.0.1:{server.server_port}"}
    blobs = RemoteBlobs("s3://graphs/run", options, 1)
    server.answers = list(answers)
    if words is None:
        assert read(blobs, "a", 0, 10) == b"0123456789"
        assert server.asked == asked
    else:
        with pytest.raises(CheckpointError, match=rf"^s3://graphs/run/a cannot be looked up \(.*{words}"):
            blobs.size("a")
        assert server.asked == asked


@NEEDS_S3
def test_a_bucket_that_is_not_there_is_named(s3) -> None:
    blobs = RemoteBlobs("s3://nowhere/run", s3, 3)
    with pytest.raises(CheckpointError, match=r"^s3://nowhere/run/a cannot be written \(.*check storage\.url"):
        blobs.write("a", [b"x"])


@NEEDS_S3
def test_an_upload_that_failed_leaves_nothing_to_pay_for(s3) -> None:
    from fsspec import filesystem

    blobs = RemoteBlobs("s3://graphs/failed", s3, 0)
    with pytest.raises(OSError, match="a part of ours"):
        blobs.write("a", parts_of_which_the_last_fails(18_000_000))
    gc.collect()  # the file that was abandoned
    assert blobs.names() == []
    assert not filesystem("s3", **s3, skip_instance_cache=True).list_multipart_uploads("graphs")


def test_the_package_that_is_missing_is_named(monkeypatch) -> None:
    importlib.import_module("fsspec.core")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # which was imported before
    with pytest.raises(ConfigError, match=r"storage\.url=s3://graphs/a needs a package .*pip install 'kgexp\[s3\]'"):
        RemoteBlobs("s3://graphs/a", {}, 0)


def test_a_url_that_nobody_knows_is_named() -> None:
    with pytest.raises(ConfigError, match=r"storage\.url=nosuch://graphs/a and its options mean nothing to fsspec"):
        RemoteBlobs("nosuch://graphs/a", {}, 0)
