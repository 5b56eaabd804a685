"""Speculative decoding inside T5X: its models, its partitioner and its inference run our loop.

The one file that imports T5X, which is on no package registry.

Dimensions: B batch, n decodes of each example, S encoder length, L decoder
length, G drafted tokens, V vocabulary.
"""

from collections.abc import Callable, Mapping, MutableMapping
import copy
import dataclasses
from typing import Any

from etils import epath
import flax
import jax
import jax.numpy as jnp
import numpy as np

from specdec import loop
from specdec.adapters import flax_model
from specdec.adapters.t5x_module import T5XModule
from specdec.interfaces import Params, Prompt, Step
from specdec.networks.t5 import T5, T5Config
from specdec.probability import transforms

try:
  from t5x import checkpoints
  from t5x import decoding
  from t5x import models
  from t5x import train_state as train_state_lib
  from t5x.examples.t5 import network
except ImportError as error:
  _LACKING = error.name or str(error)
  _LACKING = "T5X" if _LACKING.split(".")[0] == "t5x" else f"T5X, which is there but lacks {_LACKING}"
  raise ModuleNotFoundError(
      f"specdec.adapters.t5x_model needs {_LACKING}: put the sources of github.com/google-research/t5x and of what its "
      "setup.py asks for on PYTHONPATH (README.md, 'Where T5X comes in').",
      name="t5x",
  ) from error

Array = jax.Array

# Of `decoding.temperature_sample`; the values of a model are its constructor's.
_SETTINGS = ("temperature", "topk", "topp", "max_decode_steps", "rescale_log_probs")


def network_config(module: Any) -> T5Config:
  """The sizes of a T5 network of T5X's examples or of ours.

  Raises:
    ValueError: it is another network, or one with scanned layers.
  """
  config = getattr(module, "config", None)
  if isinstance(config, T5Config):
    return config
  if getattr(config, "scan_layers", False) or getattr(module, "scan_layers", False):
    raise ValueError(
        "module: expected unscanned layers, found scanned ones; take the layers of the checkpoint apart "
        "(checkpoints.from_t5x does) and use t5x.examples.t5.network."
    )
  names = [field.name for field in dataclasses.fields(T5Config) if hasattr(config, field.name)]
  lacking = {"vocab_size", "num_encoder_layers", "num_decoder_layers", "head_dim", "mlp_dim"} - set(names)
  if lacking:
    raise ValueError(
        "module: expected t5x.examples.t5.network.Transformer or specdec.adapters.t5x_module.T5XModule, found "
        f"{type(module).__name__}, whose configuration lacks {', '.join(sorted(lacking))}."
    )
  return T5Config(**{name: getattr(config, name) for name in names})


