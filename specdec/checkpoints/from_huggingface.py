"""Hugging Face checkpoints of T5 1.0, T5 1.1, Flan-T5, mT5 and ByT5: read and written.

A folder holds config.json and the weights: `model.safetensors`, shards of it
with an index, or the same as PyTorch's `pytorch_model.bin`, which is opened with
weights-only loading (no code in it is run) and needs torch. Each array is read
in pieces of some megabytes straight into its place, its dtype and its layout, so
that the host holds hardly more than the weights that were asked for.
"""

from collections.abc import Callable, Mapping
import json
import os
import pickle
import shutil
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from specdec.checkpoints import from_orbax
from specdec.checkpoints import huggingface_names
from specdec.checkpoints import names
from specdec.networks.t5 import T5Config

PIECE_BYTES = 4 << 20  # Read at once.
MAPPED_BYTES = 16 << 20  # May stay mapped of a PyTorch file, which takes longer to open.
SHARD_BYTES = 1 << 30  # Written at once.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _Safetensors:
  """One .safetensors file."""

  def __init__(self, path: str):
    self._path = path

  def describe(self) -> dict[str, jax.ShapeDtypeStruct]:
    described = {}
    with safetensors.safe_open(self._path, framework="numpy") as file:
      for name in file.keys():
        view = file.get_slice(name)
        if view.get_dtype() not in _DTYPES:
          raise ValueError(f"{self._path}: expected floating-point numbers in {name}, found {view.get_dtype()}.")
        described[name] = jax.ShapeDtypeStruct(tuple(view.get_shape()), jnp.dtype(_DTYPES[view.get_dtype()]))
    return described

  def rows(self, name: str, start: int, stop: int) -> np.ndarray:
    # Opened anew for each piece: what was read of a mapped file counts as ours until it is closed.
    with safetensors.safe_open(self._path, framework="numpy") as file:
      return file.get_slice(name)[start:stop]


class _TorchFile:
  """One .bin file of PyTorch."""

  def __init__(self, path: str):
    self._path, self._tensors, self._read = path, None, 0

  def _open(self) -> Mapping[str, Any]:
    if self._tensors is None or self._read > MAPPED_BYTES:
      self._tensors = None  # Lets go of what is mapped before it is mapped again.
      self._tensors, self._read = _torch_load(self._path), 0
    return self._tensors

  def describe(self) -> dict[str, jax.ShapeDtypeStruct]:
    described = {}
    for name, tensor in self._open().items():
      dtype = str(getattr(tensor, "dtype", type(tensor))).removeprefix("torch.")
      if dtype not in _DTYPES.values():
        raise ValueError(f"{self._path}: expected floating-point numbers in {name}, found {dtype}.")
      described[name] = jax.ShapeDtypeStruct(tuple(tensor.shape), jnp.dtype(dtype))
    return described

  def rows(self, name: str, start: int, stop: int) -> np.ndarray:
    import torch

    tensor = self._open()[name][start:stop]
    self._read += tensor.nbytes
    if tensor.dtype == torch.bfloat16:  # NumPy has none of its own.
      return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def _torch_load(path: str) -> Mapping[str, Any]:
  try:
    import torch
  except ModuleNotFoundError as error:
    raise ValueError(
        f"{path}: expected torch to read a PyTorch file, found it is not installed; install specdec[hf], or give the "
        "folder's model.safetensors."
    ) from error
  try:
    try:
      loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # Files from before PyTorch 1.6 are no zip archives and cannot be mapped.
      loaded = torch.load(path, map_location="cpu", weights_only=True)
  except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
    reason = (str(error).splitlines() or [""])[0]
    raise ValueError(f"{path}: expected a PyTorch file of weights alone, found one that cannot be read ({reason}).") from error
  if not isinstance(loaded, Mapping):
    raise ValueError(f"{path}: expected a dictionary of weights, found a {type(loaded).__name__}.")
  return loaded


def is_huggingface(path: str | os.PathLike) -> bool:
  """Whether the folder holds weights under Hugging Face's file names."""
  folder = epath.Path(path)
  return any((folder / f"{name}{end}").exists() for name in WEIGHT_FILES for end in ("", ".index.json"))


def _read_json(path: epath.Path) -> dict[str, Any]:
  try:
    data = json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise ValueError(f"{path}: expected JSON, found something else ({error}).") from error
  if not isinstance(data, dict):
    raise ValueError(f"{path}: expected a JSON object, found a {type(data).__name__}.")
  return data


