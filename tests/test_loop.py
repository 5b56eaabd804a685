"""`loop.generate`: lengths, stop codes, statistics, keys, compilations, and what its program holds.

The models are tables, so the right tokens are known: outputs are compared with
a walk in NumPy, statistics with a second count of the trace. The compiled
program is looked at through its jaxpr.
"""

import functools

import jax
from jax.extend import core
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec.interfaces import StopCode
from tests import fakes

V = 4
ENTRIES = 997  # Prefixes share entries; the logits stay a function of the prefix.
FAR = -1  # An EOS that no model emits.


@pytest.fixture(scope="module")
def tables():
  """A target and a draft of 16 tables."""
  generator = np.random.default_rng(11)
  target = generator.normal(size=(16, ENTRIES, V)) * 1.5
  return np.float32(target), np.float32(target + generator.normal(size=target.shape))


def greedy_walk(table, cap, eos=fakes.EOS, prefix=(), **setting):
  """The plain greedy output in NumPy."""
  out = []
  while len(out) < cap and (not out or out[-1] != eos):
    entry = table[fakes.prefix_number([*prefix, *out], V, len(table))]
    out.append(int(np.argmax(fakes.numpy_process(entry, [0, *prefix, *out], len(out), eos, **setting))))
  return tuple(out)


# --- Statistics ------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [3, 0])
def test_statistics_are_a_second_count_of_the_trace(tables, gamma):
  target, draft = tables
  batch, cap = 64, 12
  rows = np.arange(batch) % 16
  limit = jnp.asarray(np.resize([12, 5, 7, 1, 0, 30, 2, 3, 12], batch), jnp.int32)
  temperature = np.resize([1.0, 0.0, 2.0], batch)
  step = fakes.table_step(gamma)
  key = jax.random.key(1)
  out = loop.generate(
      step, key, fakes.table_params(target, draft), fakes.prompts(batch, rows),
      fakes.settings(batch, temperature=temperature), cap, limit, trace=True,
  )  # fmt: skip
  out = jax.tree.map(np.asarray, out)
  statistics, trace = out.statistics, out.trace
  stops = set()
  for row in range(batch):
    steps = int(statistics.steps[row])
    n = int(out.lengths[row])
    tokens = out.tokens[row, :n].tolist()
    assert (out.tokens[row, n:] == 0).all()
    # The trace, put together, is the output; nothing stands after it.
    committed, accepted = trace.committed[row], trace.accepted[row]
    assert sum((trace.tokens[row, i, : committed[i]].tolist() for i in range(steps)), []) == tokens
    assert not committed[steps:].any() and not accepted[steps:].any() and not trace.tokens[row, steps:].any()
    assert (committed[:steps] >= 1).all()
    # Identities.
    with_next = committed[:steps] > accepted[:steps]
    assert statistics.committed[row] == committed.sum() == n
    assert statistics.accepted[row] == accepted.sum()
    assert statistics.accepted[row] + with_next.sum() == n
    assert statistics.accepted[row] + steps - n == int(steps > 0 and not with_next[-1])
    assert with_next[:-1].all()
    assert statistics.drafted[row] == gamma * steps
    assert statistics.histogram[row].sum() == steps
    assert (statistics.histogram[row] * np.arange(gamma + 1)).sum() == accepted.sum()
    # Places whose prefix was committed, and the acceptance probability there, from the tables.
    visited, beta = np.zeros(gamma), np.zeros(gamma)
    one = dict(temperature=temperature[row])
    p, q = (fakes.table_law(table[rows[row]], **one) for table in (target, draft))
    done = 0
    for i in range(steps):
      for place in range(gamma):
        ended_inside = committed[i] == accepted[i]
        if place < accepted[i] or (place == accepted[i] and not ended_inside):
          before = tuple(tokens[: done + place])
          visited[place] += 1
          beta[place] += np.minimum(p(before), q(before)).sum()
      done += committed[i]
    np.testing.assert_array_equal(statistics.visited[row], visited)
    np.testing.assert_allclose(statistics.acceptance[row], beta, atol=1e-5)
    # Log-probability at temperature 1.
    plain = fakes.table_law(target[rows[row]])
    expected = sum(np.log(plain(tuple(tokens[:i]))[token]) for i, token in enumerate(tokens))
    np.testing.assert_allclose(statistics.log_prob[row], expected, atol=1e-4)
    # Why it ended.
    room = min(int(limit[row]), cap)
    stop = StopCode.EOS if tokens and tokens[-1] == fakes.EOS else StopCode.LENGTH
    assert out.stop[row] == stop and (n == room or stop == StopCode.EOS) and n <= room
    assert fakes.EOS not in tokens[:-1]
    stops.add(int(stop))
  assert stops == {StopCode.EOS, StopCode.LENGTH}


