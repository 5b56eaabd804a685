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
from tests import oracles

FAR = -1  # An EOS that no model emits.
V, ROWS, CAP = fakes.VOCAB, fakes.TABLE_ROWS, fakes.TABLE_CAP
TABLE_OF = np.arange(ROWS) % fakes.TABLES


@pytest.fixture(scope="module")
def tables():
  """A target and a draft of 16 tables."""
  return fakes.noisy_tables(11)


# --- Statistics ------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [3, 0])
def test_statistics_are_a_second_count_of_the_trace(tables, gamma):
  target, draft = tables
  limit = np.resize([12, 5, 7, 1, 0, 30, 2, 3, 12], ROWS)
  temperature = np.resize([1.0, 0.0, 2.0], ROWS)
  out = jax.tree.map(np.asarray, fakes.table_run(target, draft, gamma, key=1, limit=limit, temperature=temperature))
  statistics, trace = out.statistics, out.trace
  stops, with_cut = set(), 0
  for row in range(ROWS):
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
    with_cut += int(not with_next.all())
    assert statistics.drafted[row] == gamma * steps
    assert statistics.histogram[row].sum() == steps
    assert (statistics.histogram[row] * np.arange(gamma + 1)).sum() == accepted.sum()
    # Places whose prefix was committed, and the acceptance probability there, from the tables.
    visited, beta = np.zeros(gamma), np.zeros(gamma)
    one = dict(temperature=temperature[row])
    p, q = (fakes.table_law(table[TABLE_OF[row]], **one) for table in (target, draft))
    done = 0
    for i in range(steps):
      for place in range(gamma):
        ended_inside = committed[i] == accepted[i]
        if place < accepted[i] or (place == accepted[i] and not ended_inside):
          before = tuple(tokens[:done]) + tuple(trace.draft[row, i, :place].tolist())
          visited[place] += 1
          beta[place] += np.minimum(p(before), q(before)).sum()
      done += committed[i]
    np.testing.assert_array_equal(statistics.visited[row], visited)
    np.testing.assert_allclose(statistics.acceptance[row], beta, atol=1e-5)
    # Log-probability at temperature 1.
    plain = fakes.table_law(target[TABLE_OF[row]])
    expected = sum(np.log(plain(tuple(tokens[:i]))[token]) for i, token in enumerate(tokens))
    np.testing.assert_allclose(statistics.log_prob[row], expected, atol=1e-4)
    # In the law that was drawn from; 0 for a greedy row.
    drawn = sum(np.log(p(tuple(tokens[:i]))[token]) for i, token in enumerate(tokens))
    np.testing.assert_allclose(statistics.drawn_log_prob[row], drawn, atol=1e-4)
    assert drawn == 0 or temperature[row] > 0
    # Why it ended.
    room = min(int(limit[row]), CAP)
    stop = StopCode.EOS if tokens and tokens[-1] == fakes.EOS else StopCode.LENGTH
    assert out.stop[row] == stop and (n == room or stop == StopCode.EOS) and n <= room
    assert fakes.EOS not in tokens[:-1]
    stops.add(int(stop))
  assert stops == {StopCode.EOS, StopCode.LENGTH} and (with_cut > 5 or gamma == 0)


def test_a_run_without_trace_is_the_same():
  prompt, key = fakes.standard_prompt(), jax.random.key(1)
  one = fakes.standard_run(prompt, key, fakes.standard_step("autoregressive"), temperature=1.0)
  setting = fakes.settings(8, temperature=1.0, banned=np.zeros(16, bool))
  other = loop.generate(
      fakes.standard_step("autoregressive"), key, fakes.standard_params(), prompt, setting, 20,
      jnp.full((8,), 20, jnp.int32), trace=True,
  )  # fmt: skip
  assert one.trace is None
  jax.tree.map(np.testing.assert_array_equal, one, other._replace(trace=None))


