"""Parameters from T5X checkpoints, without T5X: its legacy format and its Orbax format.

Legacy: a msgpack file `checkpoint` holds the tree {version, optimizer:
{target, state}}; a leaf is an array, or the TensorStore spec of a zarr folder
beside the file. The spec may name the driver `file`, `gfile` or `gcs` with
the bucket `t5x-dummy-bucket` (all public checkpoints do): T5X puts the real
place in when it reads, and so do we. Orbax: the folder `state` holds the tree
{target, state}. Of both only `target`, the parameters, is read.
"""

from collections.abc import Callable, Mapping
import os
from typing import Any

from etils import epath
from flax import serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import tensorstore as ts

from specdec.checkpoints import from_orbax
from specdec.checkpoints import names

_SPEC_KEYS = {"driver", "kvstore", "metadata"}
_DRIVERS = ("file", "gfile", "gcs")
_OLDEST_VERSION = 2  # T5X refuses older ones too.
_GROUPS = 32  # Of an Orbax folder's arrays, read one after the other.
_COPY_AGAIN = "files are missing or damaged, so copy the checkpoint again"


def load(
    path: str | os.PathLike,
    dtype: Any = None,
    expected: Mapping[str, Any] | None = None,
    place: Callable[[str, np.ndarray], Any] | None = None,
) -> dict[str, Any]:
  """Loads the parameters of a T5X checkpoint; optimizer state is not read.

  Layers that `scalable_t5` stacked are taken apart (`names.unscan`), so that
  the result fits `networks.t5`.

  Args:
    path: a folder `checkpoint_STEP`, or the folder above it (the newest step is
      taken); local or gs://.
    dtype: for the floating-point parameters; None keeps what is stored.
    expected: names and shapes that the model needs, compared by `names.check`
      before anything is read: `jax.eval_shape(model.init, ...)`.
    place: called with the name and the array as soon as each is read, and what
      it returns is kept instead, as in `from_huggingface.load`.

  Returns:
    Nested dictionaries of NumPy arrays, e.g. ['decoder']['layers_0']['mlp'].

  Raises:
    ValueError: there is no whole checkpoint of T5X, or it does not fit `expected`.

  Example:
    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp() + "/checkpoint_10"
    >>> os.mkdir(folder)
    >>> tree = {"version": 3, "optimizer": {"target": {"norm": {"scale": np.ones(2)}}, "state": {"step": 10}}}
    >>> with open(folder + "/checkpoint", "wb") as file:
    ...   size = file.write(serialization.msgpack_serialize(tree))
    >>> load(folder)
    {'norm': {'scale': array([1., 1.])}}

  Source: T5X `checkpoints.py` at cc342d4, format version 3.
  """
  dtype = from_orbax.float_dtype(dtype)
  folder = _step_folder(from_orbax.folder_of(path))
  if (folder / "state").is_dir():
    stored = from_orbax.stored_arrays(folder / "state")
    if "target" not in stored:
      raise ValueError(f"{folder}/state: expected T5X's tree with a part 'target', found {sorted(stored)}.")
    described = stored["target"]
    read = lambda: _read_orbax(folder / "state", described, dtype, place)
  else:
    leaves = _read_index(folder)
    described = names.unflatten({name: _describe(folder, name, leaf) for name, leaf in leaves.items()})
    read = lambda: names.unflatten(_read_leaves(folder, leaves, dtype, place))
  shapes = names.unscan(described)
  if expected is not None:
    names.check(shapes, expected, str(folder))
  return read()


def _step_folder(path: epath.Path) -> epath.Path:
  """The folder `checkpoint_STEP` that `path` stands for."""
  newest = from_orbax.newest_step(path, "checkpoint_")
  if newest is not None:
    return newest
  if (path / "checkpoint").exists() or (path / "state").is_dir():
    return path
  if (path / "_METADATA").exists() or (path / "default").is_dir() or from_orbax.newest_step(path) is not None:
    raise ValueError(f"{path}: expected a checkpoint of T5X, found one of ours; load it with checkpoints.from_orbax.")
  found = sorted(child.name for child in path.iterdir())
  raise ValueError(
      f"{path}: expected a folder checkpoint_STEP of T5X (with a file 'checkpoint' or a folder 'state') or the folder "
      f"above it, found {', '.join(found[:8]) or 'an empty folder'}; check the path, or copy the checkpoint again."
  )


def _read_index(folder: epath.Path) -> dict[str, Any]:
  """Reads the file `checkpoint`: an array or a TensorStore spec for each parameter."""
  file = folder / "checkpoint"
  data = file.read_bytes()
  if data.startswith(b"model_checkpoint_path"):
    raise ValueError(f"{file}: expected T5X's msgpack file, found a TensorFlow checkpoint; convert it with T5X first.")
  try:
    tree = serialization.msgpack_restore(data)
  except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
    raise ValueError(
        f"{file}: expected T5X's msgpack file, found {len(data)} bytes that do not parse ({error}); {_COPY_AGAIN}."
    ) from error
  if not isinstance(tree, dict) or not {"version", "optimizer"} <= tree.keys():
    found = sorted(map(str, tree)) if isinstance(tree, dict) else f"a {type(tree).__name__}"
    raise ValueError(f"{file}: expected T5X's tree with version and optimizer, found {found}; it is not from T5X.")
  version = tree["version"]
  if not isinstance(version, int) or version < _OLDEST_VERSION:
    raise ValueError(f"{file}: expected version {_OLDEST_VERSION} or later, found {version!r}; save it anew with T5X.")
  optimizer = tree["optimizer"]
  target = optimizer.get("target") if isinstance(optimizer, dict) else None
  leaves = names.flatten(target, _is_spec) if isinstance(target, dict) else {}
  if not leaves:
    raise ValueError(f"{file}: expected parameters under optimizer/target, found none.")
  return leaves


