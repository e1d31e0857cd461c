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

from .errors import LostError, say

TIMEOUT_S = 600.0
"""What a step of another rank may take at most."""
_HELLO_S = 5.0
"""What saying who one is may take."""
_HELLO_BYTES_MAX = 1 << 16
_HELLOS_MAX = 64
"""So many may be about to say who they are at the same time."""
_PAUSE_S = 0.5
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

    def receive(self, bytes_max: int = _MESSAGE_BYTES_MAX, deadline: float | None = None) -> Any:
        """What the other says next, all of it until the deadline if there is one."""
        head = bytearray(_LENGTH.size)
        self.read_into(memoryview(head), deadline)
        (length,) = _LENGTH.unpack(head)
        if length > bytes_max:
            raise LostError(f"a message of {length} bytes from another process; expected at most {bytes_max}")
        text = bytearray(length)
        self.read_into(memoryview(text), deadline)
        return json.loads(text)

    def write(self, data: Any) -> None:
        """Sends bytes."""
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise LostError(str(error)) from error

    def read_into(self, view: memoryview, deadline: float | None = None) -> None:
        """Fills a buffer with bytes of the other."""
        while len(view) > 0:
            try:
                if deadline is not None:
                    self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
                count = self._connection.recv_into(view)
            except OSError as error:
                raise LostError(str(error)) from error
            if count == 0:
                raise LostError("Connection closed by peer")
            view = view[count:]

    def has_news(self, wait_s: float = 0.0) -> bool:
        """Whether there is something to receive, within so long."""
        # Unlike select(), it takes any number of open files.
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(1000.0 * wait_s))

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
        line.send([hello, group_key.proof(bytes(nonce), hello)])
    except LostError:
        line.close()
        raise
    line.set_timeout(TIMEOUT_S)
    return line


class JoinListener:
    """Where others of the job find this process, for as long as it lives. Whoever does not know the job's token is sent
    away."""

    def __init__(self, address: Address):
        self._host = address[0]
        self._lock = threading.Lock()
        self._waiting: dict[tuple[Any, ...], tuple[Line, Any]] = {}
        self._listeners: list[socket.socket] = []
        self._hellos = threading.Semaphore(_HELLOS_MAX)
        self._is_closed = False
        self.port = self.listen(address[1])

    def listen(self, port: int) -> int:
        """Others find this process at this port, too, or at a free one in the place of 0."""
        listener = _listen(self._host, port)
        self._listeners.append(listener)
        threading.Thread(target=self._serve, args=(listener,), name="pollux-join", daemon=True).start()
        found: int = listener.getsockname()[1]
        return found

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
        with self._lock:
            self._is_closed = True
        # A thread that waits for somebody to come would keep the address.
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.drop_all(lambda _: True)

    def _serve(self, listener: socket.socket) -> None:
        is_failing = False
        while not self._is_closed:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if not (is_failing or self._is_closed):
                    say(f"cannot accept connections of other processes: {error}; trying again")
                is_failing = True
                time.sleep(_PAUSE_S)
                continue
            is_failing = False
            # Who says nothing must not keep the others waiting.
            self._hellos.acquire()
            threading.Thread(target=self._welcome, args=(connection,), name="pollux-hello", daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        try:
            self._identify(Line(connection))
        except (LostError, OSError, ValueError, TypeError, RecursionError):
            connection.close()
        finally:
            self._hellos.release()

    def _identify(self, line: Line) -> None:
        line.set_timeout(_HELLO_S)
        nonce = os.urandom(_NONCE_BYTES)
        line.write(nonce)
        hello, proof = line.receive(_HELLO_BYTES_MAX, time.monotonic() + _HELLO_S)
        if not hmac.compare_digest(proof, group_key.proof(nonce, hello)):
            raise LostError("a process without the key of the job")
        line.set_timeout(TIMEOUT_S)
        *key, said = hello
        with self._lock:
            if self._is_closed:
                raise LostError("this process is no part of the training any more")
            before = self._waiting.pop(tuple(key), None)
            self._waiting[tuple(key)] = (line, said)
        if before is not None:
            before[0].close()


def _listen(host: str, port: int) -> socket.socket:
    """At one address, or without a host at all of the machine, those of IPv6 included where it has them."""
    is_everywhere = host == "" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_everywhere or ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=is_everywhere)


class GroupKey:
    """What the processes of a job have in common and nobody else has."""

    def __init__(self) -> None:
        self._told: str | None = None

    def record(self, key: str | None) -> None:
        """The scheduler has said it. Schedulers of version 0.1 do not, and give all processes of a job one token."""
        self._told = key or self._told

    def proof(self, nonce: bytes, hello: list[Any]) -> str:
        """That its sender has the key."""
        key = self._told or os.environ.get("POLLUX_TOKEN", "")
        return hmac.new(key.encode(), nonce + json.dumps(hello).encode(), hashlib.sha256).hexdigest()


group_key = GroupKey()
"""That of the job of this process."""