# --- Lengths ---------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [3, 5, 10])
def test_a_block_longer_than_the_limit_is_cut(tables, gamma):
  """Draft and target are equal, so that every block is accepted whole."""
  target, _ = tables
  limit = np.resize([1, 2, 3, 0, 4, 12, 99, -2, 11], ROWS)
  out = fakes.table_run(target, gamma=gamma, eos=FAR, limit=limit)
  room = np.clip(limit, 0, CAP)
  for row, tokens in enumerate(oracles.outputs(out.tokens, out.lengths)):
    assert tokens == fakes.greedy_walk(target[TABLE_OF[row]], room[row], FAR), row
  assert (out.stop == StopCode.LENGTH).all()
  np.testing.assert_array_equal(out.statistics.steps, -(-room // (gamma + 1)))
  np.testing.assert_array_equal(out.statistics.committed, room)


def test_an_output_shorter_than_a_block(tables):
  """max_new_tokens 1 with gamma 10: the buffers have room for a whole block all the same."""
  target, _ = tables
  out = loop.generate(
      fakes.table_step(10, FAR), jax.random.key(0), fakes.table_params(target), fakes.prompts(16, np.arange(16)),
      fakes.settings(16), 1,
  )  # fmt: skip
  assert oracles.outputs(out.tokens, out.lengths) == [fakes.greedy_walk(table, 1, FAR) for table in target]


def test_eos_at_every_place_of_a_block():
  """Row k's greedy output is k tokens and then EOS; gamma is 3, so k runs through two blocks and more."""
  rows = np.arange(ROWS) % CAP
  target = np.zeros((fakes.TABLES, fakes.ENTRIES, V), np.float32)
  target[:, :, 0] = 1  # Token 0, an ordinary one, until …
  for k in range(CAP):
    target[k, fakes.prefix_number([0] * k, V, fakes.ENTRIES), fakes.EOS] = 2  # … EOS after k of them.
  out = fakes.table_run(target, rows=rows)
  assert oracles.outputs(out.tokens, out.lengths) == [(0,) * k + (1,) for k in rows]
  assert (out.stop == StopCode.EOS).all()
  np.testing.assert_array_equal(out.statistics.committed, rows + 1)
  np.testing.assert_array_equal(out.statistics.steps, rows // 4 + 1)
  # The EOS of a row was drafted, and counts as accepted, unless it is a step's last token.
  np.testing.assert_array_equal(out.statistics.accepted, rows + 1 - (rows + 1) // 4)


def test_prefixes_of_mixed_lengths(tables):
  target, draft = tables
  prefix = np.random.default_rng(2).integers(0, V, (ROWS, 4)).astype(np.int32)
  prefix[:, 0] = 0
  length = np.resize([1, 2, 3, 4], ROWS)
  for gamma in (3, 0):
    out = fakes.table_run(target, draft, gamma, prefix=prefix, prefix_length=length)
    for row, tokens in enumerate(oracles.outputs(out.tokens, out.lengths)):
      given = prefix[row, 1 : length[row]].tolist()
      assert tokens == fakes.greedy_walk(target[TABLE_OF[row]], CAP, prefix=given), (gamma, row)


def test_penalties_and_bans_are_pure_functions_of_the_prefix(tables):
  """Greedy speculation = greedy plain = a walk in NumPy, with all of them on and different in each row."""
  target, draft = tables
  generator = np.random.default_rng(4)
  setting = dict(
      min_length=generator.integers(0, 8, ROWS), repetition_penalty=generator.choice([0.7, 1.0, 1.3, 3.0], ROWS),
      banned=generator.random((ROWS, V)) < 0.2,
  )  # fmt: skip
  setting["banned"][:, 2] = False
  prefix = generator.integers(0, V, (ROWS, 4)).astype(np.int32)
  prefix[:, 0] = 0
  runs = [fakes.table_run(target, draft, gamma, prefix=prefix, prefix_length=2, **setting) for gamma in (3, 0)]
  changed = 0
  for row, tokens in enumerate(oracles.outputs(runs[0].tokens, runs[0].lengths)):
    one = dict(
        min_length=setting["min_length"][row], penalty=setting["repetition_penalty"][row],
        banned=np.flatnonzero(setting["banned"][row]),
    )  # fmt: skip
    given = prefix[row, 1:2].tolist()
    assert tokens == fakes.greedy_walk(target[TABLE_OF[row]], CAP, prefix=given, **one), row
    changed += tokens != fakes.greedy_walk(target[TABLE_OF[row]], CAP, prefix=given)
  np.testing.assert_array_equal(runs[0].tokens, runs[1].tokens)
  np.testing.assert_array_equal(runs[0].stop, runs[1].stop)
  np.testing.assert_allclose(runs[0].statistics.log_prob, runs[1].statistics.log_prob, atol=1e-4)
  assert changed > ROWS // 4


# --- Numbers that are none -------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [3, 0])
def test_a_target_that_is_not_finite_stops_its_row_only(tables, gamma, temperature):
  target, draft = tables
  clean = fakes.table_run(target, draft, gamma, FAR, key=5, temperature=temperature)
  broken = target.copy()
  places = {3: 0, 7: 1, 8: 2, 9: 5, 12: 7}  # A table, and after how many tokens of the row of that number it breaks.
  bad = {3: np.nan, 7: np.inf, 8: np.nan, 9: -np.inf, 12: np.nan}
  for row, place in places.items():
    number = fakes.prefix_number(np.asarray(clean.tokens[row, :place]).tolist(), V, fakes.ENTRIES)
    if bad[row] == -np.inf:
      broken[row, number] = -np.inf  # Nothing is possible.
    broken[row, number, 2] = bad[row]
  out = fakes.table_run(broken, draft, gamma, FAR, key=5, temperature=temperature)
  for row in range(ROWS):
    n = int(out.lengths[row])
    if row in places:
      assert out.stop[row] == StopCode.NOT_FINITE and n <= places[row]
      if temperature == 0:  # A sampled row may have met the entry by another way before.
        assert n == places[row]
    elif TABLE_OF[row] not in places:
      assert out.stop[row] == StopCode.LENGTH and n == CAP
    np.testing.assert_array_equal(out.tokens[row, :n], clean.tokens[row, :n])
    assert not out.tokens[row, n:].any()
    assert np.isfinite(out.statistics.log_prob[row]) and np.isfinite(out.statistics.acceptance[row]).all()
  assert (out.statistics.committed == out.lengths).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_draft_that_is_not_finite_changes_nothing(tables, bad):
  target, draft = tables
  plain = fakes.table_run(target, gamma=0)
  out = fakes.table_run(target, np.full_like(draft, bad))
  np.testing.assert_array_equal(out.tokens, plain.tokens)
  np.testing.assert_array_equal(out.stop, plain.stop)
  sampled = fakes.table_run(target, np.full_like(draft, bad), temperature=1.0)
  assert not sampled.statistics.accepted.any() and (sampled.statistics.steps == sampled.lengths).all()
  assert np.isfinite(sampled.statistics.acceptance).all()


# --- Keys ------------------------------------------------------------------------


def test_the_same_key_gives_the_same_tokens_and_another_one_others(tables):
  run = lambda key: fakes.table_run(*tables, eos=FAR, rows=0, key=key, temperature=1.0)
  one, again, other = run(0), run(0), run(1)
  jax.tree.map(np.testing.assert_array_equal, one, again)
  assert (one.tokens != other.tokens).any(axis=1).sum() > 56
  assert len({tuple(row) for row in np.asarray(one.tokens).tolist()}) > 56  # Rows have their own randomness.
  keys = loop.row_keys(jax.random.key(0), ROWS)
  order = np.random.default_rng(0).permutation(ROWS)
  np.testing.assert_array_equal(run(keys[order]).tokens, one.tokens[order])


def test_one_key_is_folded_with_the_number_of_the_row():
  keys = loop.row_keys(jax.random.key(4), 3)
  assert keys.shape == (3,)
  for row in range(3):
    assert keys[row] == jax.random.fold_in(jax.random.key(4), row)
  assert (loop.row_keys(keys, 3) == keys).all()


# --- At the door -----------------------------------------------------------------


def test_errors_say_what_was_expected(tables):
  params, step = fakes.table_params(*tables), fakes.table_step(0)
  run = lambda prompt, batch, cap: loop.generate(step, jax.random.key(0), params, prompt, fakes.settings(batch), cap)
  with pytest.raises(ValueError, match="max_new_tokens.*at least 1.*found 0"):
    run(fakes.prompts(2), 2, 0)
  with pytest.raises(ValueError, match="temperature.*expected 2 rows.*found 3"):
    run(fakes.prompts(2), 3, 4)
  with pytest.raises(ValueError, match="prompt.tokens.*expected 2 rows.*found 3"):
    run(fakes.prompts(2)._replace(tokens=jnp.zeros((3, 1), jnp.int32)), 2, 4)
  for key in (jax.random.split(jax.random.key(0), 3), jax.random.PRNGKey(0)):
    with pytest.raises(ValueError, match="key: expected one .* or 4 of them, found"):
      loop.generate(step, key, params, fakes.prompts(4), fakes.settings(4), 4)
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
        dict(temperature=0.0), dict(temperature=2.0), dict(temperature=[0.0, 1.0] * 4),
        dict(temperature=1.0, top_p=0.9), dict(temperature=1.0, top_k=5), dict(lenience=0.3),
        dict(temperature=1.0, top_k=3, top_p=0.5, lenience=0.5),
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


def tiny_run(limit=None, **prompt):
  """Three rows of a table; the arguments replace fields of their prompt."""
  params = fakes.table_params(fakes.random_tables(0, 4, 3)[0])
  prompts = fakes.prompts(3, 0, 2)._replace(**prompt)
  return loop.generate(fakes.table_step(0), jax.random.key(0), params, prompts, fakes.settings(3), 2, limit)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt.mask", np.ones((3, 1), bool)),
        ("prompt.mask", np.ones(2, bool)),
        ("prompt.prefix_length", np.ones((3, 1), np.int32)),
        ("prompt.prefix_length", np.ones(3, np.float32)),
        ("prompt.tokens", np.ones((3, 2), np.float32)),
        ("limit", np.int32(1)),
        ("limit", np.ones(1, np.int32)),
        ("limit", np.ones(2, np.int32)),
        ("limit", np.ones(3, np.float32)),
    ],
)
def test_shapes_and_dtypes_are_not_broadcast_or_cast_in_silence(name, value):
  with pytest.raises(ValueError, match=f"{name}: expected"):
    tiny_run(**{name.removeprefix("prompt."): value})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_any_integer_dtype_will_do(dtype):
  """A prefix length of int8 used to end in a TypeError of lax.while_loop."""
  out = tiny_run(np.ones(3, dtype), prefix_length=np.ones(3, dtype), tokens=np.zeros((3, 2), dtype))
  np.testing.assert_array_equal(out.tokens, tiny_run(np.ones(3, np.int32)).tokens)
