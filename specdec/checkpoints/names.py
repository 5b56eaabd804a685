"""Parameter trees by name: flatten, compare with a model, unstack scanned layers.

A name joins the keys of the nested dictionaries with '/', as T5X does:
`decoder/layers_0/mlp/wi_0/kernel`. Nothing here reads a file, and every
function takes arrays or descriptions of arrays (`jax.ShapeDtypeStruct`, the
metadata of a checkpoint) alike, so that a checkpoint is checked before it is
read.

Dimensions: E embedding, H heads, D head size, M mlp, N layers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

SCAN_AXIS = 1  # Where T5X's `scalable_t5` stacks the layers of a kernel, a scale and a position table.
_HEAD_KERNELS = ("query", "key", "value", "out")  # `scalable_t5` keeps H and D of these apart.


def flatten(params: Mapping[str, Any], is_leaf: Callable[[Any], bool] = lambda node: False) -> dict[str, Any]:
  """Turns nested dictionaries into one dictionary from name to leaf.

  Args:
    params: nested dictionaries with string keys; whatever is no dictionary is
      a leaf. Empty dictionaries leave no trace.
    is_leaf: called on each dictionary below the top; True keeps it whole.

  Returns:
    The leaves by name, in the order of the tree.

  Raises:
    ValueError: a key is not a string, or holds a '/'.

  Example:
    >>> flatten({"mlp": {"wi": {"kernel": 1}, "wo": {"kernel": 2}}})
    {'mlp/wi/kernel': 1, 'mlp/wo/kernel': 2}
  """
  flat = {}

  def visit(node, prefix):
    for key, value in node.items():
      if not isinstance(key, str) or "/" in key:
        raise ValueError(f"parameter tree: expected keys that are strings without '/', found {key!r} in {prefix!r}.")
      if isinstance(value, Mapping) and not is_leaf(value):
        visit(value, f"{prefix}{key}/")
      else:
        flat[prefix + key] = value

  visit(params, "")
  return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
  """Turns a dictionary from name to leaf into nested dictionaries.

  Args:
    flat: leaves by name, as `flatten` returns them.

  Returns:
    The nested dictionaries.

  Raises:
    ValueError: one name lies inside another ('a' and 'a/b').

  Example:
    >>> unflatten({"mlp/wi/kernel": 1, "mlp/wo/kernel": 2})
    {'mlp': {'wi': {'kernel': 1}, 'wo': {'kernel': 2}}}
  """
  params = {}
  nodes = {"": params}
  for name, leaf in flat.items():
    *parents, key = name.split("/")
    node, prefix = params, ""
    for parent in parents:
      prefix += f"{parent}/"
      if prefix not in nodes:
        if parent in node:
          raise ValueError(f"parameter names: {prefix[:-1]!r} is an array, so {name!r} cannot lie inside it.")
        nodes[prefix] = node[parent] = {}
      node = nodes[prefix]
    if key in node:
      raise ValueError(f"parameter names: {name!r} is an array, so no other can lie inside it.")
    node[key] = leaf
  return params


def check(params: Mapping[str, Any], expected: Mapping[str, Any], source: str = "parameters") -> None:
  """Compares names and shapes with those of a model; dtypes may differ.

  Args:
    params: nested dictionaries of anything with a `shape`.
    expected: the same of the model: `jax.eval_shape(model.init, ...)`, with or
      without its level 'params'.
    source: where `params` come from, to begin the message with.

  Raises:
    ValueError: a parameter is missing, surplus or of another shape; the
      message names every one of them.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> model = {"scale": jax.ShapeDtypeStruct((3,), jnp.float32)}
    >>> check({"scale": jnp.ones(3)}, model)
    >>> check({"scale": jnp.ones(4)}, model)
    Traceback (most recent call last):
      ...
    ValueError: parameters: 1 of 1 parameters do not fit the model.
      scale: expected shape (3,), found (4,)
  """
  if "params" in expected and "params" not in params:
    expected = expected["params"]
  want, have = flatten(expected), flatten(params)
  faults = []
  for name in sorted(want.keys() | have.keys()):
    if name not in have:
      faults.append(f"{name}: expected shape {tuple(want[name].shape)}, found no such parameter")
    elif name not in want:
      faults.append(f"{name}: expected no such parameter, found shape {tuple(have[name].shape)}")
    elif tuple(want[name].shape) != tuple(have[name].shape):
      faults.append(f"{name}: expected shape {tuple(want[name].shape)}, found {tuple(have[name].shape)}")
  if faults:
    count = len(want.keys() | have.keys())
    raise ValueError("\n  ".join([f"{source}: {len(faults)} of {count} parameters do not fit the model.", *faults]))


def is_scanned(params: Mapping[str, Any]) -> bool:
  """True if a stack holds its layers in one stacked subtree, as T5X's `scalable_t5` does."""
  return any(isinstance(params.get(stack), Mapping) and stack in params[stack] for stack in ("encoder", "decoder"))


