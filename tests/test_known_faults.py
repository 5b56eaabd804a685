"""Faults reported about other speculative decoders, each with the input that provokes it and the right answer.

A test is named after the library and the number of the report. Laws are exact:
the uniforms' cube is cut where NumPy says that the answer changes, and the real
functions are asked in every cell (`oracles.cells`).
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec import recipes
from specdec.acceptance import rejection
from specdec.adapters import flax_model
from specdec.data import vocabularies
from specdec.drafters.model import model_drafter
from specdec.interfaces import Draft, Law, Params, StopCode
from specdec.networks import cache as cache_lib
from specdec.networks.t5 import T5
from specdec.probability import residual
from specdec.probability import transforms
from specdec.step import speculative_step
from specdec.trees import topology
from tests import fakes
from tests import oracles

KEY = jax.random.key(3)
decide = jax.jit(rejection.decide)
LARGEST = float(np.nextafter(np.float32(1), np.float32(0)))


def log(x):
  with np.errstate(divide="ignore"):
    return np.log(np.float32(x))


def law_of_rule(drafts, p, q, told):
  """The law of what a step emits.

  Args:
    drafts: what is drafted, as {tokens: probability}.
    p: `tokens so far -> [V]`, the target.
    q: the draft's law as it is told to the rule, or None.
    told: the law that decides where NumPy cuts, `tokens so far -> [V]`.
  """
  law = {}
  for tokens, mass in drafts.items():
    ps = np.stack([p(tokens[:i]) for i in range(len(tokens) + 1)])
    qs = np.stack([told(tokens[:i]) for i in range(len(tokens))])
    volumes, points = oracles.cells(oracles.accept_edges(tokens, ps, qs), 2, np.random.default_rng(0))
    points = points.reshape(-1, len(tokens) + 1)
    batch = len(points)
    many = lambda x: jnp.broadcast_to(jnp.asarray(x), (batch, *np.shape(x)))
    draft = Draft(many(np.int32(tokens)), topology.chain(len(tokens) + 1), None if q is None else many(log(qs)))
    verdict = decide(points, draft, Law(many(log(ps)), many(log(ps))), transforms.sampling(batch, temperature=1.0))
    counts, following = np.asarray(verdict.count).reshape(-1, 2), np.asarray(verdict.next_token).reshape(-1, 2)
    assert (counts[:, 0] == counts[:, 1]).all() and (following[:, 0] == following[:, 1]).all()
    for n, y, volume in zip(counts[:, 0], following[:, 0], volumes):
      out = (*tokens[:n], int(y))
      law[out] = law.get(out, 0.0) + mass * volume
  return law


def first_token(law, vocab):
  found = np.zeros(vocab)
  for tokens, mass in law.items():
    found[tokens[0]] += mass
  return found


def verdict_of(p, q, token, uniforms, temperature=1.0):
  """`decide` for one row and one drafted token; `p` is the law before and after it."""
  draft = Draft(jnp.array([[token]]), topology.chain(2), jnp.asarray(log([[q]])))
  law = Law(jnp.asarray(log([[p, p]])), jnp.asarray(log([[p, p]])))
  verdict = decide(jnp.array([uniforms], jnp.float32), draft, law, transforms.sampling(1, temperature=temperature))
  return int(verdict.count[0]), int(verdict.next_token[0])


# --- Distribution ----------------------------------------------------------------


def test_transformers_32867_q_is_what_was_drawn_from():
  p, q = np.array([0.6, 0.4]), np.array([0.8, 0.2])
  point = np.array([1.0, 0.0])  # The draft is drawn by argmax: token 0, with certainty.
  right = law_of_rule({(0,): 1.0}, lambda t: p, None, lambda t: point)
  np.testing.assert_allclose(first_token(right, 2), p, atol=1e-6)
  wrong = law_of_rule({(0,): 1.0}, lambda t: p, "q", lambda t: q)  # The fault: argmax told as if drawn from q.
  np.testing.assert_allclose(first_token(wrong, 2), [0.75, 0.25], atol=1e-6)


def test_transformers_28508_the_residual_after_a_rejection():
  p, q = [0.5, 0.5, 0, 0], [0.9, 0.1, 0, 0]
  for u in np.linspace(0, LARGEST, 20):
    assert verdict_of(p, q, 0, [0.99, u]) == (0, 1)
  law = law_of_rule({(0,): 0.9, (1,): 0.1}, lambda t: np.array(p), "q", lambda t: np.array(q))
  np.testing.assert_allclose(first_token(law, 4), p, atol=1e-6)


def test_jaymody_5_an_empty_residual_is_the_target():
  p = np.float32([0.0, 0.25, 0.75])
  np.testing.assert_array_equal(residual.residual_mass(p, p), p)
  # A rejection forced by a q that is rounded up everywhere: the correction follows p, and is not token 0.
  found = [verdict_of(p, p * np.float32(1.01), 1, [LARGEST, u]) for u in (0.0, 0.2, 0.3, LARGEST)]
  assert found == [(0, 1), (0, 1), (0, 2), (0, 2)]


def test_jaymody_9_greedy_is_the_argmax_always():
  target, draft = fakes.same_tables(log([0.3, 0.5, 0.2, 0])), fakes.same_tables(log([0.4, 0.35, 0.25, 0]))
  out = fakes.table_run(target, draft, eos=-1)
  assert (out.tokens == 1).all() and (out.lengths == fakes.TABLE_CAP).all()
  assert (fakes.table_run(target, draft, eos=-1, key=1, temperature=[0.0, 1.0] * 32).tokens[::2] == 1).all()


def test_sglang_35771_a_uniform_of_zero_accepts_nothing_impossible():
  assert verdict_of([0.0, 1.0], [1.0, 0.0], 0, [0.0, 0.0]) == (0, 1)
  assert verdict_of([0.0, 1.0], [0.5, 0.5], 0, [0.0, LARGEST]) == (0, 1)


def test_vllm_ascend_7807_both_tokens_of_a_block_jointly():
  """First ratio p/q .5, second 2.0: the token rule's joint law is the target's, and it accepts 1 token in the mean."""
  p = {(): [0.4, 0.6], (0,): [0.8, 0.2], (1,): [0.5, 0.5]}
  q = {(): [0.8, 0.2], (0,): [0.4, 0.6], (1,): [0.5, 0.5]}
  target = lambda t: np.array(p.get(t, [0.5, 0.5]))
  draft = lambda t: np.array(q[t])
  drafts = {(a, b): q[()][a] * q[(a,)][b] for a, b in itertools.product(range(2), repeat=2)}
  found = oracles.continued(law_of_rule(drafts, target, "q", draft), target, 2)
  for a, b in drafts:
    np.testing.assert_allclose(found[(a, b)], p[()][a] * p[(a,)][b], atol=1e-6)


def test_automodel_3627_temperature_near_zero():
  """T in {0, 1e-9, 1e-6, 1e-4}, logits up to 1e4 in bfloat16: the argmax, in plain and speculative decoding."""
  generator = np.random.default_rng(0)
  scale = 10.0 ** (np.arange(fakes.TABLES) % 7 - 2)
  target, draft = (
      np.asarray(jnp.asarray(generator.normal(size=(fakes.TABLES, fakes.ENTRIES, 4)) * s, jnp.bfloat16), np.float32)
      for s in (scale[:, None, None], 1.0)
  )
  temperature = np.resize([0.0, 1e-9, 1e-6, 1e-4, 1.0], fakes.TABLE_ROWS)
  outs = [fakes.table_run(target, draft, gamma, -1, temperature=temperature) for gamma in (3, 0)]
  for row in np.flatnonzero(temperature < 1):
    expected = fakes.greedy_walk(target[row % fakes.TABLES], fakes.TABLE_CAP, -1)
    for out in outs:
      assert tuple(out.tokens[row].tolist()) == expected and out.stop[row] == StopCode.LENGTH
  logits = jnp.array([[[-1e4, 1e4, 9.9e3, 1e4]]], jnp.bfloat16)
  settings = transforms.sampling(1, temperature=1e-6)
  processed = transforms.process(logits, settings, transforms.Prefix(jnp.zeros((1, 1), jnp.int32)), fakes.EOS)
  law = transforms.to_law(processed, settings)
  assert np.exp(law).tolist() == [[[0, 1, 0, 0]]]


@pytest.mark.parametrize("top_p,kept", [(0.0, [0, 1, 2]), (0.5, [0]), (0.75, [0, 1, 2])])
def test_transformers_19839_and_18976_edges_of_top_p(top_p, kept):
  """Off at 0; the smallest set of at least that mass; ties with its last member stay."""
  law = transforms.to_law(jnp.asarray(log([[[0.5, 0.25, 0.25]]])), transforms.sampling(1, temperature=1.0, top_p=top_p))
  assert np.flatnonzero(np.exp(law)).tolist() == kept


def test_order_of_transforms_is_one_for_plain_and_speculative_decoding():
  """T = 2 with top-p .8: temperature comes first, which keeps 2 tokens here; top-p first would keep 1."""
  logits = log([0.85, 0.1, 0.04, 0.01])
  expected = oracles.numpy_law(logits, 2.0, 0, 0.8)
  assert (expected > 0).sum() == 2 and oracles.numpy_keep(logits, top_p=0.8).sum() == 1
  for gamma in (3, 0):
    out = fakes.table_run(fakes.same_tables(logits), gamma=gamma, eos=-1, temperature=2.0, top_p=0.8)
    share = np.bincount(np.asarray(out.tokens).ravel(), minlength=4) / out.tokens.size
    assert ((share > 0) == (expected > 0)).all()
    # Five standard errors: a false alarm in 2 million for each of the tokens.
    assert (np.abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / out.tokens.size) + 1e-12).all()


# --- Length and end --------------------------------------------------------------


def test_transformers_47912_and_vllm_56101_eos_in_the_middle_of_a_block():
  """Decode greedily, then declare a token that this produced to be EOS: the output and the counts stop there."""
  target, draft = fakes.noisy_tables(8, noise=0.7)
  cap, eos = fakes.TABLE_CAP, fakes.EOS
  free = fakes.table_run(target, draft, eos=-1)
  out = fakes.table_run(target, draft, eos=eos)
  inside_a_draft = 0
  for row in range(fakes.TABLES):
    whole = np.asarray(free.tokens[row]).tolist()
    if eos not in whole:
      assert out.stop[row] == StopCode.LENGTH
      continue
    end = whole.index(eos) + 1
    assert out.stop[row] == StopCode.EOS and out.lengths[row] == end == out.statistics.committed[row]
    assert out.tokens[row].tolist() == whole[:end] + [0] * (cap - end)
    last = int(out.statistics.steps[row]) - 1
    inside_a_draft += int(free.trace.committed[row, last]) > int(out.trace.committed[row, last])
    assert out.statistics.accepted[row] == out.trace.accepted[row].sum() <= end
  assert inside_a_draft > 3


@pytest.mark.parametrize("gamma", [3, 5, 10])
def test_transformers_46993_exact_length(gamma):
  """1, 2 and 3 new tokens with blocks that are as long or longer."""
  limit = np.resize([1, 2, 3], fakes.TABLE_ROWS)
  out = fakes.table_run(fakes.noisy_tables(11)[0], gamma=gamma, eos=-1, limit=limit)
  np.testing.assert_array_equal(out.lengths, limit)
  np.testing.assert_array_equal(out.statistics.committed, limit)
  assert (out.statistics.steps == 1).all()
  assert (np.asarray(out.tokens)[np.arange(fakes.TABLE_CAP) >= limit[:, None]] == 0).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lattice_509_full_acceptance_commits_gamma_and_one(temperature):
  one_hot = np.full((fakes.TABLES, fakes.ENTRIES, 4), -np.inf, np.float32)
  one_hot[:, np.arange(fakes.ENTRIES), np.arange(fakes.ENTRIES) % 4] = 0
  out = fakes.table_run(one_hot, eos=-1, temperature=temperature)
  assert (out.trace.committed[:, :3] == 4).all() and (out.statistics.steps == 3).all()


# --- Caches ----------------------------------------------------------------------


@pytest.mark.parametrize("gamma", range(1, 9))
def test_vllm_9730_the_draft_s_cache_is_complete_after_full_acceptance(gamma):
  """Draft = target, greedy and at T = 1: every step commits gamma + 1 tokens until the cap."""
  pair, cap = fakes.standard_pair(), 20
  equal = pair._replace(target=pair.draft, target_params=pair.draft_params)
  step = fakes.simple_step(equal, gamma)
  prompt = fakes.prompts(4, 0, 5, prefix=((0, 6),), prefix_length=[1, 2, 1, 2])
  prompt = prompt._replace(tokens=jnp.asarray(fakes.encoder_rows(4, 5, 16)))
  limit = jnp.array([20, 20, 20, 13], jnp.int32)
  sampling = fakes.settings(4, temperature=[0.0, 1.0, 1.0, 0.0])
  params = Params(pair.draft_params, pair.draft_params)
  # Eight programs that run once each: compiled without optimisation, in half the time.
  lowered = loop.generate.lower(step, KEY, params, prompt, sampling, cap, limit, trace=True)
  program = lowered.compile(compiler_options={"xla_backend_optimization_level": 0})
  out = program(KEY, params, prompt, sampling, limit)
  np.testing.assert_array_equal(out.lengths, limit)
  for row in range(4):
    steps = -(-int(limit[row]) // (gamma + 1))
    expected = [gamma + 1] * (steps - 1) + [int(limit[row]) - (gamma + 1) * (steps - 1)]
    assert out.statistics.steps[row] == steps
    assert out.trace.committed[row, :steps].tolist() == expected
  np.testing.assert_allclose(out.statistics.acceptance, out.statistics.visited, rtol=1e-4)

def test_mlxcel_994_a_rejection_at_each_position_trims_exactly():
  """Row b accepts b of 4; what the caches say of the prefix afterwards is what they say from scratch."""
  gamma, batch, vocab, entries = 4, 5, 4, 997
  model = fakes.table_model()
  transform = recipes.sampling_transform(-1)
  tables = fakes.table_params(*(t[0] for t in fakes.random_tables(2, vocab, 5)))
  tables = Params(jnp.resize(tables.target, (1, entries, vocab)), jnp.resize(tables.draft, (1, entries, vocab)))
  rule = fakes.accept_counts(np.arange(batch, dtype=np.int32))
  step = speculative_step(model, model_drafter(model, gamma, transform), rule, transform, -1)
  init = jax.jit(step.init, static_argnums=4)
  state = init(tables, fakes.prompts(batch), fakes.settings(batch, temperature=1.0), jnp.full((batch,), 20), 20)
  run = jax.jit(step.step)
  for i in range(3):
    state, info = run(jax.random.split(jax.random.key(i), batch), tables, state)
    np.testing.assert_array_equal(info.accepted, np.arange(batch))
    np.testing.assert_array_equal(state.target.length, state.length - 1)
    np.testing.assert_array_equal(state.draft.model.length, state.length - 1 - (np.arange(batch) == gamma))
    for row in range(batch):
      tokens = np.asarray(state.tokens[row, 1 : int(state.length[row])]).tolist()
      numbers = [fakes.prefix_number(tokens[:n], vocab, entries) for n in range(len(tokens))]
      assert state.target.numbers[row, : len(numbers)].tolist() == numbers
      held = int(state.draft.model.length[row])
      assert state.draft.model.numbers[row, :held].tolist() == numbers[:held]


def test_t5x_a_cache_is_overwritten_and_not_added_to():
  """Rewinding the index of T5X's cache corrupts it. Here forgotten slots may hold NaN."""
  buffer = jnp.full((2, 1, 6, 2), jnp.nan)
  written = cache_lib.write(buffer, jnp.ones((2, 1, 2, 2)), jnp.array([1, 3]))
  assert (written[0, :, 1:3] == 1).all() and (written[1, :, 3:5] == 1).all()
  prompt = fakes.row_of(fakes.standard_prompt(1), 0)
  clean = fakes.standard_run(prompt, KEY, temperature=1.0)
  out = fakes.standard_run(prompt, KEY, fakes.poisoned_step(), temperature=1.0)
  np.testing.assert_array_equal(out.tokens, clean.tokens)


