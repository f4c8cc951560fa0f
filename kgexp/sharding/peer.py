"""The one who asks another rank's service for tensors: see `kgexp.sharding.service`."""

import socket
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

import torch
from torch import Tensor

from kgexp.errors import CheckpointError, KgexpError, NonFiniteError, RankError
from kgexp.sharding.messages import Counts, Message, pack, unpack
from kgexp.sharding.service import authorization

#: Errors that stay what they are on their way to the one who asked.
_ERRORS: dict[str, type[KgexpError]] = {kind.__name__: kind for kind in (CheckpointError, NonFiniteError)}


class Peer(Counts):
    """The service of another rank. Any number of threads may ask at once, each over a connection of its own, which is
    kept for who asks next.

    Args:
        address: of the service.
        secret: of the service.
        timeout: seconds without a byte after which the service counts as lost; well over `service.PATIENCE`.
        name: for errors, such as `rank 3`.
    """

    def __init__(self, address: str, secret: str, timeout: float, name: str) -> None:
        super().__init__()
        self._address, self._timeout, self._name = address, timeout, name
        self._authorization = authorization(secret)
        self._kept: list[HTTPConnection] = []

    def ask(
        self,
        path: str,
        values: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        into: Mapping[str, Tensor] | None = None,
        wire: torch.dtype | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Message:
        """What the service answers; asks again for as long as it says "not yet".

        Args:
            path: names the answer.
            values, tensors: of the request.
            into: tensors that those of the answer go into: see `unpack`.
            wire: to which floating tensors are rounded on the way, there and back.
            check: called after each "not yet"; what it raises ends the waiting.

        Raises:
            RankError: the service cannot be reached, was lost, refuses the request, or failed to answer it.
            CheckpointError, NonFiniteError: the same happened over there.
        """
        request = Message(values or {}, tensors or {}, wire)
        while (reply := self._ask(path, request, into)) is None:
            check()
        return reply

    def close(self) -> None:
        """Ends the connections that nobody uses; they are made again when needed."""
        while self._kept:
            self._kept.pop().close()

    def _ask(self, path: str, request: Message, into: Mapping[str, Tensor] | None) -> Message | None:
        try:
            connection = self._sent(path, request)
            try:
                response = connection.getresponse()
                reply = self._reply(response, into)
            except BaseException:
                connection.close()  # more of this answer may come on it
                raise
        except (OSError, HTTPException, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RankError(
                f"{self._name} at {self._address} did not answer {path} ({reason}): look into its log; continue the "
                "run with resume=auto."
            ) from error
        if not response.will_close:
            self._kept.append(connection)
        if response.status in (200, 204):
            return reply
        raise self._error(path, response, reply)

    def _sent(self, path: str, request: Message) -> HTTPConnection:
        """A connection over which the request went out.

        A kept one that turns out dead is replaced. Nothing goes out twice once it went out whole: the service may have
        done what it says.
        """
        while (kept := self._pop()) is not None:
            try:
                self._send(kept, path, request)
                return kept
            except ConnectionError:
                continue
        connection = HTTPConnection(self._address, timeout=self._timeout)
        self._send(connection, path, request)
        return connection

    def _pop(self) -> HTTPConnection | None:
        """A kept connection that the other side has not closed."""
        while self._kept:
            try:
                connection = self._kept.pop()
            except IndexError:  # another thread took the last one
                break
            if _open(connection.sock, self._timeout):
                return connection
            connection.close()
        return None

    def _send(self, connection: HTTPConnection, path: str, request: Message) -> None:
        size, parts = pack(request)
        headers = {"Authorization": self._authorization, "Content-Length": str(size)}
        try:
            connection.request("POST", path, parts, headers)
        except BaseException:
            connection.close()
            raise
        self.count(sent=size)

    def _reply(self, response: HTTPResponse, into: Mapping[str, Tensor] | None) -> Message | None:
        size = int(response.headers.get("Content-Length", 0))
        reply = unpack(response, size, into if response.status == 200 else None) if size else None
        response.read()  # nothing, but now the connection knows that it is free
        self.count(received=size)
        return reply

    def _error(self, path: str, response: HTTPResponse, reply: Message | None) -> KgexpError:
        if reply is not None:
            return _ERRORS.get(reply.values["kind"], RankError)(f"{self._name}: {reply.values['sentence']}")
        return RankError(
            f"{self._name} at {self._address} refused {path} ({response.status} {response.reason}): it belongs to "
            "another job or is of another version; start all ranks anew, from the same code."
        )


def _open(sock: socket.socket, timeout: float) -> bool:
    """Whether a connection on which nothing is to come is still open at the other end."""
    sock.settimeout(0.0)
    try:
        sock.recv(1, socket.MSG_PEEK)
        return False  # its end, or what nobody asked for
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        sock.settimeout(timeout)
