"""What a process knows of its job: AdaptDL's variables where they are set, else what Pollux or torchrun say."""

from __future__ import annotations

import os


def checkpoint_path() -> str | None:
    """Where checkpoints are, `None` if nothing is saved."""
    return _first("ADAPTDL_CHECKPOINT_PATH", "POLLUX_CHECKPOINT_DIR")


def share_path() -> str | None:
    """A folder that all processes of the job see, for data sets and the like."""
    return _first("ADAPTDL_SHARE_PATH")


def job_id() -> str | None:
    """The job's name, `None` without a scheduler."""
    return _first("ADAPTDL_JOB_ID", "POLLUX_JOB_ID")


def master_addr() -> str:
    """Where rank 0 is, for processes that nobody schedules."""
    return _first("ADAPTDL_MASTER_ADDR", "MASTER_ADDR") or "0.0.0.0"


def master_port() -> int:
    """The port of rank 0, for processes that nobody schedules."""
    return int(_first("ADAPTDL_MASTER_PORT", "MASTER_PORT") or 0)


def replica_rank() -> int:
    """This process's place in the group. It changes with the group."""
    group = _group()
    return group[0] if group else int(_first("ADAPTDL_REPLICA_RANK", "RANK") or 0)


def num_nodes() -> int:
    """Machines of the group."""
    group = _group()
    if group:
        return group[2]
    return int(_first("ADAPTDL_NUM_NODES") or num_replicas())


def num_replicas() -> int:
    """Processes of the group."""
    group = _group()
    return group[1] if group else int(_first("ADAPTDL_NUM_REPLICAS", "WORLD_SIZE") or 1)


def num_restarts() -> int:
    """How often the job was started anew; under Pollux, how often its group has changed."""
    generation = _first("ADAPTDL_NUM_RESTARTS")
    return int(generation) if generation else max(0, int(_first("POLLUX_GENERATION") or 1) - 1)


def adaptdl_sched_version() -> str | None:
    """The version of AdaptDL's own scheduler, `None` under any other."""
    return _first("ADAPTDL_SCHED_VERSION")


def supervisor_url() -> str | None:
    """Where AdaptDL's own scheduler listens, `None` under any other."""
    return _first("ADAPTDL_SUPERVISOR_URL")


def from_ray() -> bool:
    """Whether Ray Tune runs this process: never, that part of AdaptDL is not provided."""
    return False


def _first(*names: str) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


def _group() -> tuple[int, int, int] | None:
    """Rank, processes and nodes of the group that trains, once it does."""
    from pollux.torch._process import joined_group

    group = joined_group()
    return (group.rank, group.world_size, group.nodes) if group is not None else None
