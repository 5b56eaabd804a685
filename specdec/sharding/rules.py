"""Which axis of which array is split over which axis of a mesh.

Every array has logical axes under T5X's names: `embed`, `vocab`, `mlp`,
`heads`, `joined_kv` (heads and their size as one axis), `kv`, `batch`, `length`,
`relpos_buckets`, `stack`. Rules send some of them to an axis of the mesh and
leave the others whole. Arrays are recognised by their names: T5X's for
parameters as they are stored, the fields of `networks.t5_decoder` for
parameters as they decode, and those of its caches. A weight matrix and the
columns it is multiplied with never lie on different chips, so that a layer
needs one sum over chips for each product that contracts a split axis (three in
a decoder layer) and nothing else.

Source: the axis names and the one-dimensional rules are those of T5X,
`partitioning.standard_logical_axis_rules` and `params_axes`.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
from jax.sharding import PartitionSpec

DATA, MODEL = "data", "model"  # The axes of a mesh.

Axes = tuple[str | None, ...]
Rules = Mapping[str, str]

# The target's: heads, mlp and vocabulary over the chips, requests over the data axis.
SPLIT: Rules = {"batch": DATA, "vocab": MODEL, "mlp": MODEL, "heads": MODEL, "joined_kv": MODEL}
# A small draft's: every chip holds all of it and does the same work.
WHOLE: Rules = {"batch": DATA}

# Weight matrices by name: (in, out). First as T5X stores them, then as `networks.t5_decoder` lays them out.
_KERNELS: dict[str, Axes] = {
    **dict.fromkeys(("query", "key", "value"), ("embed", "joined_kv")),
    "out": ("joined_kv", "embed"),
    **dict.fromkeys(("wi", "wi_0", "wi_1", "wi_2"), ("embed", "mlp")),
    "wo": ("mlp", "embed"),
    "logits_dense": ("embed", "vocab"),
    **dict.fromkeys(("self_qkv", "cross_query", "cross_kv"), ("embed", "joined_kv")),
    **dict.fromkeys(("self_out", "cross_out"), ("joined_kv", "embed")),
    "mlp_in": ("embed", "mlp"),
    "mlp_out": ("mlp", "embed"),
    "logits": ("embed", "vocab"),
}
_ARRAYS: dict[str, Axes] = {
    "embedding": ("vocab", "embed"),
    **dict.fromkeys(("rel_embedding", "relative_bias"), ("heads", "relpos_buckets")),
    **dict.fromkeys(("scale", "self_norm", "cross_norm", "mlp_norm", "final_norm"), ("embed",)),
}
_STATE: dict[str, Axes] = {
    **dict.fromkeys(("keys", "values", "cross_keys", "cross_values"), ("batch", "heads", "length", "kv")),
    "cross_bias": ("batch", None, None, "length"),
    "distance_bias": ("heads", "length"),
}


def fit(rules: Rules, sizes: Mapping[str, int], mesh_shape: Mapping[str, int]) -> Rules:
  """Leaves whole what the chips do not divide.

  Args:
    rules: logical axis to mesh axis.
    sizes: of logical axes. `joined_kv` goes with `heads`: a head is never cut.
    mesh_shape: size of each axis of the mesh.

  Returns:
    The rules that remain.

  Raises:
    ValueError: a rule names an axis that the mesh does not have.

  Example:
    >>> small = {"heads": 6, "mlp": 1024, "vocab": 32128, "batch": 1}
    >>> sorted(fit(SPLIT, small, {"data": 1, "model": 4}))
    ['batch', 'mlp', 'vocab']
  """
  strange = sorted(set(rules.values()) - mesh_shape.keys())
  if strange:
    raise ValueError(f"mesh: expected an axis {strange[0]!r}, found {dict(mesh_shape)}; make it with sharding.mesh.")
  size = lambda axis: sizes.get("heads" if axis == "joined_kv" else axis)
  whole = lambda axis: size(axis) is not None and size(axis) % mesh_shape[rules[axis]] != 0
  return {axis: place for axis, place in rules.items() if not whole(axis)}


def parameter_axes(params: Any) -> dict[str, Axes]:
  """Logical axes of every parameter, by its path; () of those no rule knows, which stay whole.

  Args:
    params: nested dictionaries with T5X's names, or `adapters.flax_model.T5Params`.

  Raises:
    ValueError: an array has another rank than its name says.

  Example:
    >>> import numpy as np
    >>> parameter_axes({"decoder": {"layers_0": {"mlp": {"wo": {"kernel": np.ones((8, 4))}}}}})
    {'decoder/layers_0/mlp/wo/kernel': ('mlp', 'embed')}
  """
  axes = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_kernel):
    name = _name(path)
    axes[name] = _parameter(name, leaf)
  return axes


def parameter_specs(params: Any, rules: Rules) -> Any:
  """`PartitionSpec`s in the structure of `params`, see `parameter_axes`."""

  def one(path, leaf):
    spec = _spec(_parameter(_name(path), leaf), rules)
    return dataclasses.replace(leaf, array=spec) if _is_kernel(leaf) else spec

  return jax.tree_util.tree_map_with_path(one, params, is_leaf=_is_kernel)


def state_axes(state: Any, batch: int) -> dict[str, Axes]:
  """Logical axes of a request's arrays, by path: caches by name, all else by rows.

  Args:
    state: a `DecoderState`, a `DecodeState`, a `Prompt`, …; keys too.
    batch: B; an array of unknown name is split by rows if it has that many.
  """
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {_name(path): _state(_name(path), leaf, batch) for path, leaf in leaves}


def state_specs(state: Any, rules: Rules, batch: int) -> Any:
  """`PartitionSpec`s in the structure of `state`, see `state_axes`.

  Example:
    >>> import numpy as np
    >>> tuple(state_specs({"keys": np.ones((2, 4, 8, 3))}, SPLIT, 2)["keys"])
    ('data', 'model', None, None)
  """
  one = lambda path, leaf: _spec(_state(_name(path), leaf, batch), rules)
  return jax.tree_util.tree_map_with_path(one, state)


def _is_kernel(node: Any) -> bool:
  """Whether it is a `networks.layers.Kernel`."""
  return hasattr(node, "out_first")


def _name(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


def _find(name: str, table: Mapping[str, Axes]) -> Axes | None:
  """The row of `table` for the last part of `name` that has one."""
  return next((table[part] for part in reversed(name.split("/")) if part in table), None)


def _parameter(name: str, leaf: Any) -> Axes:
  out_first = leaf.out_first if _is_kernel(leaf) else False
  rank = (leaf.array if _is_kernel(leaf) else leaf).ndim
  last = name.split("/")[-1]
  axes = _find(last, _ARRAYS)
  if axes is None:
    axes = _find(name, _KERNELS)
    if axes is None:
      return ()
    first, second = reversed(axes) if out_first else axes
    if rank == 3:  # Several matrices, see `networks.layers.Kernel`.
      axes = ("stack", first, second) if out_first else (first, "stack", second)
    else:
      axes = (first, second)
  if len(axes) != rank:
    raise ValueError(f"{name}: expected the axes {axes}, found {rank} of them; is it another model's parameter?")
  return axes


def _state(name: str, leaf: Any, batch: int) -> Axes:
  axes = _find(name, _STATE)
  if axes is not None and len(axes) == leaf.ndim:
    return axes
  by_rows = leaf.ndim > 0 and leaf.shape[0] == batch
  return ("batch", *[None] * (leaf.ndim - 1)) if by_rows else ()


def _spec(axes: Axes, rules: Rules) -> PartitionSpec:
  return PartitionSpec(*[None if axis is None else rules.get(axis) for axis in axes])