def test_transformers_31166_cross_attention_is_not_cut_by_a_rollback():
  """Encoder length 40, rejections at decoder position 3: later tokens still see all 40."""
  pair, params = fakes.standard_pair(), fakes.standard_params()
  encoder = jnp.asarray(fakes.encoder_rows(2, 40, 16, seed=2))
  prompt = fakes.prompts(2, 0, 40)._replace(tokens=encoder)
  step = fakes.simple_step(pair, 3, fakes.accept_counts(np.array([1, 2], np.int32)))

  @jax.jit
  def run(key, params, prompt):
    state = step.init(params, prompt, fakes.settings(2), jnp.full((2,), 30, jnp.int32), 16)
    for i in range(2):
      state, _ = step.step(jax.random.split(jax.random.fold_in(key, i), 2), params, state)
    return state, pair.target.score(params.target, state.target, state.last_token, topology.chain(1))[0].logits[:, 0]

  state, found = run(KEY, params, prompt)
  assert state.target.cross_keys[0].shape[2] == 40 and state.target.cross_bias.shape[-1] == 40
  assert state.length.tolist() == [5, 7]
  forced = jax.jit(pair.module.apply)({"params": pair.variables}, encoder, state.tokens)
  for row in range(2):
    np.testing.assert_allclose(found[row], forced[row, state.length[row] - 1], atol=2e-4)


