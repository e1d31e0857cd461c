"""A scheduler that says what a test wants, when it wants, to real trainings.

`pollux up` decides by itself who leaves and who is started first; some of what may happen does so once in a thousand
times there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch

PATIENCE_S = 300.0
_SERVER = multiprocessing.get_context("forkserver")


class Director:
    """Speaks the protocol of docs/worker.md and starts processes for the newest generation."""

    def __init__(self, body: Callable[..., Any], *args: Any, slots: Callable[[int], dict[str, str]] = lambda _: {}):
        self._body, self._args = body, args
        self._slots = slots
        """What the place of a process shows it, by its number on the machine."""
        self.talk: Path | None = None
        """Where processes write what they would print."""
        self._news = threading.Condition()
        self._assignment: dict[str, Any] = {"generation": 0}
        self._processes: dict[int, Any] = {}
        self._results: dict[int, Any] = {}
        self.asked: set[int] = set()
        """Replicas that wait for news of the newest generation."""
        self.ready: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.batch: dict[str, Any] = {"mode": "adaptive"}
        self._http = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def announce(self, *replicas: int, launch: bool = True) -> None:
        """A new generation, in order of rank; those that do not run yet are started for it."""
        with self._news:
            self._assignment = {
                "generation": self._assignment["generation"] + 1,
                "state": "run",
                "rendezvous": None,
                # Nobody can listen there: who tries does not speak the protocol.
                "master_address": "192.0.2.1",
                "master_port": 9,
                "batch": self.batch,
                "replicas": [
                    {
                        "replica": replica,
                        "rank": rank,
                        "node": "a",
                        "local_rank": rank,
                        "local_world_size": len(replicas),
                        "gpu_type": "t4",
                    }
                    for rank, replica in enumerate(replicas)
                ],
            }
            self.asked.clear()
            self._news.notify_all()
        for replica in replicas:
            if launch and replica not in self._processes:
                self.launch(replica)

    def launch(self, replica: int) -> None:
        """Starts one process of the newest generation."""
        assignment = self._assignment
        [place] = (place for place in assignment["replicas"] if place["replica"] == replica)
        environment = {
            "RANK": place["rank"],
            "WORLD_SIZE": len(assignment["replicas"]),
            "LOCAL_RANK": place["local_rank"],
            "LOCAL_WORLD_SIZE": place["local_world_size"],
            "MASTER_ADDR": assignment["master_address"],
            "MASTER_PORT": assignment["master_port"],
            "POLLUX_URL": f"http://127.0.0.1:{self._http.server_port}",
            "POLLUX_JOB_ID": "1",
            "POLLUX_REPLICA_ID": replica,
            "POLLUX_TOKEN": replica,
            "POLLUX_GENERATION": assignment["generation"],
            **self._slots(place["local_rank"]),
        }
        out = _SERVER.SimpleQueue()
        named = {name: str(value) for name, value in environment.items()}
        process = _SERVER.Process(target=_run, args=(self._body, self._args, named, out, self.talk))
        process.start()
        self._processes[replica], self._results[replica] = process, out

    def wait_until(self, met: Callable[[], Any]) -> None:
        """Waits for a condition while nobody fails."""
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            codes = {replica: process.exitcode for replica, process in self._processes.items()}
            if time.monotonic() > deadline or set(codes.values()) - {None, 0, 143}:
                raise RuntimeError(f"processes have ended with {codes}, or nothing happens any more")
            time.sleep(0.02)

    def code(self, replica: int, patience_s: float = PATIENCE_S) -> int | None:
        """How a process ends; `None` if it does not."""
        self._processes[replica].join(patience_s)
        code: int | None = self._processes[replica].exitcode
        return code

    def result(self, replica: int) -> Any:
        """What a process that has trained to the end returns."""
        if (code := self.code(replica)) != 0:
            raise RuntimeError(f"process {replica} has ended with {code}, expected 0")
        return pickle.loads(self._results[replica].get())

    def close(self) -> None:
        """Ends whatever still runs."""
        self._http.shutdown()
        self._http.server_close()
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
            process.join()

    def assignment(self, replica: int, after: int, wants_rendezvous: bool, wait_s: float) -> dict[str, Any]:
        """The newest assignment, as soon as it is newer than another or, if that is wanted, says where to meet."""

        def is_news() -> bool:
            meets = wants_rendezvous and self._assignment["rendezvous"] is not None
            return self._assignment["generation"] > after or meets

        with self._news:
            if self._assignment["generation"] <= after:
                self.asked.add(replica)
                self._news.wait_for(is_news, wait_s)
            return self._assignment

    def publish(self, told: dict[str, Any]) -> int:
        """Rank 0 of a generation says where it waits."""
        with self._news:
            if told["generation"] != self._assignment["generation"]:
                return 409
            place = {"address": told["address"], "port": told["port"]}
            self._assignment = self._assignment | {"rendezvous": place}
            self._news.notify_all()
        return 204

    @property
    def generation(self) -> int:
        """The newest."""
        generation: int = self._assignment["generation"]
        return generation

    def rendezvous(self) -> dict[str, Any] | None:
        """Where the newest generation meets."""
        place: dict[str, Any] | None = self._assignment["rendezvous"]
        return place


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Processes end while their requests are answered, which is what tests are about."""


def _run(body: Callable[..., Any], args: Any, environment: dict[str, str], out: Any, talk: Path | None) -> None:
    os.environ.update(environment)
    if talk is not None:
        with open(talk, "ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    out.put(pickle.dumps(body(*args)))


def _handler(director: Director) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            replica = int(self.headers["Authorization"].removeprefix("Bearer "))
            wants_rendezvous = query.get("rendezvous") == ["true"]
            after, wait_s = int(query["after"][0]), float(query["wait_s"][0])
            assignment = director.assignment(replica, after, wants_rendezvous, wait_s)
            self._answer(200, json.dumps(assignment).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/ready"):
                director.ready.append(body)
            if self.path.endswith("/reports"):
                director.reports.append(body)
            self._answer(director.publish(body) if self.path.endswith("/rendezvous") else 204, b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
