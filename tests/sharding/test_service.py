"""Tensors over HTTP: what arrives is what was sent, in bounded memory; whoever fails is named at once."""

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load, save
from torch._C._distributed_c10d import PrefixStore, TCPStore

from kgexp.errors import CheckpointError, RankError
from kgexp.sharding.hosts import reachable_host
from kgexp.sharding.messages import Message, pack
from kgexp.sharding.peer import Peer
from kgexp.sharding.service import TensorService

pytestmark = pytest.mark.timeout(60)

SECRET = "a-secret-of-the-job"
TABLE = torch.arange(7 * 1013, dtype=torch.float32).reshape(1013, 7).sin()


class Slow:
    """What is asked for comes with the third question."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _: Message) -> Message | None:
        self.asked += 1
        return Message({"after": self.asked}) if self.asked == 3 else None


def fail(request: Message) -> Message:
    raise {"checkpoint": CheckpointError, "rank": RankError, "other": ZeroDivisionError}[request.values["kind"]](
        "rows 3 to 5 are\nnot here."
    )


@pytest.fixture
def service() -> Iterator[TensorService]:
    answers = {
        "/echo": lambda request: request,
        "/rows": lambda request: Message({}, {"rows": TABLE[request.values["from"] : request.values["to"]]}),
        "/sum": lambda request: Message({}, {"sum": torch.stack(list(request.tensors.values())).sum(0)}),
        "/slow": Slow(),
        "/fail": fail,
        "/transposed": lambda _: Message({}, {"rows": TABLE.T[1:]}),
    }
    with TensorService(answers, "127.0.0.1", SECRET, max_bytes=1 << 20) as service:
        yield service


@pytest.fixture
def peer(service: TensorService) -> Iterator[Peer]:
    peer = Peer(service.address, SECRET, 10.0, "rank 3")
    yield peer
    peer.close()


def test_tensors_and_values_come_back_as_they_were_sent(service: TensorService, peer: Peer) -> None:
    tensors = {
        "float": TABLE[:20],
        "double": TABLE[:3].double() / 3,
        "half": TABLE[:5].half(),
        "bfloat": TABLE[:1].bfloat16(),
        "long": torch.tensor([[2**62, -1]]),
        "byte": torch.arange(255, dtype=torch.uint8),
        "none": torch.empty(0, 7),
        "narrow": torch.empty(7, 0),
        "number": torch.tensor(2.5),
        "gradient": torch.nn.Parameter(TABLE[5]),
    }
    values = {"k": 3, "name": "ä\n", "nested": {"list": [1.5, None, True]}}
    reply = peer.ask("/echo", values, tensors)
    assert reply.values == values and list(reply.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert reply.tensors[name].dtype == tensor.dtype and torch.equal(reply.tensors[name], tensor), name
    assert peer.sent_bytes == peer.received_bytes == service.sent_bytes == service.received_bytes > 1000


def test_a_message_is_a_safetensors_file(service: TensorService) -> None:
    connection = http.client.HTTPConnection(service.address, timeout=5)
    body = save({"a": TABLE}, {"values": json.dumps({"k": 1}), "dtypes": json.dumps({"a": "F32"})})
    connection.request("POST", "/echo", body, {"Authorization": f"Bearer {SECRET}"})
    assert torch.equal(load(connection.getresponse().read())["a"], TABLE)
    connection.close()


def test_rows_go_into_the_memory_that_is_given(peer: Peer) -> None:
    whole = torch.zeros(100, 7)
    target = whole[10:40]  # with a storage offset, here as there
    assert peer.ask("/rows", {"from": 500, "to": 530}, into={"rows": target}).tensors["rows"] is target
    assert torch.equal(target, TABLE[500:530]) and not whole[:10].any() and not whole[40:].any()
    columns = torch.zeros(3, 7, 9)[:, :, 2:5].permute(0, 2, 1)[0]  # neither contiguous here …
    assert torch.equal(peer.ask("/rows", {"from": 0, "to": 3}, into={"rows": columns}).tensors["rows"], columns)
    assert torch.equal(columns, TABLE[:3])
    assert torch.equal(peer.ask("/transposed").tensors["rows"], TABLE.T[1:])  # … nor there
    wide = torch.zeros(3, 7, dtype=torch.float64)
    peer.ask("/rows", {"from": 0, "to": 3}, into={"rows": wide})
    assert torch.equal(wide, TABLE[:3].double())


def test_rows_of_another_shape_than_expected_are_refused(peer: Peer) -> None:
    with pytest.raises(
        RankError, match=r"^rank 3 at .* did not answer /rows \(rows of the shape \[3, 7\] came for \[4"
    ):
        peer.ask("/rows", {"from": 0, "to": 3}, into={"rows": torch.zeros(4, 7)})
    assert peer.ask("/echo", {"k": 1}).values == {"k": 1}


def test_floats_are_rounded_on_the_wire_and_come_back_in_their_own_dtype(peer: Peer) -> None:
    rows = torch.randn(70_001, 3)  # many pieces
    exact = peer.ask("/rows", {"from": 0, "to": 1013})
    before = peer.received_bytes
    into = {"rows": torch.zeros(1013, 7)}
    rounded = peer.ask("/rows", {"from": 0, "to": 1013}, into=into, wire=torch.bfloat16)
    assert torch.equal(rounded.tensors["rows"], exact.tensors["rows"].bfloat16().float())
    assert peer.received_bytes - before < 2 * TABLE.numel() + 500
    tensors = {"rows": rows, "ids": torch.arange(5), "half": TABLE.half(), "double": TABLE.double()}
    reply = peer.ask("/echo", {}, tensors, wire=torch.bfloat16).tensors
    assert torch.equal(reply["rows"], rows.bfloat16().float()) and torch.equal(reply["ids"], tensors["ids"])
    assert torch.equal(reply["half"], tensors["half"])  # as narrow as the wire
    assert torch.equal(reply["double"], tensors["double"].bfloat16().double())


def test_what_is_not_ready_is_asked_for_again(peer: Peer) -> None:
    checks = []
    assert peer.ask("/slow", check=lambda: checks.append(1)).values == {"after": 3}
    assert len(checks) == 2


def test_a_check_ends_the_waiting(peer: Peer) -> None:
    def check() -> None:
        raise RankError("rank 5 failed: why.")

    with pytest.raises(RankError, match=r"^rank 5 failed"):
        peer.ask("/slow", check=check)
    assert peer.ask("/echo", {"k": 1}).values == {"k": 1}


@pytest.mark.parametrize(
    ("kind", "error", "sentence"),
    [
        ("checkpoint", CheckpointError, "^rank 3: rows 3 to 5 are\nnot here.$"),
        ("rank", RankError, "^rank 3: rows 3 to 5 are\nnot here.$"),
        ("other", RankError, "^rank 3: ZeroDivisionError: rows 3"),
    ],
)
def test_the_error_of_an_answer_is_raised_where_it_was_asked_for(peer: Peer, kind, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        peer.ask("/fail", {"kind": kind})
    assert peer.ask("/echo", {"k": 1}).values == {"k": 1}


def test_a_request_of_another_job_or_version_is_refused(service: TensorService, peer: Peer) -> None:
    rows = {"rows": torch.zeros(1 << 18)}
    other = Peer(service.address, "a-secret-of-the-jog", 5.0, "rank 3")
    with closing(other), pytest.raises(RankError, match=r"refused /echo \(403 Forbidden\)"):
        other.ask("/echo", tensors=rows)
    with pytest.raises(RankError, match=r"^rank 3 at 127.* refused /ech \(404 Not Found\)"):
        peer.ask("/ech", tensors=rows)
    with pytest.raises(RankError, match=r"refused /echo \(413 "):
        peer.ask("/echo", tensors=rows)
    assert peer.ask("/echo", {"k": 1}).values == {"k": 1}
    assert service.received_bytes < 1000


@pytest.mark.parametrize("body", [b"", b"12345678", b"\xff" * 100, (2).to_bytes(8, "little") + b"{}"])
def test_a_body_that_is_no_message_is_refused(service: TensorService, body: bytes) -> None:
    connection = http.client.HTTPConnection(service.address, timeout=5)
    connection.request("POST", "/echo", body, {"Authorization": f"Bearer {SECRET}"})
    assert connection.getresponse().status == 400
    connection.close()


def test_a_service_that_has_gone_is_named_at_once() -> None:
    arrived = threading.Event()

    def wait(_: Message) -> Message:
        arrived.set()
        time.sleep(0.3)
        return Message()

    service = TensorService({"/echo": lambda request: request, "/wait": wait}, "127.0.0.1", SECRET)
    peer = Peer(service.address, SECRET, 30.0, "rank 1")
    peer.ask("/echo")
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(peer.ask, "/wait")
        assert arrived.wait(5)
        began = time.monotonic()
        service.close()
        service.close()
        with pytest.raises(RankError, match=r"rank 1 at 127\.0\.0\.1:\d+ did not answer /wait \(.*resume=auto"):
            asking.result()
    with pytest.raises(RankError, match=r"\(.*refused\): look into its log"):
        peer.ask("/echo")
    assert time.monotonic() - began < 2


def test_a_service_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        peer = Peer(f"127.0.0.1:{mute.getsockname()[1]}", SECRET, 0.2, "rank 2")
        with pytest.raises(RankError, match=r"^rank 2 at .* did not answer /rows \(timed out\)"):
            peer.ask("/rows", {"from": 0, "to": 3})


@contextmanager
def played(*answers: bytes) -> Iterator[tuple[Peer, threading.Event]]:
    """A peer of something that closes each connection after one answer, without saying so; and whether it did."""
    closed = threading.Event()

    def play() -> None:
        for answer in answers:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as requests:
                head = b"".join(iter(requests.readline, b"\r\n"))
                requests.read(int(re.search(rb"Content-Length: (\d+)", head)[1]))
                connection.sendall(answer)
            closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        playing = pool.submit(play)
        with closing(Peer(f"127.0.0.1:{listening.getsockname()[1]}", SECRET, 5.0, "rank 2")) as peer:
            yield peer, closed
        playing.result(5)


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 Yes\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    body = b"".join(pack(Message({"k": 2}))[1])
    with played(b"HTTP/1.1 204 No\r\n\r\n", answer(body)) as (peer, closed):
        assert peer.ask("/rows", check=lambda: closed.wait(5)).values == {"k": 2}


@pytest.mark.parametrize("broken", [answer(bytes(5000))[:-1000], answer(b"<html>" * 3), b"SSH-2.0\r\n", b""])
def test_what_is_no_whole_answer_is_an_error_and_not_asked_for_again(broken: bytes) -> None:
    with played(broken) as (peer, _), pytest.raises(RankError, match=r"^rank 2 at .* did not answer /rows \("):
        peer.ask("/rows")


def test_an_answer_that_is_cut_short_is_an_error() -> None:
    whole = answer(b"".join(map(bytes, pack(Message({}, {"rows": TABLE}))[1])))
    with played(whole[:-1]) as (peer, _), pytest.raises(RankError, match=r"did not answer /rows \(the stream ended"):
        peer.ask("/rows")


def test_many_threads_ask_at_once(service: TensorService, peer: Peer) -> None:
    def ask(i: int) -> None:
        for j in range(20):
            start = (37 * i + j) % 900
            reply = peer.ask("/rows", {"from": start, "to": start + 101})
            assert torch.equal(reply.tensors["rows"], TABLE[start : start + 101])
            reply = peer.ask("/sum", {}, {"a": TABLE + i, "b": TABLE * j})
            assert torch.equal(reply.tensors["sum"], torch.stack([TABLE + i, TABLE * j]).sum(0))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    deadline = time.monotonic() + 10  # the service counts a reply once it is sent, when it may have been read
    while service.sent_bytes < peer.received_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert peer.sent_bytes == service.received_bytes and peer.received_bytes == service.sent_bytes


_LARGE = """
import resource, torch
from kgexp.sharding.messages import Message, pack
from kgexp.sharding.peer import Peer
from kgexp.sharding.service import TensorService

