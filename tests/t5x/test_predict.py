"""`SpeculativeEncoderDecoderModel.predict_batch_with_aux` against T5X's own, on T5X's network and the same parameters.

Greedily the same tokens; sampling the same law, both against its enumeration.
The cases are those of T5X's own decoding tests, where a network has a say in them.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("t5x", reason="T5X is not on PYTHONPATH (README.md, 'Where T5X comes in')")

from specdec import recipes
from specdec.adapters import t5x_model
from specdec.adapters.t5x_module import T5XModule
from specdec.interfaces import StopCode
from tests import fakes
from tests import oracles
from tests.t5x import task

B, L = 6, 12
FALSE_ALARM = 1e-4  # Of each chi-square below.
PAIR = fakes.standard_pair()
THEIRS = task.t5x_model(task.t5x_network(PAIR.module.config))
RECIPE = functools.partial(recipes.leviathan, gamma=3)
OURS = t5x_model.SpeculativeEncoderDecoderModel(THEIRS, RECIPE, task.t5x_network(PAIR.draft_module.config))
PLAIN = t5x_model.SpeculativeEncoderDecoderModel(THEIRS, recipes.autoregressive)
PARAMS = task.pair_variables(PAIR)
PROMPTS = [(), (5,), (7, 3, 9), (4,) * (L - 1), (8, 1), (3, 6)]  # One ends in EOS, one fills the row.
MODELS = {"t5x": (THEIRS, PAIR.variables), "ours": (OURS, PARAMS), "plain": (PLAIN, PAIR.variables)}


def sources(batch=B):
  tokens = fakes.encoder_rows(batch, 8, task.V)
  tokens[1, 5:] = 0
  return tokens


@functools.cache
def compiled(who, names, fixed, **static):
  """Jitted `predict_batch_with_aux`; of decoder_params `names` are traced and `fixed` are constants."""
  model, params = MODELS[who]

  def call(batch, rng, values):
    return model.predict_batch_with_aux(params, batch, rng, {**dict(zip(names, values)), **dict(fixed)}, **static)

  return jax.jit(call)


def predict(who, batch, settings=(), rng=0, **static):
  """Decodes; NumPy values among the settings are traced, so that other values compile nothing."""
  traced = {name: value for name, value in dict(settings).items() if isinstance(value, (np.ndarray, np.generic))}
  fixed = tuple((name, value) for name, value in dict(settings).items() if name not in traced)
  function = compiled(who, tuple(traced), fixed, **static)
  return task.plain(function(batch, jax.random.PRNGKey(rng), tuple(traced.values())))


@pytest.mark.parametrize("who", ["ours", "plain"])
def test_greedy_tokens_and_scores(who):
  batch = task.batch_of(sources(), L)
  theirs, _ = predict("t5x", batch)
  ours, aux = predict(who, batch)
  np.testing.assert_array_equal(ours, theirs)
  np.testing.assert_array_equal(aux["scores"], np.zeros(B))
  raw, their_raw = (predict(one, batch, {"rescale_log_probs": False}) for one in (who, "t5x"))
  np.testing.assert_array_equal(raw[0], their_raw[0])
  np.testing.assert_allclose(raw[1]["scores"], their_raw[1]["scores"], atol=5e-4)


def test_statistics():
  _, aux = predict("ours", task.batch_of(sources(), L))
  tokens, _ = predict("ours", task.batch_of(sources(), L))
  ended = tokens == fakes.EOS
  lengths = np.where(ended.any(1), ended.argmax(1) + 1, L)
  np.testing.assert_array_equal(aux["committed"], lengths)
  np.testing.assert_array_equal(aux["stop"], np.where(ended.any(1), StopCode.EOS, StopCode.LENGTH))
  np.testing.assert_array_equal(aux["acceptance_histogram"].sum(1), aux["steps"])
  np.testing.assert_array_equal(aux["acceptance_histogram"] @ np.arange(4), aux["accepted"])
  assert (aux["drafted"] == 3 * aux["steps"]).all() and (aux["steps"] < lengths).any()
  assert ((aux["alpha"] >= 0) & (aux["alpha"] <= 1)).all() and aux["alpha"].max() > 0.3


@pytest.mark.parametrize("steps", [None, 4])
def test_prompts(steps):
  batch = task.batch_of(sources(), L, PROMPTS)
  settings = {} if steps is None else {"max_decode_steps": np.int32(steps)}
  theirs, _ = predict("t5x", batch, settings, prompt_with_targets=True)
  ours, _ = predict("ours", batch, settings, prompt_with_targets=True)
  np.testing.assert_array_equal(ours, theirs)
  assert (ours[2, :3] == PROMPTS[2]).all()
  without, _ = predict("ours", batch)
  np.testing.assert_array_equal(without, predict("t5x", task.batch_of(sources(), L))[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"max_decode_steps": np.int32(9), "max_decode_steps_hard_limit": 4},
        {"temperature": np.float32(0.0), "topk": 4},
        {"temperature": np.float32(0.0), "topk": 0, "topp": 0.5},
        {"topp": 1e-6, "topk": 0},
        {"temperature": np.zeros(B, np.float32), "topk": 0},
        {"eos_id": 7},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_greedy_by_other_settings(settings):
  """Zero temperature under masks, a mask that leaves one token, hard limits, another EOS."""
  batch = task.batch_of(sources(), L)
  theirs, their_aux = predict("t5x", batch, settings)
  ours, aux = predict("ours", batch, settings)
  np.testing.assert_array_equal(ours, theirs)
  np.testing.assert_allclose(aux["scores"], their_aux["scores"], atol=5e-4)


@functools.cache
def exact_law(temperature, topk, topp, length):
  """The law of outputs of `length` tokens for source row 0, by T5X's network teacher forced, in NumPy."""
  module = THEIRS.module
  source = sources()[:1]
  apply = jax.jit(
      lambda tokens: module.apply({"params": PAIR.variables}, jnp.repeat(source, len(tokens), 0), tokens,
                                  jnp.ones_like(tokens), enable_dropout=False)
  )  # fmt: skip
  prefixes = np.array(list(itertools.product(range(task.V), repeat=length - 1)), np.int32)
  fed = np.concatenate([np.zeros((len(prefixes), 1), np.int32), prefixes], axis=1)
  logits = np.asarray(apply(fed))
  found = {}
  for row, tokens in zip(logits, prefixes):
    for depth in range(length):
      found[tuple(tokens[:depth].tolist())] = row[depth]
  law = {(): 1.0}
  for _ in range(length):
    law = {
        (*tokens, *more): mass * p
        for tokens, mass in law.items()
        for more, p in (
            [((), 1.0)] if tokens and tokens[-1] == fakes.EOS
            else [((x,), p) for x, p in enumerate(oracles.numpy_law(found[tokens], temperature, topk, topp)) if p > 0]
        )
    }  # fmt: skip
  return law