class SpeculativeEncoderDecoderModel(models.EncoderDecoderModel):
  """A T5X model whose predictions come from `specdec.loop.generate`.

  Training, evaluation and scoring stay T5X's own and see the target's
  parameters. The parameters of both models are one tree {target, draft}, so
  that T5X's partitioner shards both by its logical axis rules;
  `PairCheckpointManager` reads it from two checkpoints.

  Args:
    model: the T5X model to speed up; its vocabularies, optimizer and losses are
      taken over. Its `decode_fn` is not used.
    recipe: of `specdec.recipes`: `recipe(target, draft, eos_id=…)`, or
      `recipe(target, eos_id=…)` where there is no draft.
    draft_module: a network of T5X's or ours, with the target's vocabulary; None
      decodes with the target alone, and leaves its parameters as they are.
    temperature: as `t5x.decoding.temperature_sample`, and so are the next four:
      by default decoding is greedy because topk is 1.
    topk: 0 is off.
    topp: 0 is off.
    max_decode_steps: new tokens, the prompt not counted; None is up to L.
    rescale_log_probs: scores in the law that tokens are drawn from, so 0 where
      decoding is greedy; False: at temperature 1.
    vocab_size: logits beyond it are cut off; None keeps all, as T5X does.

  Raises:
    ValueError: one of the modules is not a T5 of unscanned layers, or topk and
      topp are both given.
  """

  def __init__(
      self,
      model: models.EncoderDecoderModel,
      recipe: Callable[..., Step],
      draft_module: Any = None,
      temperature: float = 1.0,
      topk: int = 1,
      topp: float = 0.0,
      max_decode_steps: int | None = None,
      rescale_log_probs: bool = True,
      vocab_size: int | None = None,
  ):
    # Not super().__init__: all that the given model was configured with is taken over, whatever its names.
    vars(self).update(vars(model))
    self._recipe = recipe
    self._target = T5(network_config(model.module))
    self._draft = None if draft_module is None else T5(network_config(draft_module))
    self._vocab_size = vocab_size
    self._settings = dict(zip(_SETTINGS, (temperature, topk, topp, max_decode_steps, rescale_log_probs)))
    _check_settings(self._settings)

  def get_initial_variables(
      self, rng: Array, input_shapes: Mapping[str, Any], input_types: Mapping[str, Any] | None = None
  ) -> flax.core.FrozenDict:
    """{'params', 'params_axes'} of T5X's model; with a draft, each is {'target', 'draft'}."""
    variables = super().get_initial_variables(rng, input_shapes, input_types)
    if self._draft is None:
      return variables
    other = copy.copy(self)
    other.module = T5XModule(self._draft.config)
    draft = super(SpeculativeEncoderDecoderModel, other).get_initial_variables(
        jax.random.fold_in(rng, 1), input_shapes, input_types
    )
    return flax.core.freeze(
        {name: {"target": variables[name], "draft": draft[name]} for name in ("params", "params_axes")}
    )

  def _compute_logits(self, params: Any, *args, **kwargs):
    """Of the target: what losses and scores are made from."""
    return super()._compute_logits(params if self._draft is None else params["target"], *args, **kwargs)

  def predict_batch_with_aux(
      self,
      params: Any,
      batch: Mapping[str, Array],
      rng: Array | None = None,
      decoder_params: MutableMapping[str, Any] | None = None,
      return_all_decodes: bool | None = None,
      num_decodes: int | None = None,
      prompt_with_targets: bool = False,
  ) -> tuple[Array, Mapping[str, Array]]:
    """Decodes a batch as T5X's `temperature_sample` would: greedily the same tokens, else the same law.

    Args:
      params: of the target, or {target, draft}.
      batch: encoder_input_tokens [B, S], decoder_input_tokens [B, L].
      rng: key of all draws; None is T5X's PRNGKey(0).
      decoder_params: settings of this call, under the names of
        `temperature_sample` (temperature also [B]); eos_id and decode_rng too.
        It is only read.
      return_all_decodes: all n decodes in the order of rising scores, or the last.
      num_decodes: n.
      prompt_with_targets: decoder_input_tokens are BOS and a prompt, which ends
        before its first 0 or EOS.

    Returns:
      Tokens [B, L] or [B, n, L], the prompt among them, 0 after the end; and a
      dictionary of arrays that begin with [B] or [B, n]: scores, and of
      speculation steps (calls of the target), drafted, accepted, committed,
      acceptance_histogram [G + 1], reached and alpha (the mean acceptance
      probability of the `reached` drafted places whose prefix was committed; 0
      where there was none), stop (`StopCode`).

    Raises:
      ValueError: a setting that speculation does not have, two keys, or models
        of different vocabularies.
    """
    if return_all_decodes is None:
      return_all_decodes = self._default_decoder_params.return_all_decodes
    copies = self._default_decoder_params.num_decodes if num_decodes is None else num_decodes
    params = flax.core.unfreeze(params)
    settings, key, eos_id = self._call_settings(rng, decoder_params)
    inputs = batch["decoder_input_tokens"].astype(jnp.int32)
    examples, length = inputs.shape
    if prompt_with_targets:
      prefix = inputs.at[:, 0].set(0)
      inside = (prefix[:, 1:] != 0) & (prefix[:, 1:] != eos_id)
      given = jnp.cumprod(inside.astype(jnp.int32), axis=1).sum(axis=1)
    else:
      prefix, given = jnp.zeros((examples, 1), jnp.int32), jnp.zeros((examples,), jnp.int32)
    limit = length - given
    if settings["max_decode_steps"] is not None:
      limit = jnp.minimum(limit, settings["max_decode_steps"])
    spread = lambda x: jnp.repeat(x, copies, axis=0)
    sources = batch["encoder_input_tokens"].astype(jnp.int32)
    prompt = Prompt(*map(spread, (sources, sources > 0, prefix, 1 + given)))
    per_row = lambda x: jnp.repeat(jnp.asarray(x), copies) if jnp.ndim(x) else x
    sampling = transforms.sampling(
        examples * copies, per_row(settings["temperature"]), per_row(settings["topk"]), per_row(settings["topp"])
    )

    roles = [(self._target, params)]
    if self._draft is not None:
      roles = [(self._target, params["target"]), (self._draft, params["draft"])]
    step = self._recipe(*(flax_model.t5_model(m, self._vocab_size, copies) for m, _ in roles), eos_id=eos_id)
    output = loop.generate(
        step, key, Params(*(flax_model.prepare(m, p) for m, p in roles)), prompt, sampling, length, spread(limit)
    )
    decodes = _join(prompt, output)
    counts = output.statistics
    scores = counts.drawn_log_prob if settings["rescale_log_probs"] else counts.log_prob
    reached = counts.visited.sum(axis=-1)
    aux = {
        "scores": scores,
        "steps": counts.steps,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "committed": counts.committed,
        "acceptance_histogram": counts.histogram,
        "reached": reached,
        "alpha": counts.acceptance.sum(axis=-1) / jnp.maximum(reached, 1),
        "stop": output.stop,
    }
    grouped = jax.tree.map(lambda x: x.reshape(examples, copies, *x.shape[1:]), (decodes, aux))
    order = jnp.argsort(grouped[1]["scores"], axis=1)
    take = lambda x: jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1)
    decodes, aux = jax.tree.map(take if return_all_decodes else lambda x: take(x)[:, -1], grouped)
    return decodes, aux

  def _call_settings(self, rng: Array | None, decoder_params: Mapping[str, Any] | None) -> tuple[dict, Array, int]:
    """The settings of one call, its key, and the token that ends a row."""
    asked = dict(decoder_params or {})
    if rng is not None and asked.get("decode_rng") is not None:
      raise ValueError("rng: expected one key, found one in `rng` and another in decoder_params['decode_rng'].")
    rng = next((key for key in (rng, asked.pop("decode_rng", None)) if key is not None), None)
    rng = jax.random.PRNGKey(0) if rng is None else jnp.asarray(rng)
    key = rng if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(rng)
    eos_id = asked.pop("eos_id", None)
    eos_id = self.output_vocabulary.eos_id or 1 if eos_id is None else int(eos_id)
    most = asked.pop("max_decode_steps_hard_limit", None)
    unknown = sorted(asked.keys() - set(_SETTINGS))
    if unknown:
      raise ValueError(
          f"decoder_params: expected {', '.join(_SETTINGS)}, eos_id or decode_rng, found {', '.join(unknown)}; "
          "speculative decoding draws samples, and has no beams and no callbacks."
      )
    settings = self._settings | asked
    _check_settings(settings)
    if most and settings["max_decode_steps"] is not None:
      settings["max_decode_steps"] = jnp.minimum(settings["max_decode_steps"], most)
    return settings, key, eos_id


