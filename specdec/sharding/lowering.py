"""Whether programs lower for a TPU: what can be checked without its compiler."""

from collections.abc import Mapping, Sequence

import jax
from jax import export

from specdec import loop
from specdec import recipes
from specdec.adapters import flax_model
from specdec.interfaces import Params
from specdec.networks.t5 import T5
from specdec.sharding import mesh as mesh_lib
from specdec.sharding import programs
from specdec.sharding.programs import Workload


def lowers(target: T5, draft: T5 | None, gamma: int, workload: Workload) -> int:
  """Lowers the whole of `generate` for one TPU; returns the bytes of the portable program.

  Args:
    target: the target's network.
    draft: the draft's; None is plain decoding.
    gamma: tokens drafted a step.
    workload: what is decoded.
  """
  mesh = mesh_lib.make_mesh(devices=jax.devices()[:1])
  sized = lambda module: programs.sized_model(module, mesh, workload)
  plain = lambda tree: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
  model = lambda module: flax_model.t5_model(module, workload.pieces)
  if draft is None:
    step, params = recipes.autoregressive(model(target)), Params(plain(sized(target).params))
  else:
    step = recipes.leviathan(model(target), model(draft), gamma)
    params = Params(plain(sized(target).params), plain(sized(draft).params))

  def run(key_bits, params, prompt, settings):
    return loop.generate(step, jax.random.wrap_key_data(key_bits), params, prompt, settings, workload.max_new_tokens)

  key_bits = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
  arguments = (key_bits, params, workload.prompt(), programs.settings(workload.batch))
  return len(export.export(jax.jit(run), platforms=["tpu"])(*arguments).mlir_module_serialized)


def report(target: T5, drafts: Mapping[str, T5], gammas: Sequence[int], workload: Workload) -> str:
  """Lowers plain decoding and each draft at the smallest and the largest gamma; a page in Markdown."""
  programs_ = [("decode", None, 0)]
  programs_ += [(f"{name}, gamma {g}", module, g) for name, module in drafts.items() for g in sorted({gammas[0], gammas[-1]})]
  lines = [f"| {name} | yes | {lowers(target, module, g, workload)} |" for name, module, g in programs_]
  return "\n".join([
      "# Everything lowers for TPU",
      "",
      "libtpu is not installed, so nothing was compiled: neither memory nor time is known. Install the extra `tpu_plan`.",
      "",
      "| program | lowers | StableHLO bytes |",
      "|---|---|---|",
      *lines,
      "",
  ])