def rows_of(decodes):
  """Outputs up to EOS."""
  ends = [list(row).index(fakes.EOS) + 1 if fakes.EOS in row else len(row) for row in decodes.tolist()]
  return [tuple(row[:n]) for row, n in zip(decodes.tolist(), ends)]


SAMPLES = 4096
LAWS = [(1.0, 4, 0.0), (0.7, 0, 0.8), (1.3, 0, 0.0)]


@pytest.mark.parametrize("who", ["t5x", "ours", "plain"])
@pytest.mark.parametrize("temperature,topk,topp", LAWS)
def test_sampling_law(who, temperature, topk, topp):
  """Chi-square of 4096 outputs of 3 tokens against the enumeration; each has a false-alarm rate of 1e-4."""
  batch = task.batch_of(np.repeat(sources()[:1], SAMPLES, axis=0), 3)
  settings = {"temperature": np.float32(temperature), "topk": topk, "topp": topp}
  decodes, aux = predict(who, batch, settings, rng=5)
  law = exact_law(temperature, topk, topp, 3)
  assert sum(law.values()) == pytest.approx(1)
  rows = rows_of(decodes)
  assert oracles.p_value_against(law, rows) > FALSE_ALARM
  # The score of an output is its log-probability in the law it was drawn from.
  np.testing.assert_allclose(aux["scores"], [np.log(law[row]) for row in rows], atol=2e-3)


@pytest.mark.parametrize("who", ["ours", "plain"])
def test_num_decodes(who):
  batch = task.batch_of(sources(), L)
  settings = {"temperature": np.float32(1.0), "topk": np.int32(0)}
  decodes, aux = predict(who, batch, settings, num_decodes=3, return_all_decodes=True)
  assert decodes.shape == (B, 3, L) and aux["steps"].shape == (B, 3) and aux["acceptance_histogram"].shape[:2] == (B, 3)
  assert (np.diff(aux["scores"], axis=1) >= 0).all() and (np.diff(aux["scores"], axis=1) > 0).any()
  assert any(len({tuple(row) for row in example.tolist()}) > 1 for example in decodes)
  best, best_aux = predict(who, batch, settings, num_decodes=3)
  np.testing.assert_array_equal(best, decodes[:, -1])
  np.testing.assert_array_equal(best_aux["scores"], aux["scores"][:, -1])
  greedy, _ = predict(who, batch, num_decodes=3, return_all_decodes=True)
  np.testing.assert_array_equal(greedy, predict("t5x", batch, num_decodes=3, return_all_decodes=True)[0])


def test_temperatures_of_rows():
  batch = task.batch_of(sources(), L)
  temperature = np.float32([0, 2, 0, 2, 0, 2])
  decodes, _ = predict("ours", batch, {"temperature": temperature, "topk": np.int32(0)})
  greedy, _ = predict("ours", batch)
  np.testing.assert_array_equal(decodes[::2], greedy[::2])
  assert (decodes[1::2] != greedy[1::2]).any()


