"""A service that hands tensors to other ranks over HTTP, outside any collective: one asks, a thread of ours answers.

A request is `POST /path` with a message (`kgexp.sharding.messages`) as its body, and so is what comes back:

    200  the answer
    204  not yet: to be asked again
    403  the secret of another job; 404 nothing is answered here; 400, 413 a body that is no message, or too large
    500  the answer failed: the message says why

`kgexp.sharding.peer` is the other side.
"""

import hmac
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import Any, Self

from kgexp.errors import KgexpError
from kgexp.sharding.messages import Counts, Message, pack, unpack

log = logging.getLogger("kgexp")

#: What a service does with a request. None says "not yet", after `PATIENCE` seconds of waiting at most, not at once:
#: the whole request comes again.
Answer = Callable[[Message], Message | None]

#: Seconds that an answer may wait for what is asked: far fewer than those after which a service counts as lost.
PATIENCE = 2.0


class TensorService(Counts):
    """Answers requests from now on, each in the thread of its connection; a context, closed at its end.

    Tensors are sent from where they are. Before their memory is used again the peer has to say, in another request,
    that it has them.

    Args:
        answers: by path, such as `/slice`. What one raises is raised again where it was asked for.
        host: name or address of this machine by which peers reach it: see `kgexp.sharding.hosts`.
        secret: ASCII; every request carries it.
        max_bytes: of a request's body.

    Attributes:
        address: `host:port`, of a port that the system chose.

    Raises:
        OSError: the host is not this machine.
    """

    def __init__(self, answers: Mapping[str, Answer], host: str, secret: str, max_bytes: int = 4 << 30) -> None:
        super().__init__()
        self._server = _Server(host, answers, authorization(secret), max_bytes, self.count)
        port = self._server.server_address[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="tensors", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the service and its connections: peers that wait for an answer hear of it. May be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._server.disconnect()


def authorization(secret: str) -> str:
    """The header by which a request shows that it belongs to the job."""
    return f"Bearer {secret}"


class _Server(ThreadingTCPServer):
    """The sockets; not http.server's own, which looks up the full name of the host, for seconds where there is none."""

    daemon_threads = True
    request_queue_size = 128  # many ranks may come at once

    def __init__(
        self,
        host: str,
        answers: Mapping[str, Answer],
        authorization: str,
        max_bytes: int,
        count: Callable[[int, int], None],
    ) -> None:
        self.answers, self.authorization, self.max_bytes, self.count = answers, authorization, max_bytes, count
        self._connections: set[socket.socket] = set()
        self.address_family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        super().__init__((str(place[0]), 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # firewalls forget connections that are silent for long
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def disconnect(self) -> None:
        """Ends the connections that there are."""
        for connection in list(self._connections):
            with suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Of a connection: a peer that went away says so to its own rank."""
        if not isinstance(sys.exception(), OSError):
            log.exception("A connection to %s failed.", client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Reads a request and writes what comes of it."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True  # where the next request begins is unknown
            return self._write(HTTPStatus.LENGTH_REQUIRED)
        size = int(length)
        if status := self._refusal(size):
            self._discard(size)  # whoever is still sending would not read the refusal
            return self._write(status)
        try:
            request = unpack(self.rfile, size)
        except ValueError:
            self.close_connection = True
            return self._write(HTTPStatus.BAD_REQUEST)
        self.server.count(0, size)
        status, reply = self._answer(request)
        return self._write(status, reply)

    def log_message(self, *_: Any) -> None:
        """Requests are too many to be logged."""

    def _refusal(self, size: int) -> HTTPStatus | None:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), self.server.authorization.encode()):
            return HTTPStatus.FORBIDDEN
        if self.path not in self.server.answers:
            return HTTPStatus.NOT_FOUND
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if size > self.server.max_bytes else None

    def _discard(self, size: int) -> None:
        while size:
            got = len(self.rfile.read(min(size, 1 << 16)))
            if not got:
                raise ConnectionError
            size -= got

    def _answer(self, request: Message) -> tuple[HTTPStatus, Message | None]:
        try:
            reply = self.server.answers[self.path](request)
        except Exception as error:
            if not isinstance(error, KgexpError):
                log.exception("%s could not be answered.", self.path)
            sentence = str(error) if isinstance(error, KgexpError) else f"{type(error).__name__}: {error}"
            values = {"kind": type(error).__name__, "sentence": sentence}
            return HTTPStatus.INTERNAL_SERVER_ERROR, Message(values)
        if reply is None:
            return HTTPStatus.NO_CONTENT, None
        return HTTPStatus.OK, replace(reply, wire=request.wire)

    def _write(self, status: HTTPStatus, message: Message | None = None) -> None:
        size, parts = pack(message) if message is not None else (0, iter(()))
        self.send_response_only(status)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(size))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        for part in parts:
            self.wfile.write(part)
        self.server.count(size, 0)