def _sources(folder: epath.Path) -> tuple[dict[str, Any], dict[str, jax.ShapeDtypeStruct]]:
  """Of every array the file that holds it, and its shape and dtype."""
  if "://" in os.fspath(folder):
    raise ValueError(f"{folder}: expected a folder on a local disk, found a remote one; copy it here first.")
  for name in WEIGHT_FILES:
    if (folder / name).exists():
      files, listed = [name], None
      break
    if (folder / f"{name}.index.json").exists():
      index = folder / f"{name}.index.json"
      listed = _read_json(index).get("weight_map")
      if not isinstance(listed, dict) or not all(isinstance(f, str) and f == os.path.basename(f) for f in listed.values()):
        raise ValueError(f"{index}: expected a 'weight_map' from names to files beside it, found {listed!r}.")
      files = sorted(set(listed.values()))
      break
  else:
    found = sorted(child.name for child in folder.iterdir())
    raise ValueError(
        f"{folder}: expected {' or '.join(WEIGHT_FILES)} (or an index of shards), found "
        f"{', '.join(found[:8]) or 'an empty folder'}; check the path."
    )
  gone = [file for file in files if not (folder / file).exists()]
  if gone:
    raise ValueError(f"{folder}: expected the shards that its index names, found no {', '.join(gone)}; copy them too.")
  holders, described = {}, {}
  for file in files:
    path = os.fspath(folder / file)
    source = _Safetensors(path) if file.endswith(".safetensors") else _TorchFile(path)
    try:
      arrays = source.describe()
    except safetensors.SafetensorError as error:
      raise ValueError(f"{path}: expected a whole safetensors file, found one that cannot be read ({error}); copy it again.") from error
    for name, array in arrays.items():
      if listed is None or listed.get(name) == file:
        holders[name], described[name] = source, array
  return holders, described