def test_vllm_17560_tree_nodes_see_their_ancestors_only():
  pair = fakes.standard_pair()
  tree = topology.from_parents([-1, 0, 0, 1, 2])
  score = jax.jit(lambda params, state, tokens: pair.target.score(params, state, tokens, tree)[0].logits)
  prompt = fakes.prompts(1, 3, 4)
  state = pair.target.init(pair.target_params, prompt, 8)
  found = score(pair.target_params, state, jnp.array([[0, 5, 9, 4, 6]]))
  swapped = score(pair.target_params, state, jnp.array([[0, 5, 8, 4, 7]]))  # Only the second branch changes.
  np.testing.assert_array_equal(found[:, [0, 1, 3]], swapped[:, [0, 1, 3]])
  assert (np.abs(np.asarray(found - swapped))[:, [2, 4]].max(-1) > 1e-3).all()


# --- Encoder-decoder -------------------------------------------------------------


def test_transformers_36293_padding_of_the_encoder_is_not_seen():
  row = fakes.encoder_rows(1, 4, 16, seed=1)[0]
  tokens, mask = np.zeros((8, 8), np.int32), np.zeros((8, 8), bool)
  for i in range(8):
    start = i % 5
    tokens[i, start : start + 4], mask[i, start : start + 4] = row, True
  prompt = fakes.standard_prompt()._replace(tokens=jnp.asarray(tokens), mask=jnp.asarray(mask))
  keys = jnp.broadcast_to(KEY, (8,))
  out = fakes.standard_run(prompt, keys, temperature=1.0)
  np.testing.assert_array_equal(out.tokens, np.broadcast_to(out.tokens[:1], out.tokens.shape))
  unmasked = fakes.standard_run(prompt._replace(mask=jnp.ones((8, 8), bool)), keys, temperature=1.0)
  assert (unmasked.tokens != out.tokens).any()


