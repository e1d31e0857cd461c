"""Connections between the processes of a training: who may open one, and what goes over it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from .errors import LostError

TIMEOUT_S = 600.0
"""What a step of another rank may take at most."""
_HELLO_S = 5.0
"""What saying who one is may take."""
_LENGTH = struct.Struct("<I")
_MESSAGE_BYTES_MAX = 1 << 26
_NONCE_BYTES = 32
_GLANCE_S = 0.02

Address: TypeAlias = tuple[str, int]


class Line:
    """A connection to one other process."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection

    def send(self, message: Any) -> None:
        """Says something that JSON can tell."""
        text = json.dumps(message).encode()
        self.write(_LENGTH.pack(len(text)) + text)

    def receive(self) -> Any:
        """What the other says next."""
        head = bytearray(_LENGTH.size)
        self.read_into(memoryview(head))
        (length,) = _LENGTH.unpack(head)
        if length > _MESSAGE_BYTES_MAX:
            raise LostError(f"a message of {length} bytes from another process")
        text = bytearray(length)
        self.read_into(memoryview(text))
        return json.loads(text)

    def write(self, data: Any) -> None:
        """Sends bytes."""
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise LostError(str(error)) from error

    def read_into(self, view: memoryview) -> None:
        """Fills a buffer with bytes of the other."""
        while len(view) > 0:
            try:
                count = self._connection.recv_into(view)
            except OSError as error:
                raise LostError(str(error)) from error
            if count == 0:
                raise LostError("Connection closed by peer")
            view = view[count:]

    def has_news(self, wait_s: float = 0.0) -> bool:
        """Whether there is something to receive, within so long."""
        return bool(select.select([self._connection], [], [], wait_s)[0])

    def is_broken(self) -> bool:
        """Whether the other is gone and has left nothing to read."""
        try:
            return self.has_news() and self._connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def set_timeout(self, seconds: float) -> None:
        """What one word of the other may take from now on."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Hangs up."""
        self._connection.close()


def call(address: Address, hello: list[Any]) -> Line:
    """Opens a connection and says who this is."""
    try:
        connection = socket.create_connection(address, timeout=_HELLO_S)
    except OSError as error:
        raise LostError(str(error)) from error
    line = Line(connection)
    line.set_timeout(_HELLO_S)
    nonce = bytearray(_NONCE_BYTES)
    try:
        line.read_into(memoryview(nonce))
        line.send([hello, _proof(bytes(nonce), hello)])
    except LostError:
        line.close()
        raise
    line.set_timeout(TIMEOUT_S)
    return line


class Door:
    """Where others of the job find this process, for as long as it lives. Whoever does not know the job's token is sent
    away."""

    def __init__(self, address: Address):
        self._listener = socket.create_server(address, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._waiting: dict[tuple[Any, ...], tuple[Line, Any]] = {}
        threading.Thread(target=self._serve, name="pollux-door", daemon=True).start()

    def look(self, key: tuple[Any, ...]) -> tuple[Line, Any] | None:
        """Who came with this key, and what else it said; nobody if it has gone again."""
        with self._lock:
            found = self._waiting.get(key)
        return found

    def drop(self, key: tuple[Any, ...]) -> None:
        """Sends somebody away."""
        with self._lock:
            found = self._waiting.pop(key, None)
        if found is not None:
            found[0].close()

    def take(self, key: tuple[Any, ...], patience_s: float) -> tuple[Line, Any]:
        """Waits for somebody to come, and lets it in."""
        deadline = time.monotonic() + patience_s
        while True:
            with self._lock:
                if key in self._waiting:
                    return self._waiting.pop(key)
            if time.monotonic() > deadline:
                raise LostError(f"nobody came as {key} within {patience_s:.0f} s")
            time.sleep(_GLANCE_S / 10)

    def drop_all(self, is_meant: Callable[[tuple[Any, ...]], bool]) -> None:
        """Sends everybody of a kind away."""
        with self._lock:
            keys = [key for key in self._waiting if is_meant(key)]
        for key in keys:
            self.drop(key)

    def close(self) -> None:
        """Nobody finds this process here any more."""
        # A thread that waits for somebody to come would keep the address.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_all(lambda _: True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                self._welcome(Line(connection))
            except (LostError, ValueError, TypeError):
                connection.close()

    def _welcome(self, line: Line) -> None:
        line.set_timeout(_HELLO_S)
        nonce = os.urandom(_NONCE_BYTES)
        line.write(nonce)
        hello, proof = line.receive()
        if not hmac.compare_digest(proof, _proof(nonce, hello)):
            line.close()
            return
        line.set_timeout(TIMEOUT_S)
        *key, said = hello
        self.drop(tuple(key))
        with self._lock:
            self._waiting[tuple(key)] = (line, said)


def _proof(nonce: bytes, hello: list[Any]) -> str:
    """That its sender has the job's token."""
    token = os.environ.get("POLLUX_TOKEN", "").encode()
    return hmac.new(token, nonce + json.dumps(hello).encode(), hashlib.sha256).hexdigest()
