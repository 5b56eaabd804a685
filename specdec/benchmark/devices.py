"""Which processes of a host get which accelerator chips, without touching the chips."""

from collections.abc import Mapping
import glob
import os
from typing import NamedTuple

# Chips of one process: its share of the host's torus, for libtpu.
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,2,2"}


class Host(NamedTuple):
  """What a host has: 'tpu', 'gpu' or 'cpu', and how many chips of it (1 for a CPU)."""

  platform: str
  chips: int


def this_host(environment: Mapping[str, str] = os.environ) -> Host:
  """Looks for the device files of TPUs and GPUs; JAX_PLATFORMS=cpu makes it a CPU host."""
  if environment.get("JAX_PLATFORMS", "") == "cpu":
    return Host("cpu", 1)
  tpus = glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")
  gpus = glob.glob("/dev/nvidia[0-9]*")
  return Host("tpu", len(tpus)) if tpus else Host("gpu", len(gpus)) if gpus else Host("cpu", 1)


def slots(host: Host, parallel: int, chips: int, timed: bool) -> list[dict[str, str]]:
  """The environment of each process that may run at the same time.

  Args:
    host: from `this_host`.
    parallel: how many; 0 chooses: as many as the chips allow, and on a CPU one
      if they measure time, else one for every two cores.
    chips: that a process needs; 0 is all of the host.
    timed: whether the processes measure time.

  Raises:
    ValueError: more processes than chips for them.

  Example:
    >>> slots(Host("gpu", 4), 0, 2, True)
    [{'CUDA_VISIBLE_DEVICES': '0,1'}, {'CUDA_VISIBLE_DEVICES': '2,3'}]
  """
  if parallel < 0 or chips < 0:
    raise ValueError(f"parallel, chips: expected at least 0, found {parallel} and {chips}.")
  if host.platform == "cpu":
    return [{}] * (parallel or (1 if timed else max(1, (os.cpu_count() or 1) // 2)))
  each = chips or (host.chips if not parallel else host.chips // parallel)
  count = parallel or host.chips // max(1, each)
  if each < 1 or count < 1 or count * each > host.chips:
    raise ValueError(
        f"parallel: expected processes that fit {host.chips} {host.platform} chips, found {max(1, count)} of "
        f"{max(1, each)} each."
    )
  if count == 1 and each == host.chips:
    return [{}]
  shares = [",".join(str(i) for i in range(k * each, (k + 1) * each)) for k in range(count)]
  if host.platform == "gpu":
    return [{"CUDA_VISIBLE_DEVICES": share} for share in shares]
  if each not in _TPU_BOUNDS:
    raise ValueError(f"parallel: expected 1, 2, 4 or 8 TPU chips a process, found {each}.")
  bounds = {"TPU_CHIPS_PER_PROCESS_BOUNDS": _TPU_BOUNDS[each], "TPU_PROCESS_BOUNDS": "1,1,1"}
  return [{"TPU_VISIBLE_CHIPS": share, **bounds} for share in shares]
