"""T5X's own model and decoding loops on our network, against the same on T5X's network, with the same parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("t5x", reason="T5X is not on PYTHONPATH (README.md, 'Where T5X comes in')")

from t5x import decoding
from t5x import partitioning
from t5x import trainer as trainer_lib
from t5x import utils

from specdec.adapters.t5x_module import T5XModule
from specdec.checkpoints import names
from tests import fakes
from tests.t5x import task

B, L = 6, 10
PAIR = fakes.standard_pair()
MODULES = {"t5x": task.t5x_network(PAIR.module.config), "ours": T5XModule(PAIR.module.config)}
PROMPTS = [(), (5,), (7, 3, 9), (4,) * (L - 1), (8, 1), (3, 6)]
DECODE = {
    "sample": decoding.temperature_sample,  # By its default top-k of 1 it is greedy.
    "beam": functools.partial(decoding.beam_search, alpha=0.6),
}


def batch_of(prompt=None):
  tokens = fakes.encoder_rows(B, 8, task.V)
  tokens[1, 5:] = 0
  return task.batch_of(tokens, L, prompt)


@functools.cache
def decoded(network, decode_fn, **static):
  model = task.t5x_model(MODULES[network], DECODE[decode_fn])
  batch = batch_of(PROMPTS if static.get("prompt_with_targets") else None)
  predict = jax.jit(lambda p: model.predict_batch_with_aux(p, batch, return_all_decodes=True, **static))
  return task.plain(predict(PAIR.variables))


@pytest.mark.parametrize(
    "decode_fn,static",
    [
        ("sample", {}),
        ("sample", {"num_decodes": 2}),
        ("sample", {"prompt_with_targets": True}),  # Prefilled: `decode` takes `prefill`.
        ("sample", {"prompt_with_targets": True, "num_decodes": 2}),
        ("beam", {"num_decodes": 1}),
        ("beam", {"num_decodes": 4}),
    ],
    ids=str,
)
def test_decoding_equals_that_of_t5x_s_network(decode_fn, static):
  theirs, their_aux = decoded("t5x", decode_fn, **static)
  ours, aux = decoded("ours", decode_fn, **static)
  if decode_fn == "beam" and static["num_decodes"] > 1:
    # A network that takes a prefill gets an index to begin at, and T5X then moves every beam to the left: beams that
    # begin with the padding token, as a random network's do (row 4), lose it. T5X's network takes none.
    theirs = decoding._left_align_prompts(theirs.reshape(-1, L)).reshape(theirs.shape)
  np.testing.assert_array_equal(ours, theirs)
  np.testing.assert_allclose(aux["scores"], their_aux["scores"], atol=5e-4)


def test_prompts_are_prefilled():
  """T5X's network takes a prompt token by token; ours in one call, after which rows stand at places of their own."""
  model = task.t5x_model(MODULES["ours"])
  seen = {}

  def decode_fn(inputs, cache, initial_index=None, **unused):
    del unused
    seen.update(cache=cache, index=initial_index)
    return inputs[:, None], jnp.zeros((B, 1))

  model._decode_fn = decode_fn
  model.predict_batch_with_aux(PAIR.variables, batch_of(PROMPTS), prompt_with_targets=True)
  lengths = [0, 1, 3, L - 1, 1, 2]  # T5X takes EOS out of the fifth.
  assert seen["index"].tolist() == lengths
  assert seen["cache"]["decoder"]["cache_index"].tolist() == lengths


def test_scores_losses_and_gradients_equal_those_of_t5x_s_network():
  batch = batch_of()
  weights = np.ones((B, L), np.float32)
  weights[0, 6:] = 0
  targets = np.where(weights > 0, fakes.encoder_rows(B, L, task.V, seed=4), 0)
  batch |= {"decoder_target_tokens": targets, "decoder_loss_weights": weights}
  batch["decoder_input_tokens"] = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
  found = {}
  for name, module in MODULES.items():
    model = task.t5x_model(module)
    loss, gradient = jax.jit(jax.value_and_grad(lambda p: model.loss_fn(p, batch, None)[0]))(PAIR.variables)
    found[name] = (jax.jit(model.score_batch)(PAIR.variables, batch), loss, gradient)
  for (path, ours), theirs in zip(jax.tree_util.tree_leaves_with_path(found["ours"]), jax.tree.leaves(found["t5x"])):
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4, err_msg=str(path))


@pytest.mark.parametrize("packed", [False, True])
def test_initial_variables_equal_those_of_t5x_s_network(packed):
  shapes = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, L)}
  if packed:
    for side, length in (("encoder", 8), ("decoder", L)):
      shapes |= {f"{side}_positions": (2, length), f"{side}_segment_ids": (2, length)}
  types = {name: jnp.int32 for name in shapes} if packed else None
  made = {}
  for name, module in MODULES.items():
    init = task.t5x_model(module).get_initial_variables
    made[name] = jax.eval_shape(lambda key: init(key, shapes, types), jax.random.PRNGKey(0)).unfreeze()
  assert made["ours"] == made["t5x"]  # Names, shapes, dtypes and logical axes.


def test_t5x_trainer_takes_steps_on_packed_rows():
  """One step of T5X's trainer with Adafactor on its partitioner changes every parameter; the loss then falls."""
  model = task.t5x_model(MODULES["ours"])
  partitioner = partitioning.PjitPartitioner(num_partitions=1)
  rows = fakes.encoder_rows(8, 8, task.V)
  segments = np.tile(np.int32([1, 1, 1, 2, 2, 2, 2, 0]), (8, 1))
  tokens = np.where(segments > 0, rows, 0)
  batch = {"encoder_input_tokens": tokens, "decoder_target_tokens": tokens, "decoder_loss_weights": (tokens > 0) * 1}
  inside = segments == np.pad(segments[:, :-1], ((0, 0), (1, 0)))
  batch["decoder_input_tokens"] = np.where(inside, np.roll(tokens, 1, 1), 0)
  batch |= {f"{side}_segment_ids": segments for side in ("encoder", "decoder")}
  batch |= {f"{side}_positions": np.tile(np.int32([0, 1, 2, 0, 1, 2, 3, 0]), (8, 1)) for side in ("encoder", "decoder")}
  initializer = utils.TrainStateInitializer(
      optimizer_def=model.optimizer_def, init_fn=model.get_initial_variables,
      input_shapes={name: value.shape for name, value in batch.items()}, partitioner=partitioner,
  )  # fmt: skip
  trainer = trainer_lib.Trainer(
      model, train_state=initializer.from_scratch(jax.random.PRNGKey(0)), partitioner=partitioner, eval_names=[],
      summary_dir=None, train_state_axes=initializer.train_state_axes, rng=jax.random.PRNGKey(0),
      learning_rate_fn=lambda step: 0.05, num_microbatches=None,
  )  # fmt: skip
  before = names.flatten(task.plain(trainer.train_state.params.unfreeze()))
  first = float(model.eval_fn(trainer.train_state.params, batch)[0])
  trainer.train(iter([batch] * 8), 8)
  after = names.flatten(task.plain(trainer.train_state.params.unfreeze()))
  assert not [name for name in before if np.array_equal(before[name], after[name])]
  assert float(model.eval_fn(trainer.train_state.params, batch)[0]) < first
