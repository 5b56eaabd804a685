"""Runs tiny models on eight pretend CPU devices and prints what happened as JSON; `test_mesh.py` starts it.

The devices must be asked for before JAX starts, and so in a process of its own.
"""

import collections
import json
import os
import sys
import tempfile
import types

DEVICES = 8
if __name__ == "__main__":
  os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
  os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from specdec import loop  # noqa: E402
from specdec import models  # noqa: E402
from specdec import recipes  # noqa: E402
from specdec.adapters import flax_model  # noqa: E402
from specdec.checkpoints import from_orbax  # noqa: E402
from specdec.interfaces import Params, Prompt  # noqa: E402
from specdec.networks.t5 import T5, T5Config  # noqa: E402
from specdec.probability import transforms  # noqa: E402
from specdec.sharding import hlo  # noqa: E402
from specdec.sharding import hlo_cost  # noqa: E402
from specdec.sharding import mesh as mesh_lib  # noqa: E402
from specdec.trees import topology  # noqa: E402
from tests import fakes  # noqa: E402

BATCH, GAMMA, NEW_TOKENS, ENCODER = 8, 3, 12, 6
LOGITS, PIECES = 32, 30  # As T5's 32128 for 32100: the logits that are cut off lie on one chip.
SIZES = dict(vocab_size=LOGITS, emb_dim=16, head_dim=4, mlp_dim=32)
TARGET = T5(T5Config(num_heads=8, num_encoder_layers=2, num_decoder_layers=2, **SIZES))
NEAR = T5(T5Config(num_heads=8, num_encoder_layers=2, num_decoder_layers=1, **SIZES))  # Its heads divide.
FAR = T5(T5Config(num_heads=2, num_encoder_layers=1, num_decoder_layers=1, **SIZES))  # They do not.
TEMPERATURES = np.float32([0, 1, 0, 1, 0, 1, 0.5, 1])  # A batch of both; the other batch is all greedy.


def variables():
  """Of target, near draft and far draft; the near one is the target's first layer with noise."""
  target = fakes.t5_variables(TARGET, 13)
  for name in ("self_attention", "encoder_decoder_attention"):
    target["decoder"]["layers_1"][name]["out"]["kernel"] *= np.float32(0.2)
  target["decoder"]["layers_1"]["mlp"]["wo"]["kernel"] *= np.float32(0.2)
  decoder = {name: part for name, part in target["decoder"].items() if name != "layers_1"}
  generator = np.random.default_rng(6)
  noisy = lambda x: x + np.float32(0.1 * x.std() * generator.normal(size=x.shape))
  near = jax.tree.map(noisy, {**target, "decoder": decoder})
  return target, near, fakes.t5_variables(FAR, 7)


def prompt():
  """Rows of several lengths."""
  tokens = fakes.encoder_rows(BATCH, ENCODER, PIECES)
  mask = np.arange(ENCODER)[None] < np.array([6, 6, 5, 4, 6, 3, 6, 2])[:, None]
  return Prompt(jnp.asarray(tokens), jnp.asarray(mask), jnp.zeros((BATCH, 1), jnp.int32), jnp.ones(BATCH, jnp.int32))


def arguments(greedy: bool):
  """Key, prompt and settings of one batch."""
  temperature = 0.0 if greedy else TEMPERATURES
  return jax.random.split(jax.random.key(11), BATCH), prompt(), transforms.sampling(BATCH, temperature)


def collectives(compiled, body_only=False) -> dict[str, int]:
  """Collectives that one run (or one step of the decoding loop) does, by kind; those of booleans apart."""
  module = hlo.parse(compiled.as_text())
  instructions = {name: i for computation in module.computations.values() for name, i in computation.items()}
  cost = hlo_cost.count(module, hlo_cost.open_loop(module) if body_only else None)
  found = collections.Counter()
  for one in cost.each:
    kind = one.opcode.removesuffix("-start")
    if kind in hlo_cost.COLLECTIVES:
      boolean = all(shape.dtype == "pred" for shape in instructions[one.name].shapes)
      found[f"{kind} of booleans" if boolean else kind] += int(one.times)
  return dict(found)


class Placed:
  """A module's functions and parameters on a mesh."""

  def __init__(self, module, variables_, mesh, split=True):
    self.rules = mesh_lib.rules_for(module.config, mesh, split)
    self.model = mesh_lib.shard_model(flax_model.t5_model(module), mesh, self.rules, PIECES)
    params = flax_model.prepare(module, variables_)
    self.params = jax.device_put(params, mesh_lib.parameter_shardings(params, mesh, self.rules))


def programs(placed: Placed, mesh) -> dict[str, dict[str, int]]:
  """Collectives of the encoder and of scoring."""
  open_ = jax.jit(lambda params, prompt: placed.model.init(params, prompt, 24))
  asked = mesh_lib.place(prompt(), mesh, BATCH)
  found = {"encode": collectives(open_.lower(placed.params, asked).compile())}
  state = open_(placed.params, asked)
  for count in (1, GAMMA + 1):
    score = jax.jit(lambda *a, count=count: placed.model.score(*a, topology.chain(count)))
    tokens = mesh_lib.place(jnp.ones((BATCH, count), jnp.int32), mesh, BATCH)
    found[f"score {count}"] = collectives(score.lower(placed.params, state, tokens).compile())
  shape = state.cache.keys[0].sharding.shard_shape(state.cache.keys[0].shape)
  return {**found, "cache shard": list(shape)}