def test_keys():
  batch = task.batch_of(sources(), L)
  settings = {"temperature": np.float32(1.0), "topk": np.int32(0)}
  one, again, other = (predict("ours", batch, settings, rng)[0] for rng in (1, 1, 2))
  np.testing.assert_array_equal(one, again)
  assert (one != other).any()


def test_the_callers_dictionary_is_only_read():
  batch = task.batch_of(sources(), L)
  given = {"temperature": 0.0, "topk": 0}
  kept = dict(given)
  jax.eval_shape(lambda p: OURS.predict_batch_with_aux(p, batch, jax.random.PRNGKey(0), given), PARAMS)
  jax.eval_shape(lambda p: OURS.predict_batch_with_aux(p, batch, None, given), PARAMS)
  assert given == kept
  theirs = dict(kept)
  jax.eval_shape(lambda p: THEIRS.predict_batch_with_aux(p, batch, jax.random.PRNGKey(0), theirs), PAIR.variables)
  assert theirs != kept  # T5X writes into it.


def test_scores_and_losses_are_the_targets():
  batch = task.batch_of(sources(), L)
  batch["decoder_target_tokens"] = fakes.encoder_rows(B, L, task.V)
  batch["decoder_loss_weights"] = np.ones((B, L), np.float32)
  np.testing.assert_array_equal(OURS.score_batch(PARAMS, batch), THEIRS.score_batch(PAIR.variables, batch))
  assert float(OURS.eval_fn(PARAMS, batch)[0]) == float(THEIRS.eval_fn(PAIR.variables, batch)[0])


def test_initial_variables_hold_both_models():
  shapes = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, L)}
  made = jax.eval_shape(lambda key: OURS.get_initial_variables(key, shapes), jax.random.PRNGKey(0))
  for role, variables in PARAMS.items():
    shape_of = lambda tree: jax.tree.map(jnp.shape, dict(tree.unfreeze() if hasattr(tree, "unfreeze") else tree))
    assert shape_of(made["params"][role]) == shape_of(variables)
  assert set(made["params_axes"]) == {"target", "draft"}
  alone = jax.eval_shape(lambda key: PLAIN.get_initial_variables(key, shapes), jax.random.PRNGKey(0))
  assert set(alone["params"]) == set(PAIR.variables)


def test_our_network_as_target_and_draft():
  ours = t5x_model.SpeculativeEncoderDecoderModel(
      task.t5x_model(T5XModule(PAIR.module.config)), RECIPE, PAIR.draft_module, topk=0, temperature=0.0
  )
  batch = task.batch_of(sources(), L)
  decodes, _ = jax.jit(lambda p: ours.predict_batch_with_aux(p, batch))(PARAMS)
  np.testing.assert_array_equal(decodes, predict("t5x", batch)[0])


def test_effective_vocabulary():
  """A draft of fewer logits serves once both are cut to the pieces."""
  fewer = fakes.t5_pair(vocab=14, seed=3)
  build = lambda size: t5x_model.SpeculativeEncoderDecoderModel(THEIRS, RECIPE, fewer.draft_module, vocab_size=size)
  params = {"target": PAIR.variables, "draft": fewer.draft_variables}
  batch = task.batch_of(sources(), L)
  with pytest.raises(ValueError, match="the target has 16 logits and the draft 14; cut both"):
    jax.eval_shape(lambda p: build(None).predict_batch_with_aux(p, batch, decoder_params={"topk": 0}), params)
  decodes, _ = jax.jit(lambda p: build(14).predict_batch_with_aux(p, batch))(params)
  assert decodes.max() < 14


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"alpha": 0.6}, "found alpha; speculative decoding draws samples"),
        ({"logit_callback_fn": None}, "found logit_callback_fn"),
        ({"topk": 3, "topp": 0.5}, "topk, topp: expected one of them at most"),
        ({"temperature": -1.0}, "temperature: expected finite values"),
        ({"max_decode_steps": 0}, "max_decode_steps: expected at least 1, found 0"),
    ],
)
def test_bad_settings(settings, message):
  with pytest.raises(ValueError, match=message):
    OURS.predict_batch_with_aux(PARAMS, task.batch_of(sources(), L), decoder_params=settings)


def test_bad_arguments():
  key = jax.random.PRNGKey(0)
  with pytest.raises(ValueError, match="rng: expected one key, found one in `rng` and another"):
    OURS.predict_batch_with_aux(PARAMS, task.batch_of(sources(), L), key, {"decode_rng": key})
  with pytest.raises(ValueError, match="topk, topp"):
    t5x_model.SpeculativeEncoderDecoderModel(THEIRS, RECIPE, PAIR.draft_module, topp=0.5)
  with pytest.raises(ValueError, match="found object, whose configuration lacks"):
    t5x_model.network_config(object())
  scanned = type("Scanned", (), {"config": type("Config", (), {"scan_layers": True})()})()
  with pytest.raises(ValueError, match="expected unscanned layers, found scanned ones"):
    t5x_model.network_config(scanned)