def _check_settings(settings: Mapping[str, Any]) -> None:
  """Checks what is known before the program is compiled; of top-k and top-p T5X takes one."""
  known = {name: value for name, value in settings.items() if not isinstance(value, jax.core.Tracer)}
  temperature, topk, topp = (known.get(name, 0) for name in ("temperature", "topk", "topp"))
  with jax.ensure_compile_time_eval():
    transforms.sampling(max(map(np.size, (temperature, topk, topp))), temperature, topk, topp)
  if np.any(topk) and np.any(topp):
    raise ValueError(f"topk, topp: expected one of them at most, found {topk} and {topp}.")
  steps = known.get("max_decode_steps")
  if steps is not None and np.any(np.asarray(steps) < 1):
    raise ValueError(f"max_decode_steps: expected at least 1, found {steps}.")


def _join(prompt: Prompt, output: loop.Output) -> Array:
  """Prompt and new tokens without BOS [B, L], 0 after the end."""
  length = output.tokens.shape[1]
  place = jnp.arange(length)[None, :]
  given = prompt.prefix_length[:, None] - 1
  at = lambda x, index: jnp.take_along_axis(x, jnp.clip(index, 0, x.shape[1] - 1), axis=1)
  new = jnp.where(place < given + output.lengths[:, None], at(output.tokens, place - given), 0)
  return jnp.where(place < given, at(prompt.prefix, place + 1), new)