def test_a_run_without_trace_is_the_same(tables):
  arguments = (
      fakes.table_step(3), jax.random.key(1), fakes.table_params(*tables), fakes.prompts(64, np.arange(64) % 16),
      fakes.settings(64, temperature=1.0), 12, jnp.full((64,), 12, jnp.int32),
  )  # fmt: skip
  one, other = loop.generate(*arguments), loop.generate(*arguments, trace=True)
  assert one.trace is None
  jax.tree.map(np.testing.assert_array_equal, one, other._replace(trace=None))


# --- Lengths ---------------------------------------------------------------------


@pytest.mark.parametrize("gamma,cap", [(3, 3), (5, 3), (10, 3), (10, 1), (3, 1), (5, 2)])
def test_a_block_longer_than_the_output_is_cut(tables, gamma, cap):
  """Draft and target are equal, so that every block is accepted whole."""
  target, _ = tables
  batch = 16
  limit = np.resize([cap, 1, cap + 5, 0, 2, 3, -2], batch)
  params = fakes.table_params(target)
  out = loop.generate(
      fakes.table_step(gamma, FAR), jax.random.key(0), params, fakes.prompts(batch, np.arange(batch)),
      fakes.settings(batch, temperature=0.0), cap, jnp.asarray(limit, jnp.int32),
  )  # fmt: skip
  for row, tokens in enumerate(fakes.outputs(out.tokens, out.lengths)):
    assert tokens == greedy_walk(target[row], min(limit[row], cap), FAR), row
  assert out.tokens.shape == (batch, cap)
  assert (out.stop == StopCode.LENGTH).all() and (out.statistics.steps == (limit > 0)).all()
  np.testing.assert_array_equal(out.statistics.committed, np.clip(limit, 0, cap))


