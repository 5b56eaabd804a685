"""`--mode=export`: the parameters of a training run as a small checkpoint of their own."""

from absl import logging
import jax

from specdec.checkpoints import from_orbax


def export(checkpoint: str, path: str, dtype: str = "bfloat16", overwrite: bool = False) -> None:
  """Copies the newest parameters of a training run, without its optimizer.

  Args:
    checkpoint: a training run's directory, or any checkpoint of
      `checkpoints.from_orbax`.
    path: the folder to write.
    dtype: of the written parameters.
    overwrite: whether to replace an older export.
  """
  params = from_orbax.load(checkpoint)
  from_orbax.save(path, params, dtype=dtype, overwrite=overwrite)
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  logging.info("%d parameters from %s to %s as %s.", count, checkpoint, path, dtype)