def test_candle_899_relative_positions_know_the_offset_of_the_cache():
  """Blocks that begin at offsets 0, 7, 127, 128, 200 (T5's maximum distance is 128) decode as single passes would."""
  pair, cap = fakes.standard_pair(), 5
  offsets = np.array([0, 7, 127, 128, 200])
  prefix = np.random.default_rng(5).integers(2, 16, (5, 201)).astype(np.int32)
  prefix[:, 0] = 0
  encoder = jnp.asarray(fakes.encoder_rows(5, 4, 16))
  prompt = fakes.prompts(5, 0, 4, prefix, offsets + 1)._replace(tokens=encoder)
  out = loop.generate(fakes.simple_step(pair, 3), KEY, fakes.standard_params(), prompt, fakes.settings(5), cap)
  tokens = np.zeros((5, 206), np.int32)
  for row in range(5):
    tokens[row, : offsets[row] + 1] = prefix[row, : offsets[row] + 1]
    tokens[row, offsets[row] + 1 : offsets[row] + 1 + cap] = out.tokens[row]
  forced = np.asarray(jax.jit(pair.module.apply)({"params": pair.variables}, encoder, jnp.asarray(tokens)))
  for row in range(5):
    for i in range(cap):
      assert out.tokens[row, i] == np.argmax(forced[row, offsets[row] + i]), (offsets[row], i)
  chosen = np.stack([forced[row, o : o + cap] for row, o in enumerate(offsets)])
  log_prob = (chosen.max(-1) - np.log(np.exp(chosen).sum(-1))).sum(-1)
  np.testing.assert_allclose(out.statistics.log_prob, log_prob, atol=1e-3)


