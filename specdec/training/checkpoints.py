"""Training checkpoints by orbax: each step folder is written whole or not at all."""

import os
from typing import Any

import jax
import orbax.checkpoint as ocp


class TrainCheckpoints:
  """Saves and restores a training state, keeping the newest few.

  Args:
    directory: where step folders go; made if missing.
    keep: how many to keep.
  """

  def __init__(self, directory: str, keep: int = 2):
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
    self._manager = ocp.CheckpointManager(os.path.abspath(directory), options=options)

  def latest(self) -> int | None:
    """The newest whole step, or None."""
    return self._manager.latest_step()

  def save(self, step: int, state: Any) -> None:
    """Writes `state` (a pytree of arrays) as step `step`."""
    self._manager.save(step, args=ocp.args.StandardSave(state))
    self._manager.wait_until_finished()

  def restore(self, like: Any) -> Any:
    """The newest state, in the structure, shapes and dtypes of `like`.

    Raises:
      ValueError: there is none, or it does not fit.
    """
    step = self.latest()
    if step is None:
      raise ValueError("training checkpoint: expected at least one, found none.")
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    return self._manager.restore(step, args=ocp.args.StandardRestore(abstract))

  def close(self) -> None:
    """Waits for writes and frees the manager."""
    self._manager.close()