def _layer(leaf: Any, index: int, name: str) -> Any:
  """One layer of a stacked leaf, H and D joined: [E, N, H, D] -> [E, H * D], [H, N, D, E] -> [H * D, E]."""
  shape = list(leaf.shape)
  del shape[SCAN_AXIS]
  kernel = name.split("/")[-2:]
  if len(shape) == 3 and kernel[-1] == "kernel" and kernel[0] in _HEAD_KERNELS:
    shape = [shape[0] * shape[1], shape[2]] if kernel[0] == "out" else [shape[0], shape[1] * shape[2]]
  if isinstance(leaf, (np.ndarray, jax.Array)):
    return leaf[:, index].reshape(shape)
  return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)


def _unscan_stack(stack: str, scanned: Mapping[str, Any]) -> dict[str, Any]:
  """Names of the unscanned network for the stacked leaves below `stack/stack`."""
  leaves = flatten(scanned)
  counts = {name: leaf.shape[SCAN_AXIS] if len(leaf.shape) > SCAN_AXIS else 0 for name, leaf in leaves.items()}
  if len(set(counts.values())) != 1 or 0 in counts.values():
    raise ValueError(f"{stack}/{stack}: expected as many layers along axis {SCAN_AXIS} everywhere, found {counts}.")
  flat = {}
  for name, leaf in leaves.items():
    layers = [_layer(leaf, i, name) for i in range(counts[name])]
    if not name.startswith("relpos_bias/"):
      flat.update({f"{stack}/layers_{i}/{name}": layer for i, layer in enumerate(layers)})
      continue
    if isinstance(leaf, (np.ndarray, jax.Array)) and not all(np.array_equal(layer, layers[0]) for layer in layers):
      raise ValueError(
          f"{stack}/{stack}/{name}: expected one table in all layers, found different ones; `networks.t5` shares "
          "its position table between the layers of a stack, so this checkpoint cannot be run with it."
      )
    flat[f"{stack}/{name}"] = layers[0]
  return flat


def unscan(params: Mapping[str, Any]) -> dict[str, Any]:
  """Takes the stacked layers of T5X's `scalable_t5` apart.

  `decoder/decoder/self_attention/query/kernel` [E, N, H, D] becomes
  `decoder/layers_0/self_attention/query/kernel` [E, H * D] and so on; the
  copies of the position table, one a layer, become the one of the stack.

  Args:
    params: nested dictionaries of arrays or of their descriptions.

  Returns:
    The same in the names and shapes of `networks.t5`; parameters that are not
    scanned come back as they are.

  Raises:
    ValueError: the leaves differ in their number of layers, or the layers in
      their position tables.

  Example:
    >>> scale = np.arange(6.).reshape(3, 2)
    >>> unscan({"encoder": {"encoder": {"norm": {"scale": scale}}}})["encoder"]["layers_1"]["norm"]["scale"].tolist()
    [1.0, 3.0, 5.0]

  Source: T5X `examples/scalable_t5`, `scan_axis = 1`.
  """
  if not is_scanned(params):
    return dict(params)
  flat = {}
  for stack, node in params.items():
    node = {stack: node}
    if is_scanned(node):
      flat.update(_unscan_stack(stack, node[stack][stack]))
      node = {stack: {key: value for key, value in node[stack].items() if key != stack}}
    flat.update(flatten(node))
  return unflatten(flat)