def test_eos_at_every_place_of_a_block():
  """Row k's greedy output is k tokens and then EOS; gamma is 3, so k runs through two blocks and more."""
  rows, cap = 12, 14
  target = np.zeros((rows, fakes.heap_size(2, cap), 2), np.float32)
  for row in range(rows):
    target[row, :, 0] = 1  # Token 0, an ordinary one, until …
    target[row, fakes.prefix_number([0] * row, 2, target.shape[1]), 1] = 2  # … EOS after `row` of them.
  out = loop.generate(
      fakes.table_step(3), jax.random.key(0), fakes.table_params(target), fakes.prompts(rows, np.arange(rows)),
      fakes.settings(rows, temperature=0.0), cap, jnp.full((rows,), cap, jnp.int32),
  )  # fmt: skip
  assert fakes.outputs(out.tokens, out.lengths) == [(0,) * row + (1,) for row in range(rows)]
  assert (out.stop == StopCode.EOS).all() and (out.tokens.sum(1) == 1).all()
  np.testing.assert_array_equal(out.statistics.committed, np.arange(rows) + 1)
  np.testing.assert_array_equal(out.statistics.steps, np.arange(rows) // 4 + 1)
  # The EOS of a row was drafted, and counts as accepted, unless it is a step's last token.
  np.testing.assert_array_equal(out.statistics.accepted, [k + 1 - (k + 1) // 4 for k in range(rows)])


def test_prefixes_of_mixed_lengths(tables):
  target, draft = tables
  batch, width, cap = 16, 4, 9
  generator = np.random.default_rng(2)
  prefix = np.concatenate([np.zeros((batch, 1)), generator.integers(0, V, (batch, width - 1))], 1).astype(np.int32)
  length = np.resize([1, 2, 3, 4], batch)
  for gamma in (3, 0):
    out = loop.generate(
        fakes.table_step(gamma), jax.random.key(0), fakes.table_params(target, draft),
        fakes.prompts(batch, np.arange(batch), 1, prefix, length), fakes.settings(batch, temperature=0.0), cap,
    )  # fmt: skip
    for row, tokens in enumerate(fakes.outputs(out.tokens, out.lengths)):
      assert tokens == greedy_walk(target[row], cap, prefix=prefix[row, 1 : length[row]].tolist()), (gamma, row)


def test_penalties_and_bans_are_pure_functions_of_the_prefix(tables):
  """Greedy speculation = greedy plain = a walk in NumPy, with all of them on and different in each row."""
  target, draft = tables
  batch, cap = 32, 10
  generator = np.random.default_rng(4)
  setting = dict(
      min_length=generator.integers(0, 8, batch), repetition_penalty=generator.choice([0.7, 1.0, 1.3, 3.0], batch),
      banned=generator.random((batch, V)) < 0.2,
  )  # fmt: skip
  setting["banned"][setting["banned"].all(1)] = False
  setting["banned"][:, 2] = False
  prefix = np.stack([np.zeros(batch), generator.integers(0, V, batch)], 1).astype(np.int32)
  prompt = fakes.prompts(batch, np.arange(batch) % 16, 1, prefix)
  runs = [
      loop.generate(
          fakes.table_step(gamma), jax.random.key(0), fakes.table_params(target, draft), prompt,
          fakes.settings(batch, temperature=0.0, **setting), cap,
      )
      for gamma in (3, 0)
  ]  # fmt: skip
  changed = 0
  for row, tokens in enumerate(fakes.outputs(runs[0].tokens, runs[0].lengths)):
    one = dict(
        min_length=setting["min_length"][row], penalty=setting["repetition_penalty"][row],
        banned=np.flatnonzero(setting["banned"][row]),
    )  # fmt: skip
    assert tokens == greedy_walk(target[row % 16], cap, prefix=prefix[row, 1:].tolist(), **one), row
    changed += tokens != greedy_walk(target[row % 16], cap, prefix=prefix[row, 1:].tolist())
  np.testing.assert_array_equal(runs[0].tokens, runs[1].tokens)
  np.testing.assert_array_equal(runs[0].stop, runs[1].stop)
  np.testing.assert_allclose(runs[0].statistics.log_prob, runs[1].statistics.log_prob, atol=1e-4)
  assert changed > batch // 4


# --- Numbers that are none -------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [3, 0])
def test_a_target_that_is_not_finite_stops_its_row_only(tables, gamma, temperature):
  target, draft = tables
  batch, cap = 16, 12
  arguments = (fakes.prompts(batch, np.arange(batch)), fakes.settings(batch, temperature=temperature), cap)
  key, step = jax.random.key(5), fakes.table_step(gamma, FAR)
  clean = loop.generate(step, key, fakes.table_params(target, draft), *arguments)
  broken = target.copy()
  places = {3: 0, 7: 1, 8: 2, 9: 5, 12: 7}  # The row, and after how many of its tokens the law breaks.
  bad = {3: np.nan, 7: np.inf, 8: np.nan, 9: -np.inf, 12: np.nan}
  for row, place in places.items():
    number = fakes.prefix_number(np.asarray(clean.tokens[row, :place]).tolist(), V, ENTRIES)
    broken[row, number] = -np.inf if bad[row] == -np.inf else broken[row, number]
    broken[row, number, 2] = bad[row]
  out = loop.generate(step, key, fakes.table_params(broken, draft), *arguments)
  for row in range(batch):
    if row in places:
      assert out.stop[row] == StopCode.NOT_FINITE and out.lengths[row] <= places[row]
      if temperature == 0 or gamma == 0:
        assert out.lengths[row] == places[row]
    else:
      assert out.stop[row] == StopCode.LENGTH
    n = int(out.lengths[row])
    np.testing.assert_array_equal(out.tokens[row, :n], clean.tokens[row, :n])
    assert np.isfinite(out.statistics.log_prob[row]) and np.isfinite(out.statistics.acceptance[row]).all()
  assert (out.statistics.committed == out.lengths).all()


def test_a_draft_that_is_not_finite_changes_nothing(tables):
  target, draft = tables
  batch, cap = 16, 12
  arguments = (fakes.prompts(batch, np.arange(batch)), fakes.settings(batch, temperature=0.0), cap)
  plain = loop.generate(fakes.table_step(0), jax.random.key(5), fakes.table_params(target), *arguments)
  for bad in (np.nan, np.inf, -np.inf):
    broken = np.full_like(draft, bad)
    out = loop.generate(fakes.table_step(3), jax.random.key(5), fakes.table_params(target, broken), *arguments)
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_array_equal(out.stop, plain.stop)
    assert not out.statistics.accepted.any() and (out.statistics.steps == out.lengths).all()


# --- Keys ------------------------------------------------------------------------


def test_the_same_key_gives_the_same_tokens_and_another_one_others(tables):
  arguments = (fakes.table_params(*tables), fakes.prompts(64, 0), fakes.settings(64, temperature=1.0), 12)
  step = fakes.table_step(3, FAR)
  one, again, other = (loop.generate(step, jax.random.key(seed), *arguments) for seed in (0, 0, 1))
  jax.tree.map(np.testing.assert_array_equal, one, again)
  assert (one.tokens != other.tokens).any(axis=1).sum() > 56
  assert len({tuple(row) for row in np.asarray(one.tokens).tolist()}) > 56  # Rows have their own randomness.
  keys = loop.row_keys(jax.random.key(0), 64)
  jax.tree.map(np.testing.assert_array_equal, one, loop.generate(step, keys, *arguments))
  order = np.random.default_rng(0).permutation(64)
  shuffled = loop.generate(step, keys[order], *arguments)
  np.testing.assert_array_equal(shuffled.tokens, one.tokens[order])


# --- At the door -----------------------------------------------------------------


def test_errors_say_what_was_expected(tables):
  params, step = fakes.table_params(*tables), fakes.table_step(3)
  run = lambda prompt, batch, cap: loop.generate(step, jax.random.key(0), params, prompt, fakes.settings(batch), cap)
  with pytest.raises(ValueError, match="max_new_tokens.*at least 1.*found 0"):
    run(fakes.prompts(2), 2, 0)
  with pytest.raises(ValueError, match="temperature.*expected 2 rows.*found 3"):
    run(fakes.prompts(2), 3, 4)
  with pytest.raises(ValueError, match="prompt.tokens.*expected 2 rows.*found 3"):
    run(fakes.prompts(2)._replace(tokens=jnp.zeros((3, 1), jnp.int32)), 2, 4)
  with pytest.raises(ValueError, match="prompt.mask.*expected 2 rows.*found 3"):
    run(fakes.prompts(2)._replace(mask=jnp.ones((3, 1), bool)), 2, 4)


# --- The program -----------------------------------------------------------------


def test_one_compilation_for_every_setting(caplog):
  """Of temperature, top-p, top-k, lenience, keys, limits and prompts; none is a constant of the program."""
  prompt = fakes.standard_prompt()
  fakes.standard_run(prompt, jax.random.key(0), temperature=1.0)
  size = loop.generate._cache_size()
  with jax.log_compiles(), caplog.at_level("DEBUG"):
    for i, setting in enumerate([
        dict(temperature=0.0), dict(temperature=2.0), dict(temperature=[0.0, 1.0] * 4), dict(temperature=1.0, top_p=0.9),
        dict(temperature=1.0, top_k=5), dict(temperature=1.0, top_k=3, top_p=0.5, lenience=0.5), dict(lenience=0.3),
    ]):  # fmt: skip
      limit = np.resize([20, 3, i], 8)
      out = fakes.standard_run(fakes.standard_prompt(i), jax.random.key(i), limit=limit, **setting)
      jax.block_until_ready(out)
  assert loop.generate._cache_size() == size
  assert not [r.getMessage() for r in caplog.records if "ompil" in r.getMessage() and "generate" in r.getMessage()]


def equations(jaxpr):
  """Every equation of a jaxpr and of those inside it."""
  for equation in jaxpr.eqns:
    yield equation
    for value in equation.params.values():
      for inner in jax.tree.leaves(value, is_leaf=lambda x: isinstance(x, (core.Jaxpr, core.ClosedJaxpr))):
        if isinstance(inner, core.ClosedJaxpr):
          yield from equations(inner.jaxpr)
        elif isinstance(inner, core.Jaxpr):
          yield from equations(inner)


@functools.cache
def program(method="leviathan"):
  """The jaxpr of a run, and the name of each of its inputs."""
  arguments = (jax.random.key(0), fakes.standard_params(), fakes.standard_prompt(), fakes.settings(8, temperature=1.0))
  jaxpr = loop.generate.trace(fakes.standard_step(method), *arguments, 20).jaxpr.jaxpr
  leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
  assert len(leaves) == len(jaxpr.invars)
  return jaxpr, {jax.tree_util.keystr(path): variable for (path, _), variable in zip(leaves, jaxpr.invars)}


def test_the_program_calls_nothing_outside():
  """No callback, no infeed, no debugging print; and the walk would see one."""
  forbidden = ("callback", "feed", "debug", "print")
  names = [equation.primitive.name for equation in equations(program()[0])]
  assert "while" in names and "dot_general" in names
  assert not [name for name in names if any(word in name for word in forbidden)]

  def guilty(x):
    return jax.lax.while_loop(lambda x: x < 3, lambda x: jax.pure_callback(np.abs, x, x) + 1, x)

  names = [equation.primitive.name for equation in equations(jax.make_jaxpr(guilty)(0.0).jaxpr)]
  assert [name for name in names if "callback" in name]


@pytest.mark.parametrize("method", ["leviathan", "autoregressive"])
def test_the_encoder_runs_once_and_before_the_loop(method):
  """Its weights are read by one equation each, outside of the loop; the decoder's are read in the loop."""
  jaxpr, names = program(method)
  (loop_,) = [e for e in jaxpr.eqns if e.primitive.name == "while"]
  reads = lambda equation, variable: any(v is variable for v in equation.invars)
  weights = lambda part: [v for name, v in names.items() if part in name and "norm" not in name and v.aval.ndim > 1]
  models = ["target", "draft"] if method == "leviathan" else ["target"]
  for model in models:
    encoder, decoder = weights(f".{model}.encoder"), weights(f".{model}.decoder.layers")
    kernels = [v for v in encoder if v.aval.shape[1] != 32 or v.aval.shape[0] != 2]  # Not the table of biases.
    assert len(kernels) >= 7 and len(decoder) == 7 * (2 if model == "target" else 1)
    for variable in kernels:
      assert not reads(loop_, variable)
      assert sum(reads(equation, variable) for equation in jaxpr.eqns) == 1
    assert sum(reads(loop_, variable) for variable in decoder) == len(decoder) * 6 // 7  # All but `cross_kv`.


def test_a_run_transfers_nothing():
  """With the arguments on the device; a NumPy argument is one that would be transferred."""
  prompt, params = fakes.standard_prompt(), fakes.standard_params()
  step, keys = fakes.standard_step(), loop.row_keys(jax.random.key(0), 8)
  sampling, limit = fakes.settings(8, temperature=1.0, banned=np.zeros(16, bool)), jnp.full((8,), 20, jnp.int32)
  prompt, params, keys, sampling, limit = jax.device_put((prompt, params, keys, sampling, limit))
  expected = loop.generate(step, keys, params, prompt, sampling, 20, limit)
  with jax.transfer_guard("disallow"):
    out = jax.block_until_ready(loop.generate(step, keys, params, prompt, sampling, 20, limit))
    with pytest.raises(Exception, match="[Dd]isallowed"):
      loop.generate(step, keys, params, prompt, sampling, 20, np.full((8,), 20, np.int32))
  jax.tree.map(np.testing.assert_array_equal, out, expected)