class PairCheckpointManager:
  """Reads the parameters {target, draft} from two T5X checkpoints, of T5X's legacy or Orbax format each.

  For `t5x.utils.RestoreCheckpointConfig.checkpoint_manager_cls`, whose `path` is
  the target's; T5X gives all arguments but the first. Each half is placed by the
  partitioner and read in the dtype that the configuration names.

  Args:
    draft_checkpoint: the draft's folder checkpoint_STEP.
    directory: of the target; only `restore`'s path is read.
    train_state: shapes and axes of both.
    partitioner: of T5X.
    restore_dtype: of the parameters on the devices.
    **unused: what else T5X gives: it is about writing.
  """

  def __init__(
      self,
      draft_checkpoint: str,
      directory: str,
      train_state: Any,
      partitioner: Any,
      restore_dtype: Any = None,
      **unused,
  ):
    del directory, unused
    if set(train_state.params) != {"target", "draft"}:
      raise ValueError(
          "checkpoint_manager_cls: expected the parameters {target, draft} of a SpeculativeEncoderDecoderModel with a "
          f"draft, found {sorted(train_state.params)}; use T5X's own manager."
      )
    self._draft_checkpoint = draft_checkpoint
    self._state, self._partitioner, self._dtype = train_state, partitioner, restore_dtype

  def restore(
      self,
      step: int | None = None,
      path: str | None = None,
      fallback_state: Mapping[str, Any] | None = None,
      state_transformation_fns: Any = (),
      lazy_parameters: bool = False,
  ) -> train_state_lib.InferenceState:
    """The state with both halves; transformations and the step are the target's."""
    del lazy_parameters
    if step is not None or path is None:
      raise ValueError(f"checkpoint: expected the path of the target, found step {step!r} and path {path!r}.")
    restored = {}
    for role, place, functions in (("target", path, state_transformation_fns), ("draft", self._draft_checkpoint, ())):
      if not epath.Path(place).is_dir():
        raise ValueError(f"{place}: expected the {role}'s folder checkpoint_STEP, found none; check the path.")
      half = train_state_lib.InferenceState(
          self._state.step, self._state.params[role], params_axes=self._state.params_axes[role]
      )
      manager = checkpoints.OrbaxCheckpointManagerInterface(
          place, half, self._partitioner, restore_dtype=self._dtype
      )
      fallback = None if fallback_state is None else {**fallback_state, "target": fallback_state["target"][role]}
      restored[role] = manager.restore(path=place, fallback_state=fallback, state_transformation_fns=functions)
    params = flax.core.freeze({role: half.params for role, half in restored.items()})
    return self._state.replace_params(params).replace_step(restored["target"].step)


def own_decoder(config: T5Config, max_new_tokens: int, eos_id: int = 1) -> Callable[..., Array]:
  """T5X's own decoding with its own network: the yardstick of `--mode=benchmark --against=t5x`.

  Args:
    config: sizes.
    max_new_tokens: L.
    eos_id: ends a row.

  Returns:
    The jitted `(params, tokens [B, S], key, temperature) -> [B, L]`: the encoder
    and `temperature_sample` over parameters with T5X's names.
  """
  fields = {field.name for field in dataclasses.fields(network.T5Config)}
  module = network.Transformer(
      network.T5Config(**{name: value for name, value in vars(config).items() if name in fields})
  )
  model = models.EncoderDecoderModel(module, None, None, None, decode_fn=decoding.temperature_sample)

  @jax.jit
  def decode(params: Any, tokens: Array, key: Array, temperature: Array) -> Array:
    batch = {
        "encoder_input_tokens": tokens,
        "decoder_input_tokens": jnp.zeros((tokens.shape[0], max_new_tokens), jnp.int32),
    }
    settings = {"eos_id": eos_id, "temperature": temperature, "topk": 0, "decode_rng": key}
    return model.predict_batch_with_aux(params, batch, decoder_params=settings)[0]

  return decode
