"""TPU chips and slices, and compiling for them without owning one.

The compiler is the package `libtpu` (the extra `tpu_plan`), which needs no TPU
for it. Nothing runs: what comes back is the program, its memory and its text.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from specdec.sharding import mesh as mesh_lib


@dataclasses.dataclass(frozen=True)
class Chip:
  """What is published of one chip.

  Attributes:
    name: of the generation.
    flops: bfloat16 operations a second.
    hbm_bandwidth: bytes a second.
    hbm: bytes that a program may use, as the compiler says when it refuses one.
    clock: cycles a second of the tensor cores; None where it is not known, and
      then nothing is said of schedules.
    source: of the figures.
  """

  name: str
  flops: float
  hbm_bandwidth: float
  hbm: float
  clock: float | None
  source: str


_CLOUD = "cloud.google.com/tpu/docs, pages of each generation"
_CLOCK = "; clock by hand from the peak and the number of multipliers"
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 275e12, 1228e9, 30.75 * 2**30, 1.05e9, f"{_CLOUD}; clock: Jouppi et al. 2023, Table 4"),
        Chip("v5e", 197e12, 819e9, 15.75 * 2**30, 1.5e9, _CLOUD + _CLOCK),
        Chip("v5p", 459e12, 2765e9, 95.0 * 2**30, 1.75e9, _CLOUD + _CLOCK),
        Chip("v6e", 918e12, 1640e9, 31.25 * 2**30, None, _CLOUD),
    )
}
_MEGACORE = {"v4": {"chip_config_name": "megacore"}, "v5p": {"chip_config_name": "megacore"}}
# Settings that keep the compiler from looking for a TPU, and from refusing a second process.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def compiler_is_installed() -> bool:
  """Whether programs can be compiled for a TPU here."""
  return importlib.util.find_spec("libtpu") is not None


def chip_of(topology: str) -> Chip:
  """The chip of a topology such as 'v4:2x2x1'.

  Raises:
    ValueError: it is not one of `CHIPS`.

  Example:
    >>> chip_of("v5e:2x2").name
    'v5e'
  """
  name, _, shape = topology.partition(":")
  if name not in CHIPS or not shape or not all(part.isdigit() and int(part) for part in shape.split("x")):
    raise ValueError(
        f"topology: expected a chip of {', '.join(CHIPS)} and a shape, such as 'v4:2x2x1' or 'v5e:2x2', found {topology!r}."
    )
  return CHIPS[name]


@functools.cache  # Programs over the same slice must speak of the same devices.
def slice_devices(topology: str) -> Sequence[Any]:
  """The devices of a slice, one a chip, to compile for.

  Args:
    topology: chip and shape: 'v4:2x2x1' is one v4 host, 'v4:2x2x2' are two,
      'v5e:1x1' is one chip.

  Raises:
    ValueError: no such chip or shape, or libtpu is not installed.
  """
  chip = chip_of(topology)
  if not compiler_is_installed():
    raise ValueError(
        "libtpu: expected it to be installed, for it is what compiles for a TPU; found none. "
        "Install the extra: pip install 'specdec[tpu_plan]'."
    )
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  options = dict(_MEGACORE.get(chip.name, {}))
  shape = [int(part) for part in topology.partition(":")[2].split("x")]
  host = [*shape, 1, 1][:3]
  if host in ([1, 1, 1], [2, 4, 1]):  # Not the host's own default.
    options["chips_per_host_bounds"] = tuple(host)
  try:
    found = topologies.get_topology_desc(topology, platform="tpu", **options).devices
  except Exception as error:  # XLA's codes arrive as several types.
    reason = (str(error).splitlines() or [""])[0]
    raise ValueError(f"topology: expected one that the compiler knows, found {topology!r} ({reason}).") from error
  return found


def slice_mesh(topology: str, data: int = 1) -> Mesh:
  """The mesh of all chips of a slice, see `slice_devices` and `mesh.make_mesh`."""
  return mesh_lib.make_mesh(data, devices=slice_devices(topology))


def with_shardings(shapes: Any, shardings: Any) -> Any:
  """Shapes that say where they lie, to lower a program with."""
  place = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
  return jax.tree.map(place, shapes, shardings)


class DoesNotFit(ValueError):
  """The compiler refused a program because its memory is too small."""


def compile_lowered(lowered: Any, options: Mapping[str, Any] | None = None) -> Any:
  """Compiles a lowered program for the devices that its arguments lie on.

  Args:
    lowered: `jax.jit(function).lower(*shapes)`, see `with_shardings`.
    options: of the compiler.

  Returns:
    JAX's `Compiled`.

  Raises:
    DoesNotFit: it needs more memory than a chip has.
  """
  try:
    return lowered.compile(compiler_options=dict(options) if options else None)
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" in str(error) or "exceeds available" in str(error):
      raise DoesNotFit((str(error).splitlines() or [""])[0]) from error
    raise
