"""Records and Markdown tables of measurements."""

from collections.abc import Mapping, Sequence
import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np


def environment() -> dict[str, Any]:
  """What a figure depends on: versions, device, machine, commit, date."""
  import jaxlib  # The version only.

  return {
      "jax": jax.__version__,
      "jaxlib": jaxlib.__version__,
      "numpy": np.__version__,
      "python": platform.python_version(),
      "platform": jax.default_backend(),
      "device": jax.devices()[0].device_kind,
      "devices": jax.device_count(),
      "processor": _processor(),
      "machine": platform.machine(),
      "cores": os.cpu_count(),
      "commit": _commit(),
      "date": time.strftime("%Y-%m-%d"),
  }


def _commit() -> str | None:
  """The commit of this checkout; of a copy without Git what its file COMMIT says (launch/tpu_vm.sh writes one)."""
  folder = os.path.dirname(os.path.abspath(__file__))
  try:
    return subprocess.run(
        ["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    pass
  try:
    with open(os.path.join(os.path.dirname(os.path.dirname(folder)), "COMMIT"), encoding="utf-8") as file:
      return file.read().strip()
  except OSError:
    return None


def _processor() -> str:
  """The processor's name, where the system says it."""
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
      return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
  except (OSError, StopIteration):
    return platform.processor() or platform.machine()


def append_record(path: str, record: Mapping[str, Any]) -> None:
  """Adds one JSON line to `path` in a single write; '-' is stdout. Of several processes only the first writes."""
  if jax.process_index():
    return
  line = json.dumps(record, default=str) + "\n"
  if path == "-":
    print(line, end="")
    return
  os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  with open(path, "a", encoding="utf-8") as file:
    file.write(line)


def is_stream(path: str) -> bool:
  """Whether `path` is written to and never replaced: stdout ('-'), a pipe or a device such as /dev/null."""
  return path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


def check_output(output: str, *inputs: str) -> None:
  """Raises a `ValueError` if `output` is one of the files that are read, under whatever name."""
  for name in inputs:
    if os.path.isfile(output) and os.path.isfile(name) and os.path.samefile(output, name):
      raise ValueError(f"output: expected another file than the input, found {output} for both.")


def write_text(path: str, text: str) -> None:
  """Writes `path` whole or not at all; '-' is stdout. Of several processes only the first writes.

  A link stays, and the file that it names is replaced.
  """
  if jax.process_index():
    return
  if path == "-":
    sys.stdout.write(text)
    return
  if is_stream(path):
    with open(path, "w", encoding="utf-8") as file:
      file.write(text)
    return
  path = os.path.realpath(path)
  os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  with open(path + ".partial", "w", encoding="utf-8") as file:
    file.write(text)
  os.replace(path + ".partial", path)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
  """A Markdown table; floats with three digits after the point.

  Example:
    >>> print(table([{"gamma": 3, "ratio": 1.5}], ["gamma", "ratio"]))
    | gamma | ratio |
    |---|---|
    | 3 | 1.500 |
  """
  show = lambda value: f"{value:.3f}" if isinstance(value, float) else str(value)
  lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
  lines += ["| " + " | ".join(show(row[c]) for c in columns) + " |" for row in rows]
  return "\n".join(lines)
