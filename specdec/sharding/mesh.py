"""Models on several chips: named meshes, and a `LanguageModel` whose arrays lie on one.

A mesh has two axes. `model` splits the weights of a model, `data` the requests
of a batch. JAX's own partitioner does the rest: the programs are those of one
chip, and only arrays at their doors are placed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from specdec.interfaces import LanguageModel, Prompt, Scores
from specdec.sharding import rules as rules_lib
from specdec.sharding.rules import Rules


def initialize(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
  """Joins the processes of several hosts, one a host; call it before anything else touches a device.

  On a TPU slice the arguments are found by JAX itself; elsewhere all three are
  needed. Every process then runs the same program over the global mesh.

  Args:
    coordinator_address: "host:port" of process 0.
    num_processes: how many there are.
    process_id: of this one.

  Raises:
    ValueError: some of the arguments are given, and not all.
  """
  given = [value is not None for value in (coordinator_address, num_processes, process_id)]
  if any(given) and not all(given):
    raise ValueError(
        "initialize: expected coordinator_address, num_processes and process_id together, or none of them on a TPU "
        f"slice; found {coordinator_address!r}, {num_processes!r} and {process_id!r}."
    )
  jax.distributed.initialize(coordinator_address, num_processes, process_id)


def make_mesh(data: int = 1, model: int | None = None, devices: Sequence[Any] | None = None) -> Mesh:
  """A mesh of `data` x `model` devices.

  Neighbours on the axis `model`, which talk in every layer, are neighbours in
  the order of `jax.devices()`, so that they share a host where it is large enough.

  Args:
    data: groups of devices, each with a whole model and its share of the batch.
    model: devices that share a model; None takes all that there are.
    devices: None is `jax.devices()`, those of all hosts.

  Raises:
    ValueError: the devices are not `data * model`.

  Example:
    >>> dict(make_mesh(devices=jax.devices()[:1]).shape)
    {'data': 1, 'model': 1}
  """
  devices = list(jax.devices() if devices is None else devices)
  if data < 1 or (model is not None and model < 1):
    raise ValueError(f"mesh: expected at least 1 device on each axis, found data {data} and model {model}.")
  model = len(devices) // data if model is None else model
  if data * model != len(devices):
    raise ValueError(f"mesh: expected data * model = {len(devices)} devices, found {data} * {model}.")
  return Mesh(np.array(devices).reshape(data, model), (rules_lib.DATA, rules_lib.MODEL))


def rules_for(config: Any, mesh: Mesh, split: bool = True) -> Rules:
  """The rules for a model of these sizes on this mesh.

  Args:
    config: `networks.t5.T5Config`.
    mesh: from `make_mesh`.
    split: False keeps the whole model on every chip, as suits a small draft.
  """
  sizes = {"heads": config.num_heads, "mlp": config.mlp_dim, "vocab": config.vocab_size}
  return rules_lib.fit(rules_lib.SPLIT if split else rules_lib.WHOLE, sizes, mesh.shape)


def named(specs: Any, mesh: Mesh) -> Any:
  """`NamedSharding`s for a tree of `PartitionSpec`s."""
  is_spec = lambda node: isinstance(node, PartitionSpec)
  return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def parameter_shardings(params: Any, mesh: Mesh, rules: Rules) -> Any:
  """Where each parameter lies; `params` may be shapes."""
  return named(rules_lib.parameter_specs(params, rules), mesh)


def request_shardings(requests: Any, mesh: Mesh, batch: int, rules: Rules = rules_lib.WHOLE) -> Any:
  """Where the arrays of `batch` requests lie: prompts, keys, settings, limits, or the state of a model."""
  return named(rules_lib.state_specs(requests, _by_rows(rules, batch, mesh.shape), batch), mesh)


def place(requests: Any, mesh: Mesh, batch: int) -> Any:
  """Puts prompts, keys, settings, … of `batch` requests on the mesh, split by rows where that divides."""
  return jax.device_put(requests, request_shardings(requests, mesh, batch))


def shard_model(model: LanguageModel, mesh: Mesh, rules: Rules, pieces: int | None = None) -> LanguageModel:
  """`model`, with its caches split by `rules` and its logits whole on every chip.

  The transforms, the drafter and the rule read all logits of a node many times
  (a top-p law takes 32 sums over the vocabulary), so that they are gathered
  once, where they are made. They are cut to the pieces of the vocabulary only
  then: what is left of 32128 after a cut to 32100 does not divide by chips, and
  would first be moved from each to the next.

  Args:
    model: pure functions over parameters that lie on `mesh`, with all logits.
    mesh: from `make_mesh`.
    rules: the same that placed the parameters.
    pieces: of the vocabulary; None keeps all logits.
  """

  def hold(tree: Any, batch: int, to: Rules = rules) -> Any:
    return jax.lax.with_sharding_constraint(tree, request_shardings(tree, mesh, batch, to))

  def init(params: Any, prompt: Prompt, buffer_length: int) -> Any:
    batch = prompt.tokens.shape[0]
    return hold(model.init(params, hold(prompt, batch), buffer_length), batch)

  def score(params: Any, state: Any, tokens: Any, topology: Any) -> tuple[Scores, Any]:
    batch = tokens.shape[0]
    scores, state = model.score(params, state, hold(tokens, batch), topology)
    scores = hold(scores, batch)
    return scores._replace(logits=scores.logits[..., :pieces]), hold(state, batch)

  def commit(state: Any, path: Any, count: Any) -> Any:
    return hold(model.commit(state, path, count), count.shape[0])

  return LanguageModel(init, score, commit)


def _by_rows(rules: Rules, batch: int, mesh_shape: Mapping[str, int]) -> Rules:
  return rules_lib.fit(rules, {"batch": batch}, mesh_shape)
