"""Trees of arrays: as names and NumPy arrays for checkpoints, as one flat array for sums over processes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pollux._elastic.errors import UsageError


def to_arrays(tree: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The leaves by their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {f"state{jax.tree_util.keystr(path)}": _to_array(leaf, path) for path, leaf in leaves}


def from_arrays(tree: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """A tree like another one, with what `to_arrays` gave. Every leaf is of the kind, and where, the other's is."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _like(leaf, arrays[f"state{jax.tree_util.keystr(path)}"]), tree
    )


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_array(leaf: Any, path: Any) -> np.ndarray[Any, Any]:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise UsageError(
            f"state{jax.tree_util.keystr(path)} is spread over several processes; every process has to hold all of the "
            "state"
        )
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    if array.dtype.kind not in "biufcV":
        raise UsageError(
            f"state{jax.tree_util.keystr(path)} is a {type(leaf).__name__}; expected arrays and numbers, keep the "
            "rest in training.extras"
        )
    # What JAX holds may be gone once it is donated to the next step.
    copied: np.ndarray[Any, Any] = array.copy()
    return copied


def _like(leaf: Any, array: np.ndarray[Any, Any]) -> Any:
    if _is_key(leaf):
        key = jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
        return jax.device_put(key, leaf.sharding)
    if isinstance(leaf, jax.Array):
        return jax.device_put(array, leaf.sharding)
    return array if isinstance(leaf, np.ndarray) else type(leaf)(array[()])


def check_gradients(tree: Any) -> None:
    """Refuses what cannot be averaged."""
    for leaf in jax.tree.leaves(tree):
        if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise UsageError(f"a gradient of type {kind}; expected arrays of floating-point numbers")


def floats(tree: Any) -> Any:
    """Numbers of any kind as floats, so that there is a mean of them."""
    return jax.tree.map(
        lambda leaf: leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else jnp.asarray(leaf, float), tree
    )


@jax.jit
def scaled(tree: Any, factor: float) -> Any:
    """Every leaf times a number."""
    return _times(tree, factor)


@jax.jit
def added(total: Any, tree: Any, factor: float) -> Any:
    """A total and another tree times a number."""
    return jax.tree.map(jnp.add, total, _times(tree, factor))


@jax.jit
def squared_norm(tree: Any, denominators: Any) -> Any:
    """Of all leaves together."""
    return _squared_norm(tree, denominators)


def _times(tree: Any, factor: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * factor, tree)


def _squared_norm(tree: Any, denominators: Any) -> Any:
    if denominators is not None:
        tree = jax.tree.map(lambda leaf, denominator: leaf / denominator, tree, denominators)
    # In a precision that the sum of many squares needs.
    leaves = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in jax.tree.leaves(tree)]
    return sum(jnp.sum(jnp.square(leaf)) for leaf in leaves)


@jax.jit
def flat(tree: Any) -> Any:
    """All leaves as one array."""
    dtype = jnp.result_type(jnp.float32, *[leaf.dtype for leaf in jax.tree.leaves(tree)])
    return jnp.concatenate([jnp.ravel(leaf).astype(dtype) for leaf in jax.tree.leaves(tree)])


@jax.jit
def unflat(values: Any, tree: Any) -> Any:
    """One array as the leaves of a tree like another one."""
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = jnp.split(values, ends[:-1])
    shaped = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves)]
    return jax.tree.unflatten(structure, shaped)