rows = torch.ones(1 << 18, 64)
target = torch.zeros(1 << 18, 64)
with TensorService({"/rows": lambda _: Message({}, {"rows": rows.detach()})}, "127.0.0.1", "s") as service:
    peer = Peer(service.address, "s", 10.0, "rank 1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for wire in (None, torch.bfloat16):
        peer.ask("/rows", into={"rows": target.zero_()}, wire=wire)
        assert torch.equal(target[::4097], rows[::4097])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_tensor_needs_little_memory_beside_itself() -> None:
    done = subprocess.run([sys.executable, "-c", _LARGE], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 << 10  # KiB, of 64 MiB; both sides together


def test_the_host_by_which_others_reach_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def host(one_machine: bool, store: object = None) -> str:
        return reachable_host(SimpleNamespace(one_machine=one_machine, store=store))

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.2")
    assert host(True) == "127.0.0.1"
    assert host(False) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    assert host(False).startswith("127.0.0.")
    monkeypatch.setenv("MASTER_ADDR", "::1")
    assert host(False) in ("::1", host(False, SimpleNamespace(host="no such host")))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    assert host(False, PrefixStore("a", PrefixStore("b", store))) == "127.0.0.1"
    for name in (socket.gethostname(), "no such host"):  # whatever they lead to, it is where a service can be
        with TensorService({"/echo": lambda request: request}, host(False, SimpleNamespace(host=name)), SECRET) as here:
            peer = Peer(here.address, SECRET, 5.0, "rank 0")
            assert peer.ask("/echo", {"k": 1}).values == {"k": 1}
            peer.close()
