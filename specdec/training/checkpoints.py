"""Training checkpoints by orbax: each step folder is written whole or not at all."""

import os
from typing import Any

import jax
import orbax.checkpoint as ocp

_REMOVE = "remove that step's folder, and the run goes on from the one before"


class TrainCheckpoints:
  """Saves and restores a training state, keeping the newest few.

  Args:
    directory: where step folders go; made if missing.
    keep: how many to keep.
  """

  def __init__(self, directory: str, keep: int = 2):
    self._directory = os.path.abspath(directory)
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
    self._manager = ocp.CheckpointManager(
        self._directory, options=options, item_handlers=ocp.StandardCheckpointHandler()
    )

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
      ValueError: there is none, it is of another model or optimizer, or damaged.
    """
    step = self.latest()
    if step is None:
      raise ValueError("training checkpoint: expected at least one, found none.")
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    place = f"training checkpoint: step {step} in {self._directory}"
    try:
      stored, wanted = _shapes(self._manager.item_metadata(step).tree), _shapes(abstract)
    except Exception as error:  # Orbax lets through whatever its many readers raise.
      raise ValueError(f"{place} cannot be read ({_first_line(error)}); {_REMOVE}.") from error
    for name in sorted(stored.keys() | wanted.keys(), key=lambda n: ("params" not in n, n)):
      if stored.get(name) != wanted.get(name):
        raise ValueError(
            f"{place} is of another model or optimizer: {name} has shape {wanted.get(name, 'none')} in this run and "
            f"{stored.get(name, 'none')} there; name another directory."
        )
    try:
      return self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
    except Exception as error:
      raise ValueError(f"{place} cannot be read ({_first_line(error)}); {_REMOVE}.") from error

  def close(self) -> None:
    """Waits for writes and frees the manager."""
    self._manager.close()


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: hasattr(node, "shape"))
  return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}


def _first_line(error: Exception) -> str:
  return (str(error).splitlines() or [type(error).__name__])[0][:200]
