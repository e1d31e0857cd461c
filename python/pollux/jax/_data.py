"""Samples by their numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pollux._elastic.errors import UsageError


class Data:
    """Arrays with one row for each sample, in a tree, or an object that finds samples by their numbers."""

    def __init__(self, source: Any):
        self._source = source
        self._is_object = jax.tree_util.all_leaves([source]) and not hasattr(source, "shape")
        if self._is_object:
            if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
                raise UsageError(
                    f"data is a {type(source).__name__}; expected arrays with a row for each sample, trees of "
                    "them, and objects with len() that take an array of numbers of samples: data[numbers]"
                )
            self.samples = len(source)
        else:
            # Rows are picked by the CPU; the function that gets them brings them to the GPU.
            self._source = jax.tree.map(np.asarray, source)
            sizes = {leaf.shape[0] if leaf.shape else 0 for leaf in jax.tree.leaves(self._source)}
            if len(sizes) != 1:
                raise UsageError(f"data has arrays of {sorted(sizes)} rows; expected as many in all of them")
            [self.samples] = sizes
        if self.samples == 0:
            raise UsageError("data has no samples; expected at least one")

    def batch(self, numbers: np.ndarray[Any, Any]) -> Any:
        """The samples with these numbers."""
        return self._source[numbers] if self._is_object else jax.tree.map(lambda leaf: leaf[numbers], self._source)