def gaps(tokens, expected, lengths, target):
  """For each greedy row that differs: the gap between the two best logits where it first does."""
  found = []
  for row in np.flatnonzero((tokens != expected).any(axis=1)):
    place = int(np.argmax(tokens[row] != expected[row]))
    asked = prompt()
    prefix = jnp.asarray(np.concatenate([[0], expected[row, :place]]))[None]
    logits = TARGET.apply({"params": target}, asked.tokens[row : row + 1], prefix, asked.mask[row : row + 1])
    best = np.sort(np.asarray(logits)[0, -1, :PIECES])
    found.append(float(best[-1] - best[-2]))
  return found


def loaded(target, target_params) -> dict[str, bool]:
  """A checkpoint read straight into shards: values, and how much of a kernel a device holds."""
  mesh = mesh_lib.make_mesh(2, 4)
  with tempfile.TemporaryDirectory() as folder:
    from_orbax.save(f"{folder}/params", target)
    vocabulary = types.SimpleNamespace(size=PIECES)
    model = models.load_model(TARGET, f"{folder}/params", vocabulary, mesh=mesh)
  expected = mesh_lib.parameter_shardings(target_params, mesh, mesh_lib.rules_for(TARGET.config, mesh))
  pairs = list(zip(*map(jax.tree.leaves, (model.params, target_params, expected)), strict=True))
  qkv = model.params.decoder.layers[0].self_qkv.array
  key, asked, setting = mesh_lib.place(arguments(True), mesh, BATCH)
  params = Params(model.params)
  out = loop.generate(recipes.autoregressive(model.model), key, params, asked, setting, NEW_TOKENS)
  return {
      "values": all(np.array_equal(a, b) for a, b, _ in pairs),
      "shardings": all(a.sharding.is_equivalent_to(s, a.ndim) for a, _, s in pairs),
      "share": qkv.addressable_shards[0].data.size / qkv.size,
      "lengths": out.lengths.tolist(),
  }


def main():
  target, near, far = variables()
  plain = lambda module, v: (flax_model.t5_model(module, PIECES), flax_model.prepare(module, v))
  (target_model, target_params), drafts = plain(TARGET, target), {"near": (NEAR, near), "far": (FAR, far)}
  expected = {}
  for name, (module, weights) in drafts.items():
    model, params = plain(module, weights)
    step = recipes.leviathan(target_model, model, GAMMA)
    for greedy in (True, False):
      key, asked, setting = arguments(greedy)
      out = loop.generate(step, key, Params(target_params, params), asked, setting, NEW_TOKENS)
      expected[name, greedy] = jax.device_get(out)
  step = recipes.autoregressive(target_model)
  for greedy in (True, False):
    key, asked, setting = arguments(greedy)
    expected["plain", greedy] = jax.device_get(
        loop.generate(step, key, Params(target_params), asked, setting, NEW_TOKENS)
    )

  report = {"devices": jax.device_count(), "runs": [], "programs": {}}
  report["accepted"] = int(expected["near", False].statistics.accepted.sum())
  report["lengths"] = expected["near", True].lengths.tolist()
  for data, model, name, split in ((2, 4, "near", False), (2, 4, "near", True), (1, 8, "far", True), (1, 8, "plain", True)):
    mesh = mesh_lib.make_mesh(data, model)
    on_mesh = Placed(TARGET, target, mesh)
    if name == "plain":
      step, params = recipes.autoregressive(on_mesh.model), Params(on_mesh.params)
    else:
      draft = Placed(*drafts[name], mesh, split)
      step, params = recipes.leviathan(on_mesh.model, draft.model, GAMMA), Params(on_mesh.params, draft.params)
    label = f"{data}x{model} {name}{' split' if split else ''}"
    for greedy in (True, False):
      key, asked, setting = mesh_lib.place(arguments(greedy), mesh, BATCH)
      call = (step, key, params, asked, setting, NEW_TOKENS)
      out = jax.device_get(loop.generate(*call))
      wanted = expected[name, greedy]
      same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), (out.tokens, out.lengths), (wanted.tokens, wanted.lengths))
      unequal = int((out.tokens != wanted.tokens).any(axis=1).sum())
      report["runs"].append({
          "run": label, "greedy": greedy, "same": all(same), "unequal": unequal,
          "gaps": gaps(out.tokens, wanted.tokens, wanted.lengths, target) if greedy else [],
          "steps": [out.statistics.steps.tolist(), wanted.statistics.steps.tolist()],
      })  # fmt: skip
    report["programs"][label] = {"loop": collectives(loop.generate.lower(*call).compile(), body_only=True)}
    if label == "2x4 near split":
      report["programs"]["2x4 target"], report["programs"]["2x4 near draft"] = programs(on_mesh, mesh), programs(draft, mesh)
    if name == "far":
      report["programs"]["1x8 far"] = programs(draft, mesh)
  report["loaded"] = loaded(target, target_params)
  json.dump(report, sys.stdout)


if __name__ == "__main__":
  main()