def test_transformers_26701_the_encoder_runs_once():
  """Counted as the program is traced; the program's own loop is looked at in `test_loop.py`."""
  calls = []

  class Counting(T5):
    def encode(self, *arguments, **named):
      calls.append(self.config.num_decoder_layers)
      return super().encode(*arguments, **named)

  pair = fakes.standard_pair()
  models = [flax_model.t5_model(Counting(module.config)) for module in (pair.module, pair.draft_module)]
  step = recipes.leviathan(*models, 3)
  loop.generate.trace(step, KEY, fakes.standard_params(), fakes.standard_prompt(), fakes.settings(8), 20)
  assert sorted(calls) == [1, 2]


def test_trax_556_an_eos_that_is_second_best_does_not_end_a_greedy_output():
  """T5X's beam search of one beam keeps it as a finished output; T5X's greedy does not, and greedy is what we do."""
  logits = fakes.same_tables([1.0, 1.9, 2.0, 0.0])  # EOS is 1.
  for gamma in (3, 0):
    out = fakes.table_run(logits, gamma=gamma)
    assert (out.tokens == 2).all() and (out.stop == StopCode.LENGTH).all()


# --- Vocabulary ------------------------------------------------------------------


def spoiled(variables, pieces):
  """The outputs beyond `pieces` made the largest: one of two opposite columns is, wherever the state points."""
  kernel = np.array(variables["decoder"]["logits_dense"]["kernel"])
  kernel[:, pieces] = 50 * np.random.default_rng(0).normal(size=len(kernel))
  kernel[:, pieces + 1] = -kernel[:, pieces]
  decoder = {**variables["decoder"], "logits_dense": {"kernel": kernel}}
  return {**variables, "decoder": decoder}


