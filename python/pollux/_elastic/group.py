"""The processes that train together. Words go by way of rank 0, sums of gradients round a ring."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UsageError
from .line import Line
from .state import State, read_state, write_state


@dataclass(frozen=True)
class Member:
    """One process of a group."""

    replica: int
    local_rank: int


@dataclass(frozen=True)
class Ring:
    """The neighbours of a process."""

    following: Line
    preceding: Line


class Group:
    """A list of members and the connections between them."""

    def __init__(self, rank: int, members: tuple[Member, ...], lines: dict[int, Line], ring: Ring | None):
        self.rank = rank
        self.members = members
        self._lines = lines
        self._ring = ring
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="pollux-ring") if ring is not None else None
        self._received = np.empty(0)

    @property
    def world_size(self) -> int:
        """Processes of the group."""
        return len(self.members)

    @property
    def is_leader(self) -> bool:
        """Whether this process decides for all."""
        return self.rank == 0

    @property
    def nodes(self) -> int:
        """A node is wherever there is a first process."""
        return max(1, sum(member.local_rank == 0 for member in self.members))

    def gather(self, meeting: str, row: Any) -> list[Any] | None:
        """What every rank has to say, by rank, for rank 0. All ranks have to be at the same place in the script."""
        if not self.is_leader:
            self._lines[0].send([meeting, row])
            return None
        rows = [row]
        for rank in range(1, self.world_size):
            found, other = self._lines[rank].receive()
            if found != meeting:
                raise UsageError(
                    f"rank 0 {meeting} while rank {rank} {found}; what all processes do together must be called on "
                    "every rank"
                )
            rows.append(other)
        return rows

    def broadcast(self, message: Any) -> Any:
        """What rank 0 says to all."""
        if not self.is_leader:
            return self._lines[0].receive()
        for line in self._lines.values():
            line.send(message)
        return message

    def hand_over(self, state: State | None, newcomers: list[int]) -> State | None:
        """Gives the state of rank 0 to newcomers; nothing to everybody else."""
        if self.is_leader:
            for rank in newcomers:
                assert state is not None
                write_state(state, self._lines[rank])
            return None
        return read_state(self._lines[0].read_into, "the training at hand") if self.rank in newcomers else None

    def sum(self, values: np.ndarray[Any, Any]) -> None:
        """Puts the sum over all ranks in the place of flat values: the same bits on every rank."""
        if self._ring is None or values.size == 0:
            return
        longest = -(-values.size // self.world_size)
        if self._received.dtype != values.dtype or self._received.size < longest:
            self._received = np.empty(longest, values.dtype)
        parts = np.array_split(values, self.world_size)
        for step in range(self.world_size - 1):
            self._pass_on(parts[(self.rank - step) % self.world_size])
            part = parts[(self.rank - step - 1) % self.world_size]
            received = self._received[: part.size]
            self._fetch(received)
            part += received
        for step in range(self.world_size - 1):
            self._pass_on(parts[(self.rank + 1 - step) % self.world_size])
            self._fetch(parts[(self.rank - step) % self.world_size])

    def _pass_on(self, part: np.ndarray[Any, Any]) -> None:
        """Sends while this thread receives: where all only sent, all would wait."""
        assert self._ring is not None and self._sender is not None
        self._sent = self._sender.submit(self._ring.following.write, part.view(np.uint8).data)

    def _fetch(self, part: np.ndarray[Any, Any]) -> None:
        assert self._ring is not None
        self._ring.preceding.read_into(part.view(np.uint8).data)
        self._sent.result()

    def close(self) -> None:
        """Leaves; the others notice."""
        ring = [self._ring.following, self._ring.preceding] if self._ring is not None else []
        for line in [*self._lines.values(), *ring]:
            line.close()
        if self._sender is not None:
            self._sender.shutdown(wait=False)
        self._lines, self._ring, self._sender = {}, None, None
