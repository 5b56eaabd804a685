"""Parameters in Orbax's format: our own checkpoints and those of a training run.

`save` writes the parameters alone. `load` reads them back, and reads the
parameters out of a training run's state without touching the optimizer's
arrays. `stored_arrays` and `read_arrays` do the work for any Orbax folder;
`checkpoints.from_t5x` uses them too.

Loaded arrays are NumPy arrays on the host, whatever devices they were saved
from; or, where shardings are given, arrays on devices, of which each host reads
only its own shards.
"""

from collections.abc import Mapping
import os
import re
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from specdec.checkpoints import names


def folder_of(path: str | os.PathLike) -> epath.Path:
  """`path` as an absolute path, after a look at whether a folder is there.

  Raises:
    ValueError: there is nothing, or a file.
  """
  path = _absolute(path)
  if not path.exists():
    raise ValueError(f"{path}: expected a checkpoint folder, found nothing; check the path.")
  if not path.is_dir():
    raise ValueError(f"{path}: expected a checkpoint folder, found a file; give the folder it lies in.")
  return path


def newest_step(folder: epath.Path, prefix: str = "") -> epath.Path | None:
  """The finished step folder (`prefix` and a number) with the largest number, or None.

  Writers give a folder its final name when it is whole; where renaming is not
  atomic (gs://) Orbax marks the whole ones instead.
  """
  steps = {}
  for child in folder.iterdir():
    match = re.fullmatch(re.escape(prefix) + r"(\d+)", child.name)
    if match and child.is_dir() and ((child / "checkpoint").exists() or ocp.utils.is_checkpoint_finalized(child)):
      steps[int(match[1])] = child
  return steps[max(steps)] if steps else None


def float_dtype(dtype: Any) -> np.dtype | None:
  """Checks the `dtype` that a caller asks parameters in; None stays None.

  Raises:
    ValueError: it is not a floating-point type.
  """
  if dtype is None:
    return None
  try:
    name = jnp.dtype(dtype).name
  except TypeError as error:
    raise ValueError(f"dtype: expected a floating-point type such as 'bfloat16', found {dtype!r}.") from error
  if not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
    raise ValueError(f"dtype: expected a floating-point type such as 'bfloat16', found {name!r}.")
  return jnp.dtype(dtype)


def cast_dtype(stored: Any, dtype: np.dtype | None) -> np.dtype:
  """The dtype to read an array of dtype `stored` in: only floating-point arrays are cast."""
  stored = jnp.dtype(stored)
  return dtype if dtype is not None and jnp.issubdtype(stored, jnp.floating) else stored


def stored_arrays(folder: epath.Path) -> dict[str, Any]:
  """Describes what an Orbax folder (the one with `_METADATA`) holds; reads no array.

  Returns:
    The saved tree; its leaves have `shape` and `dtype`.

  Raises:
    ValueError: the folder is damaged or not Orbax's.
  """
  try:
    tree = ocp.PyTreeCheckpointHandler().metadata(folder).tree
  except Exception as error:  # Orbax lets through whatever its many readers raise.
    raise _unreadable(folder, error) from error
  if not isinstance(tree, Mapping):
    raise ValueError(f"{folder}: expected a dictionary of parameters, found a {type(tree).__name__}.")
  return tree


def read_arrays(
    folder: epath.Path, wanted: Mapping[str, Any], dtype: np.dtype | None = None, shardings: Any = None
) -> dict[str, Any]:
  """Reads part of an Orbax folder.

  Args:
    folder: the folder with `_METADATA`.
    wanted: the part of the tree of `stored_arrays` to read.
    dtype: for the floating-point arrays; None keeps what is stored.
    shardings: in the structure of `wanted`, where each array goes; None is the
      host.

  Returns:
    Arrays in the structure of `wanted`, NumPy's without shardings.

  Raises:
    ValueError: an array is missing or damaged.
  """
  if shardings is None:
    arguments = jax.tree.map(
        lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray, dtype=cast_dtype(leaf.dtype, dtype)), wanted
    )
  else:
    arguments = jax.tree.map(
        lambda leaf, sharding: ocp.ArrayRestoreArgs(sharding=sharding, dtype=cast_dtype(leaf.dtype, dtype)),
        wanted,
        shardings,
    )
  request = ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True)
  try:
    return ocp.PyTreeCheckpointHandler().restore(folder, args=request)
  except Exception as error:
    raise _unreadable(folder, error) from error


