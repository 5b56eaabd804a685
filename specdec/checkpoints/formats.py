"""Which of the formats a checkpoint is in, and its parameters whatever it is."""

from collections.abc import Mapping
import os
from typing import Any

import jax

from specdec.checkpoints import from_orbax
from specdec.checkpoints import names

FORMATS = ("specdec", "t5x", "huggingface")


def format_of(path: str | os.PathLike) -> str:
  """One of `FORMATS`, by the files in the folder; 'specdec' where nothing speaks for another.

  Raises:
    ValueError: there is no folder.
  """
  from specdec.checkpoints import from_huggingface

  folder = from_orbax.folder_of(path)
  if from_huggingface.is_huggingface(folder):
    return "huggingface"
  t5x = (folder / "checkpoint").exists() or (folder / "state").is_dir()
  return "t5x" if t5x or from_orbax.newest_step(folder, "checkpoint_") is not None else "specdec"


def load(
    path: str | os.PathLike, dtype: Any = None, expected: Mapping[str, Any] | None = None, shardings: Any = None
) -> dict[str, Any]:
  """Loads parameters from our own, T5X's or Hugging Face's format.

  Args:
    path: see `from_orbax.load`, `from_t5x.load` and `from_huggingface.load`.
    dtype: for the floating-point parameters; None keeps what is stored.
    expected: names and shapes that the model needs.
    shardings: in the structure of `expected`, where each parameter goes. Of our
      own format each host reads its shards alone; of the others the host holds
      few arrays at a time. None is the host.

  Raises:
    ValueError: there is no whole checkpoint, or it does not fit `expected`.
  """
  found = format_of(path)
  if found == "huggingface":
    from specdec.checkpoints import from_huggingface as reader
  elif found == "t5x":
    from specdec.checkpoints import from_t5x as reader
  else:
    return from_orbax.load(path, dtype=dtype, expected=expected, shardings=shardings)
  if shardings is None:
    return reader.load(path, dtype=dtype, expected=expected)
  where = names.flatten(shardings)
  place = lambda name, array: jax.block_until_ready(jax.device_put(array, where[name]))
  return reader.load(path, dtype=dtype, expected=expected, place=place)
