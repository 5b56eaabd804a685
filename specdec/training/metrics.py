"""Where training metrics go: one JSONL file, and TensorBoard through clu."""

import json
import os
from collections.abc import Callable, Mapping


def writer(directory: str, tensorboard: bool = True) -> Callable[[int, Mapping[str, float]], None]:
  """Builds a function `(step, metrics)` that appends to `directory`.

  Args:
    directory: gets `metrics.jsonl`, one record a call, and TensorBoard's event
      files.
    tensorboard: False leaves the event files out (and clu unimported).
  """
  os.makedirs(directory, exist_ok=True)
  path = os.path.join(directory, "metrics.jsonl")
  summary = None
  if tensorboard:
    from clu import metric_writers

    summary = metric_writers.SummaryWriter(directory)

  def write(step: int, metrics: Mapping[str, float]) -> None:
    with open(path, "a", encoding="utf-8") as file:
      file.write(json.dumps({"step": step, **metrics}) + "\n")
    if summary is not None:
      summary.write_scalars(step, dict(metrics))
      summary.flush()

  return write