def load(
    path: str | os.PathLike, dtype: Any = None, expected: Mapping[str, Any] | None = None, shardings: Any = None
) -> dict[str, Any]:
  """Loads parameters that `save` or a training run wrote.

  Args:
    path: what `save` was given; or a training run's directory, its
      `checkpoints` folder (the newest step is taken) or one step folder.
    dtype: for the floating-point parameters; None keeps what is stored.
    expected: names and shapes that the model needs, compared by `names.check`
      before anything is read: `jax.eval_shape(model.init, ...)`.
    shardings: in the structure of `expected`, where each parameter goes; each
      host reads its own shards. None is the host.

  Returns:
    Nested dictionaries of arrays, NumPy's without shardings.

  Raises:
    ValueError: there is no whole checkpoint, or it does not fit `expected`.

  Example:
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/params"
    >>> save(path, {"scale": np.ones(3, np.float32)}, dtype="bfloat16")
    >>> load(path)["scale"].dtype.name
    'bfloat16'
    >>> load(path, dtype="float32")
    {'scale': array([1., 1., 1.], dtype=float32)}
  """
  dtype = float_dtype(dtype)
  folder = _arrays_folder(folder_of(path))
  stored = stored_arrays(folder)
  if {"target", "state"} <= stored.keys():
    raise ValueError(f"{folder}: expected parameters, found a T5X train state; load it with checkpoints.from_t5x.")
  # A train state or the variables of a Flax module; anything else is the parameters themselves.
  inner = "params" in stored
  params = stored["params"] if inner else stored
  flat = names.flatten(params)
  if not flat:
    raise ValueError(f"{folder}: expected parameters, found an empty tree.")
  strange = [name for name, leaf in flat.items() if not hasattr(leaf, "shape")]
  if strange:
    raise ValueError(f"{folder}: expected arrays, found something else in {', '.join(strange)}.")
  if expected is not None:
    names.check(params, expected, str(path))
  if shardings is not None and inner:
    shardings = {"params": shardings}
  arrays = read_arrays(folder, {"params": params} if inner else params, dtype, shardings)
  return arrays["params"] if inner else arrays


def save(path: str | os.PathLike, params: Mapping[str, Any], dtype: Any = None, overwrite: bool = False) -> None:
  """Saves parameters, whole or not at all.

  The folder is written under another name and renamed when it is whole; an
  older checkpoint that it replaces is renamed to NAME.replaced, and removed only
  after that. Replacing is for one process; several must save to a new path.

  Args:
    path: the folder to make, local or gs://; its parents are made too.
    params: nested dictionaries of arrays, without a level 'params'.
    dtype: for the floating-point parameters, e.g. 'bfloat16'; None keeps theirs.
    overwrite: whether to replace a checkpoint that is already there.

  Raises:
    ValueError: `params` is not a tree of parameters, or `path` exists.

  Example:
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/params"
    >>> save(path, {"mlp": {"kernel": np.ones((2, 2))}})
    >>> save(path, {"mlp": {"kernel": np.zeros((2, 2))}}, overwrite=True)
    >>> float(load(path)["mlp"]["kernel"].sum())
    0.0
  """
  dtype, path = float_dtype(dtype), _absolute(path)
  if "params" in params:
    raise ValueError(f"{path}: expected parameters, found a level 'params' on top; save variables['params'].")
  flat = names.flatten(params)
  strange = [name for name, leaf in flat.items() if not isinstance(leaf, (np.ndarray, jax.Array))]
  if strange or not flat:
    raise ValueError(f"{path}: expected a tree of arrays, found {', '.join(strange) or 'no array'}.")
  exists = path.exists()
  if exists and not overwrite:
    raise ValueError(f"{path}: expected no such file or folder, found one; choose another path or overwrite=True.")
  if exists and not (path / "_METADATA").exists():
    raise ValueError(f"{path}: expected a checkpoint to overwrite, found something else; choose another path.")
  tree = names.unflatten({name: leaf.astype(cast_dtype(leaf.dtype, dtype)) for name, leaf in flat.items()})
  path.parent.mkdir(parents=True, exist_ok=True)
  fresh = path.parent / f"{path.name}.partial" if exists else path
  with ocp.PyTreeCheckpointer() as checkpointer:
    checkpointer.save(fresh, tree, force=exists)  # Writes beside `fresh`, and renames.
  marker = fresh / "commit_success.txt"
  if marker.exists():
    marker.write_text("Checkpoint commit was successful.")  # Orbax adds the path, which is nobody's business elsewhere.
  if exists:
    replaced = path.parent / f"{path.name}.replaced"
    if replaced.exists():
      replaced.rmtree()
    path.rename(replaced)
    fresh.rename(path)
    replaced.rmtree()


def _absolute(path: str | os.PathLike) -> epath.Path:
  text = os.fspath(path)
  return epath.Path(text if "://" in text else os.path.abspath(os.path.expanduser(text)))


def _arrays_folder(path: epath.Path) -> epath.Path:
  """The folder with `_METADATA` that `path` stands for."""
  for folder in (path, path / "default"):  # `default` is what a checkpoint manager calls its only item.
    if (folder / "_METADATA").exists():
      if not ocp.utils.is_checkpoint_finalized(path):
        raise ValueError(f"{path}: expected a finished checkpoint, found one whose writer did not end; save it again.")
      return folder
  if (path / "state").is_dir() or (path / "checkpoint").exists() or newest_step(path, "checkpoint_"):
    raise ValueError(f"{path}: expected one of our checkpoints, found one of T5X; load it with checkpoints.from_t5x.")
  for parent in (path, path / "checkpoints"):
    step = newest_step(parent) if parent.is_dir() else None
    if step is not None:
      return _arrays_folder(step)
  found = sorted(child.name for child in path.iterdir())
  raise ValueError(
      f"{path}: expected a checkpoint (with a file _METADATA) or a training run's folder with whole steps, found "
      f"{', '.join(found[:8]) or 'an empty folder'}; if it was copied, copy it again, else give its parent folder."
  )


def _unreadable(folder: epath.Path, error: Exception) -> ValueError:
  reason = (str(error).splitlines() or [""])[0]
  return ValueError(
      f"{folder}: expected a whole Orbax checkpoint, found one that cannot be read ({type(error).__name__}: {reason}); "
      "files are missing or damaged, so copy it again or take an older step."
  )