def test_transformers_4875_and_45307_ids_beyond_the_vocabulary_are_never_emitted():
  """Padded ids set to the maximum in the draft, in the target, in both."""
  pair, pieces, batch = fakes.standard_pair(), 13, 4
  bad_target, bad_draft = spoiled(pair.variables, pieces), spoiled(pair.draft_variables, pieces)
  encoder = jnp.asarray(fakes.encoder_rows(batch, 4, pieces))
  forced = pair.module.apply({"params": bad_target}, encoder, jnp.zeros((batch, 1), jnp.int32))
  assert (np.argmax(forced, -1) >= pieces).all()  # Without the cut they would be emitted.
  cut = pair._replace(
      target=flax_model.t5_model(pair.module, pieces), draft=flax_model.t5_model(pair.draft_module, pieces)
  )
  step = fakes.simple_step(cut, 2)
  prompt = fakes.prompts(batch, 0, 4)._replace(tokens=encoder)
  sampling = fakes.settings(batch, temperature=[0.0, 1.0, 2.0, 100.0])
  prepared = lambda bad, good, is_bad, module: flax_model.prepare(module, bad if is_bad else good)
  outs = []
  for in_target, in_draft in ((False, False), (True, False), (False, True), (True, True)):
    params = Params(
        prepared(bad_target, pair.variables, in_target, pair.module),
        prepared(bad_draft, pair.draft_variables, in_draft, pair.draft_module),
    )
    outs.append(loop.generate(step, KEY, params, prompt, sampling, 10))
    assert (outs[-1].tokens < pieces).all() and (outs[-1].lengths == 10).all()
  for out in outs[1:]:  # The cut columns have no influence at all.
    jax.tree.map(np.testing.assert_array_equal, out, outs[0])