def _pieces(described: jax.ShapeDtypeStruct) -> list[tuple[int, int]]:
  """Ranges of rows of at most `PIECE_BYTES`, one row at least."""
  if not described.shape:
    raise ValueError(f"expected arrays of at least one dimension, found shape {described.shape}.")
  row = max(1, int(np.prod(described.shape[1:])) * described.dtype.itemsize)
  step = max(1, PIECE_BYTES // row)
  return [(start, min(start + step, described.shape[0])) for start in range(0, described.shape[0], step)]


def _read(source: Any, place: huggingface_names.Place, described: jax.ShapeDtypeStruct, dtype: Any) -> np.ndarray:
  shape = described.shape[::-1] if place.transposed else described.shape
  array = np.empty(shape, from_orbax.cast_dtype(described.dtype, dtype))
  for start, stop in _pieces(described):
    rows = source.rows(place.name, start, stop)
    if place.transposed:
      array[:, start:stop] = rows.T
    else:
      array[start:stop] = rows
  return array


def _same(holders: Mapping[str, Any], described: Mapping[str, Any], first: str, second: str) -> bool:
  return all(
      np.array_equal(holders[first].rows(first, *piece), holders[second].rows(second, *piece))
      for piece in _pieces(described[first])
  )


def read_config(path: str | os.PathLike) -> T5Config | None:
  """The configuration of a folder: from its config.json, None where there is none.

  Raises:
    ValueError: config.json cannot be read, or is not of a model that we can run.
  """
  file = from_orbax.folder_of(path) / "config.json"
  return huggingface_names.read_config(_read_json(file), str(file)) if file.exists() else None


def load_with_config(
    path: str | os.PathLike,
    dtype: Any = None,
    expected: Mapping[str, Any] | None = None,
    place: Callable[[str, np.ndarray], Any] | None = None,
) -> tuple[dict[str, Any], T5Config]:
  """`load`, and the configuration it was checked against (guessed from the shapes where there is no config.json)."""
  dtype = from_orbax.float_dtype(dtype)
  folder = from_orbax.folder_of(path)
  holders, described = _sources(folder)
  shapes = {name: array.shape for name, array in described.items()}
  config = read_config(folder) or huggingface_names.guess_config(shapes, str(folder))
  wanted = huggingface_names.places(config)
  if not config.logits_via_embedding and huggingface_names.HEAD not in shapes:
    tied = (folder / "config.json").exists() and _read_json(folder / "config.json").get("tie_word_embeddings") is not False
    if tied:  # One table for both ends, and yet no scaling: the output layer is a copy.
      wanted["decoder/logits_dense/kernel"] = huggingface_names.Place(huggingface_names.EMBEDDING, True)
  copies = huggingface_names.check(shapes, wanted, config, str(folder))
  for copy in copies:
    if not _same(holders, described, huggingface_names.EMBEDDING, copy):
      raise ValueError(
          f"{folder}: expected {copy} to equal {huggingface_names.EMBEDDING}, found another table; `networks.t5` shares "
          "one embedding, so this checkpoint cannot be run with it."
      )
  ours = {
      name: jax.ShapeDtypeStruct(shapes[p.name][::-1] if p.transposed else shapes[p.name], described[p.name].dtype)
      for name, p in wanted.items()
  }
  if expected is not None:
    names.check(names.unflatten(ours), expected, str(folder))
  arrays = {}
  for name, p in wanted.items():
    array = _read(holders[p.name], p, described[p.name], dtype)
    arrays[name] = array if place is None else place(name, array)
  return names.unflatten(arrays), config


def load(
    path: str | os.PathLike,
    dtype: Any = None,
    expected: Mapping[str, Any] | None = None,
    place: Callable[[str, np.ndarray], Any] | None = None,
) -> dict[str, Any]:
  """Loads a T5 from a folder of Hugging Face's.

  Args:
    path: the folder with config.json and the weights, on a local disk.
    dtype: for the parameters; None keeps what is stored.
    expected: names and shapes that the model needs, compared by `names.check`
      before anything is read: `jax.eval_shape(model.init, ...)`.
    place: called with the name and the array as soon as each is read, and what
      it returns is kept instead, e.g.
      `lambda name, array: jax.device_put(array, shardings[name])`: the host then
      never holds more than one of them.

  Returns:
    Nested dictionaries of NumPy arrays under our names.

  Raises:
    ValueError: files are missing or damaged, config.json describes another kind
      of model, or arrays do not fit it or `expected`; one message names every
      parameter that is missing, surplus or of another shape.

  Example:
    >>> import tempfile
    >>> config = T5Config(8, 4, 2, 3, 1, 1, 5)
    >>> params = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), huggingface_names.parameter_shapes(config))
    >>> path = tempfile.mkdtemp() + "/t5"
    >>> save(path, params, config)
    >>> load(path, dtype="bfloat16")["decoder"]["logits_dense"]["kernel"].shape
    (4, 8)
  """
  return load_with_config(path, dtype, expected, place)[0]


def save(
    path: str | os.PathLike,
    params: Mapping[str, Any],
    config: T5Config,
    dtype: Any = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> None:
  """Writes a T5 as Hugging Face's: config.json, and safetensors in shards. Whole or not at all.

  Args:
    path: the folder to make, on a local disk.
    params: nested dictionaries of arrays under our names.
    config: of the model.
    dtype: of the written parameters; None keeps theirs.
    shard_bytes: a file holds at most this much, one array at least; that much is
      held a second time while it is written.
    overwrite: whether to replace a folder of Hugging Face's that is there.

  Raises:
    ValueError: `params` do not fit `config`, or `path` exists.
  """
  dtype = from_orbax.float_dtype(dtype)
  path = os.path.abspath(os.path.expanduser(os.fspath(path)))
  names.check(params, huggingface_names.parameter_shapes(config), "parameters")
  if os.path.exists(path) and not (overwrite and is_huggingface(path)):
    found = "one; choose another path or overwrite=True" if is_huggingface(path) else "something else; choose another path"
    raise ValueError(f"{path}: expected no such file or folder, found {found}.")
  flat = names.flatten(params)
  shards = [[]]
  size = 0
  for name, place in huggingface_names.places(config).items():
    stored = flat[name].size * from_orbax.cast_dtype(flat[name].dtype, dtype).itemsize
    if shards[-1] and size + stored > shard_bytes:
      shards.append([])
      size = 0
    shards[-1].append((name, place))
    size += stored
  fresh = f"{path}.partial"
  shutil.rmtree(fresh, ignore_errors=True)
  os.makedirs(fresh)
  weight_map, total, kinds = {}, 0, set()
  for number, shard in enumerate(shards, start=1):
    file = WEIGHT_FILES[0] if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
    tensors = {}
    for name, place in shard:
      array = np.asarray(flat[name])
      array = array.astype(from_orbax.cast_dtype(array.dtype, dtype), copy=False)
      tensors[place.name] = np.ascontiguousarray(array.T if place.transposed else array)
      weight_map[place.name] = file
      total += tensors[place.name].nbytes
      kinds.add(array.dtype.name)
    safetensors.numpy.save_file(tensors, os.path.join(fresh, file), metadata={"format": "pt"})
  if len(shards) > 1:
    _write_json(os.path.join(fresh, f"{WEIGHT_FILES[0]}.index.json"), {"metadata": {"total_size": total}, "weight_map": weight_map})
  stored = kinds.pop() if len(kinds) == 1 else "float32"
  _write_json(os.path.join(fresh, "config.json"), huggingface_names.write_config(config, stored))
  replaced = f"{path}.replaced"
  if os.path.exists(path):
    shutil.rmtree(replaced, ignore_errors=True)
    os.replace(path, replaced)
  os.replace(fresh, path)
  shutil.rmtree(replaced, ignore_errors=True)


def _write_json(path: str, data: Mapping[str, Any]) -> None:
  with open(path, "w", encoding="utf-8") as file:
    json.dump(data, file, indent=2)
    file.write("\n")
