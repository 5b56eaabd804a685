"""Where training metrics go: one JSONL file, and TensorBoard through clu."""

import json
import os
from collections.abc import Callable, Mapping


def writer(directory: str, tensorboard: bool = True) -> Callable[[int, Mapping[str, float]], None]:
  """Builds a function `(step, metrics)` that appends to `directory`.

  Args:
    directory: gets `metrics.jsonl`, one record a call, and TensorBoard's event
      files. Records of a killed run from the first step written on are dropped:
      the resumed run writes them again.
    tensorboard: False leaves the event files out (and clu unimported).
  """
  os.makedirs(directory, exist_ok=True)
  path = os.path.join(directory, "metrics.jsonl")
  summary = None
  if tensorboard:
    from clu import metric_writers

    summary = metric_writers.SummaryWriter(directory)

  resumed = os.path.exists(path)

  def write(step: int, metrics: Mapping[str, float]) -> None:
    nonlocal resumed
    if resumed:
      _drop_from(path, step)
      resumed = False
    with open(path, "a", encoding="utf-8") as file:
      file.write(json.dumps({"step": step, **metrics}) + "\n")
    if summary is not None:
      summary.write_scalars(step, dict(metrics))
      summary.flush()

  return write


def _drop_from(path: str, step: int) -> None:
  """Rewrites a metrics file without the records of `step` and later ones, and without a line cut short."""
  with open(path, encoding="utf-8") as file:
    lines = [line for line in file if line.endswith("\n")]
  with open(path + ".tmp", "w", encoding="utf-8") as file:
    file.writelines(line for line in lines if json.loads(line)["step"] < step)
  os.replace(path + ".tmp", path)