def test_a_target_of_32128_logits_and_a_draft_of_32100():
  """In small: 16 and 13 logits of 13 pieces."""
  pair, pieces = fakes.standard_pair(), 13
  module = T5(dataclasses.replace(pair.draft_module.config, vocab_size=pieces))
  variables = fakes.t5_variables(module, 1)
  cut = pair._replace(target=flax_model.t5_model(pair.module, pieces), draft=flax_model.t5_model(module, pieces))
  step = fakes.simple_step(cut, 1)
  params = Params(pair.target_params, flax_model.prepare(module, variables))
  prompt = fakes.prompts(2, 3, 4)
  out = loop.generate(step, KEY, params, prompt, fakes.settings(2, temperature=[0.0, 1.0]), 6)
  tokens = np.concatenate([[[0]], out.tokens[:1]], axis=1)
  forced = jax.jit(pair.module.apply)({"params": pair.variables}, prompt.tokens[:1], jnp.asarray(tokens))
  assert np.argmax(forced[0, :-1, :pieces], -1).tolist() == out.tokens[0].tolist()
  assert (out.tokens < pieces).all()
  with pytest.raises(ValueError, match="14 pieces.*13 logits"):
    flax_model.t5_model(module, 14)


def test_llama_cpp_3812_different_vocabularies_are_an_error_that_names_the_piece():
  class Pieces:
    def __init__(self, *pieces):
      self._pieces = list(pieces)

    def pieces(self):
      return self._pieces

  one = Pieces("<pad>", "</s>", "a", "b")
  vocabularies.check_same(one, Pieces("<pad>", "</s>", "a", "b"))
  with pytest.raises(ValueError, match="piece 2 .*'a'.*'c'"):
    vocabularies.check_same(one, Pieces("<pad>", "</s>", "c", "b"))
  with pytest.raises(ValueError, match="first that only one has is 3, 'b'"):
    vocabularies.check_same(one, Pieces("<pad>", "</s>", "a"))
  # Where only the models are known: logits of two widths.
  params = Params(jnp.zeros((1, 21, 4)), jnp.zeros((1, 21, 3)))
  with pytest.raises(ValueError, match="target has 4 logits and the draft 3"):
    loop.generate(fakes.table_step(2), KEY, params, fakes.prompts(2), fakes.settings(2), 3)


# --- Users -----------------------------------------------------------------------


def test_spec_bench_29_baseline_and_method_count_tokens_alike():
  ours, plain = (fakes.table_run(*fakes.noisy_tables(6), gamma).statistics for gamma in (3, 0))
  np.testing.assert_array_equal(ours.committed, plain.committed)
  np.testing.assert_array_equal(plain.steps, plain.committed)
  np.testing.assert_allclose(ours.log_prob, plain.log_prob, atol=1e-4)


def test_vllm_6038_the_same_call_gives_the_same_tokens():
  prompt = fakes.standard_prompt(2)
  one, again = (fakes.standard_run(prompt, KEY, temperature=1.0) for _ in range(2))
  jax.tree.map(np.testing.assert_array_equal, one, again)
  order = np.arange(8)[::-1]
  keys = loop.row_keys(KEY, 8)
  other = fakes.standard_run(jax.tree.map(lambda x: x[order], prompt), keys[order], temperature=1.0)
  np.testing.assert_array_equal(other.tokens, one.tokens[order])