def _is_spec(node: Any) -> bool:
  return isinstance(node, Mapping) and _SPEC_KEYS <= node.keys()


def _describe(folder: epath.Path, name: str, leaf: Any) -> jax.ShapeDtypeStruct:
  """Shape and dtype of a leaf of the index."""
  if isinstance(leaf, (np.ndarray, np.generic)):
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
  dtype = leaf.get("dtype") or leaf["metadata"].get("dtype") if _is_spec(leaf) else None
  if dtype is None or "shape" not in leaf["metadata"]:
    raise ValueError(f"{folder}/checkpoint: expected an array or a zarr spec for {name}, found {leaf!r}.")
  if dtype in ("uint16", "<u2"):  # Version 2 kept bfloat16 that way.
    raise ValueError(f"{folder}/checkpoint: expected bfloat16, found uint16 for {name}; save it anew with T5X.")
  return jax.ShapeDtypeStruct(tuple(leaf["metadata"]["shape"]), jnp.dtype(dtype))


def _array_spec(folder: epath.Path, name: str, leaf: Mapping[str, Any]) -> dict[str, Any]:
  """The TensorStore spec of a leaf, its place taken from `folder`."""
  # Before TensorStore 0.1.14 the path stood outside of `kvstore`.
  relative = leaf["kvstore"].get("path", leaf.get("path"))
  driver = leaf["kvstore"].get("driver")
  if driver not in _DRIVERS or not relative or relative.startswith("/") or ".." in relative.split("/"):
    raise ValueError(
        f"{folder}/checkpoint: expected a driver among {', '.join(_DRIVERS)} and a folder beside the file for {name}, "
        f"found {driver!r} and {relative!r}."
    )
  place = os.fspath(folder)
  if place.startswith("gs://"):
    bucket, _, inside = place[len("gs://") :].partition("/")
    store = {"driver": "gcs", "bucket": bucket, "path": f"{inside}/{relative.rstrip('/')}/"}
  else:
    store = {"driver": "file", "path": f"{place}/{relative.rstrip('/')}/"}
  # Chunks and compression are read from the array itself, as T5X does.
  metadata = {"shape": leaf["metadata"]["shape"]}
  # TensorStore fills what is missing with zeros unless told not to; T5X's arrays keep even chunks of zeros.
  return {"driver": "zarr", "kvstore": store, "metadata": metadata, "fill_missing_data_reads": False}


def _apart(name: str, array: np.ndarray, place: Callable[[str, np.ndarray], Any] | None) -> dict[str, Any]:
  """One stored array, or the layers that were stacked in it, where they belong."""
  apart = names.flatten(names.unscan(names.unflatten({name: array})))
  return apart if place is None else {part: place(part, layer) for part, layer in apart.items()}


def _read_orbax(
    folder: epath.Path,
    described: Mapping[str, Any],
    dtype: np.dtype | None,
    place: Callable[[str, np.ndarray], Any] | None,
) -> dict[str, Any]:
  """Reads the arrays of an Orbax folder, the largest first and few at a time: those read and not yet cast are few."""
  flat = names.flatten(described)
  size = lambda name: int(np.prod(flat[name].shape)) * jnp.dtype(flat[name].dtype).itemsize
  most = sum(map(size, flat)) // _GROUPS
  groups, room = [], 0
  for name in sorted(flat, key=size, reverse=True):
    if not groups or size(name) > room:
      groups.append([])
      room = most
    groups[-1].append(name)
    room -= size(name)
  arrays = {}
  for group in groups:
    wanted = {"target": names.unflatten({name: flat[name] for name in group})}
    for name, array in names.flatten(from_orbax.read_arrays(folder, wanted, dtype)["target"]).items():
      arrays[name] = _apart(name, array, place)
  return names.unflatten({part: layer for name in flat for part, layer in arrays[name].items()})


def _read_leaves(
    folder: epath.Path,
    leaves: Mapping[str, Any],
    dtype: np.dtype | None,
    place: Callable[[str, np.ndarray], Any] | None,
) -> dict[str, Any]:
  """Reads the leaves of the index one after the other, the largest first, and takes stacked layers apart at once.

  What is held beside the array that is wanted, its chunk before the cast, is
  then largest while little else is held.
  """
  described = {name: _describe(folder, name, leaf) for name, leaf in leaves.items()}
  size = lambda name: int(np.prod(described[name].shape)) * described[name].dtype.itemsize
  arrays, pending = {}, {}
  for name in sorted(leaves, key=size, reverse=True):
    leaf = leaves[name]
    stored = described[name].dtype
    wanted = from_orbax.cast_dtype(stored, dtype)
    if not _is_spec(leaf):
      arrays[name] = _apart(name, np.asarray(leaf).astype(wanted), place)
      continue
    spec = _array_spec(folder, name, leaf) | {"dtype": stored.name}
    if wanted != stored:
      spec = {"driver": "cast", "base": spec, "dtype": wanted.name}
    pending[name] = ts.open(spec, open=True, read=True)
  for name, opening in pending.items():
    try:
      array = opening.result().read().result()
    except (ValueError, OSError, RuntimeError) as error:  # TensorStore's codes arrive as these.
      reason = (str(error).splitlines() or [""])[0]
      raise ValueError(
          f"{folder}: expected the array of {name}, found none that can be read ({reason}); {_COPY_AGAIN}."
      ) from error
    arrays[name] = _apart(name, array, place)
  return {part: layer for name in leaves for part, layer in arrays[name].items()}
