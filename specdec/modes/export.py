"""`--mode=export`: the parameters of a training run as a small checkpoint of their own."""

from absl import logging
import jax
import numpy as np

from specdec.checkpoints import from_orbax


def round_mantissa(x: np.ndarray, bits: int) -> np.ndarray:
  """Rounds float32 to `bits` bits after the leading one, ties to even; zeros compress well.

  Args:
    x: float32, any shape, finite.
    bits: 1 to 22; 7 is bfloat16.

  Raises:
    ValueError: the dtype or `bits` is another.

  Example:
    >>> round_mantissa(np.float32([1.0, 1.3, -0.7, 0.0]), 2).tolist()
    [1.0, 1.25, -0.75, 0.0]
  """
  if x.dtype != np.float32 or not 1 <= bits <= 22:
    raise ValueError(f"round_mantissa: expected float32 and 1 to 22 bits, found {x.dtype} and {bits}.")
  drop = 23 - bits
  raw = np.ascontiguousarray(x).view(np.uint32)
  half = ((raw >> drop) & 1) + ((1 << (drop - 1)) - 1)
  return ((raw + half.astype(np.uint32)) >> drop << drop).view(np.float32).reshape(x.shape)


def export(
    checkpoint: str, path: str, dtype: str = "bfloat16", mantissa_bits: int | None = None, overwrite: bool = False
) -> None:
  """Copies the newest parameters of a training run, without its optimizer.

  Args:
    checkpoint: a training run's directory, or any checkpoint of
      `checkpoints.from_orbax`.
    path: the folder to write.
    dtype: of the written parameters.
    mantissa_bits: rounds them to fewer bits than `dtype` holds, for a smaller
      file; None does not.
    overwrite: whether to replace an older export.
  """
  params = from_orbax.load(checkpoint)
  if mantissa_bits is not None:
    params = jax.tree.map(lambda leaf: round_mantissa(np.asarray(leaf, np.float32), mantissa_bits), params)
  from_orbax.save(path, params, dtype=dtype, overwrite=overwrite)
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  logging.info("%d parameters from %s to %s as %s.", count, checkpoint, path, dtype)
