"""How fast scripts of tests train; they import nothing else of the tests."""

from __future__ import annotations

import os
import time


def pace(folder: str, epoch: int, samples: int) -> None:
    """Takes its time until the folder has a file named `hurry`, and the more the nearer the end is: on a busy machine
    it takes a minute to start another process."""
    if not os.path.exists(f"{folder}/hurry"):
        time.sleep((0.01 if epoch < 10 else 0.1) * samples)
