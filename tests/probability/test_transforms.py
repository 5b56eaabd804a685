"""`probability.transforms` against NumPy that sorts, and against what T5X kept.

T5X's masks stand in `tests/fixtures/t5x/masks.npz`.
"""

import json
import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.probability import transforms
from tests import oracles

T5X = pathlib.Path(__file__).parents[1] / "fixtures" / "t5x"

to_law = jax.jit(transforms.to_law)
top_k_mask = jax.jit(transforms.top_k_mask)
top_p_mask = jax.jit(transforms.top_p_mask)
process = jax.jit(transforms.process, static_argnums=3)
seen_tokens = jax.jit(transforms.seen_tokens, static_argnums=2)

V = 7
# Few values, so that ties are common; -inf among them, but never alone.
values = st.sampled_from([-np.inf, -30.0, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 1.5, 4.0]) | st.floats(-6, 6, width=16)
rows_of_logits = st.lists(values, min_size=V, max_size=V).filter(lambda x: max(x) > -np.inf).map(np.float32)
examples = settings(max_examples=150, deadline=None, derandomize=True)


def law_of(logits, **setting):
  return np.exp(np.asarray(to_law(jnp.asarray(logits)[None, None], transforms.sampling(1, **setting))))[0, 0]


# --- Against NumPy -------------------------------------------------------------


@examples
@given(logits=rows_of_logits, k=st.integers(0, V + 2))
def test_top_k_keeps_what_sorting_keeps(logits, k):
  masked = np.asarray(top_k_mask(jnp.asarray(logits), jnp.int32(k)))
  np.testing.assert_array_equal(masked, np.where(oracles.numpy_keep(logits, top_k=k), logits, -np.inf))


def away_from_a_cut(logits, p):
  """Whether float32 sums and float64 sums must agree on what reaches `p`."""
  weight = np.sort(np.exp(np.float64(logits) - logits.max()))[::-1]
  return p == 0 or np.abs(np.cumsum(weight / weight.sum()) - p).min() > 1e-6


@examples
@given(logits=rows_of_logits, p=st.sampled_from([0.0, 1e-6, 0.3, 0.5, 0.8, 0.9, 0.999]))
def test_top_p_keeps_what_sorting_keeps(logits, p):
  if not away_from_a_cut(logits, p):
    return
  masked = np.asarray(top_p_mask(jnp.asarray(logits), jnp.float32(p)))
  np.testing.assert_array_equal(masked, np.where(oracles.numpy_keep(np.float64(logits), top_p=p), logits, -np.inf))


@examples
@given(
    logits=rows_of_logits,
    temperature=st.sampled_from([0.0, 1e-9, 1e-4, 0.5, 1.0, 2.0, 100.0]),
    k=st.sampled_from([0, 1, 3, V]),
    p=st.sampled_from([0.0, 0.3, 0.8]),
)
def test_law_is_the_oracle_s(logits, temperature, k, p):
  tempered = logits / max(temperature, 1e-4)
  if not away_from_a_cut(np.where(oracles.numpy_keep(tempered, top_k=k), tempered, -np.inf), p):
    return
  found = law_of(logits, temperature=temperature, top_k=k, top_p=p)
  np.testing.assert_allclose(found, oracles.numpy_law(logits, temperature, k, p), atol=1e-6)
  assert (found[logits == -np.inf] == 0).all()


def test_rows_have_their_own_settings():
  logits = np.float32(np.random.default_rng(0).normal(size=(6, 2, V)))
  setting = dict(
      temperature=[0.0, 1.0, 2.0, 0.5, 1.0, 1e-5], top_k=[3, 0, 2, 0, 4, 1], top_p=[0.5, 0.0, 0.0, 0.8, 0.6, 0.9]
  )
  law = np.exp(to_law(logits, transforms.sampling(6, **setting)))
  for row in range(6):
    one = [setting[name][row] for name in ("temperature", "top_k", "top_p")]
    for node in range(2):
      np.testing.assert_allclose(law[row, node], oracles.numpy_law(logits[row, node], *one), atol=1e-6)


# --- What depends on the prefix --------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    logits=st.lists(st.floats(-5, 5, width=32), min_size=V, max_size=V).map(np.float32),
    prefix=st.lists(st.integers(0, V - 1), min_size=1, max_size=5),
    new_tokens=st.integers(0, 3),
    min_length=st.integers(0, 3),
    penalty=st.sampled_from([0.5, 1.0, 1.3, 4.0]),
    banned=st.lists(st.integers(0, V - 1), max_size=2),
)
def test_process_is_the_oracle_s(logits, prefix, new_tokens, min_length, penalty, banned):
  bans = np.zeros(V, bool)
  bans[banned] = True
  setting = transforms.sampling(1, min_length=min_length, repetition_penalty=penalty, banned=bans)
  row = jnp.asarray(prefix + [V + 3, -1, 2][: 5 - len(prefix)] + [3] * 5)[None, :8]  # Anything, beyond the length.
  seen = seen_tokens(row, jnp.array([len(prefix)]), V)[:, None]
  found = process(logits[None, None], setting, transforms.Prefix(jnp.array([[new_tokens]]), seen), 1)
  expected = oracles.numpy_process(logits, prefix, new_tokens, 1, min_length, penalty, banned)
  np.testing.assert_allclose(found[0, 0], expected, rtol=1e-6)


def test_process_without_settings_only_widens():
  logits = jnp.array([[[1.5, -2.0, 0.25]]], jnp.bfloat16)
  found = transforms.process(logits, transforms.sampling(1), transforms.Prefix(jnp.zeros((1, 1), jnp.int32)), 1)
  assert found.dtype == jnp.float32 and found.tolist() == [[[1.5, -2.0, 0.25]]]


# --- Edges -----------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_no_number_makes_the_whole_law_nan(bad, temperature):
  assert np.isnan(law_of(np.float32([0.0, bad, 1.0]), temperature=temperature, top_k=2, top_p=0.5)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_possible_is_nan(temperature):
  assert np.isnan(law_of(np.float32([-np.inf] * 3), temperature=temperature)).all()


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-6, 1e-4])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_near_zero_temperature_is_the_first_argmax(temperature, scale):
  logits = jnp.asarray(np.float32([0.5, 1.0, -1.0, 1.0]) * scale, jnp.bfloat16).astype(jnp.float32)
  assert law_of(logits, temperature=temperature).tolist() == [0, 1, 0, 0]


def test_just_above_the_greedy_temperature_the_law_is_finite():
  law = law_of(np.float32([1e4, 9.9e3, 1e4, -1e4]), temperature=1.01e-4)
  np.testing.assert_allclose(law, [0.5, 0, 0.5, 0], atol=1e-6)


@pytest.mark.parametrize("top_p,kept", [(0.0, [0, 1, 2]), (0.25, [0]), (0.5, [0]), (0.75, [0, 1, 2]), (1.0, [0, 1, 2])])
def test_top_p_edges(top_p, kept):
  law = law_of(np.log(np.float32([0.5, 0.25, 0.25])), temperature=1.0, top_p=top_p)
  assert np.flatnonzero(law).tolist() == kept


@pytest.mark.parametrize(
    "name,value",
    [
        ("temperature", -0.1), ("temperature", np.nan), ("temperature", np.inf), ("temperature", [1.0, 1.0, 1.0]),
        ("top_k", -1), ("top_p", 1.5), ("top_p", -0.1), ("top_p", np.nan), ("lenience", 0.0), ("lenience", 1.1),
        ("min_length", -1), ("repetition_penalty", 0.0), ("repetition_penalty", np.inf), ("temperature", [[1.0]] * 2),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_an_error_that_names_it(name, value):
  with pytest.raises(ValueError, match=name):
    transforms.sampling(2, **{name: value})


def test_bans_of_another_batch_are_an_error():
  with pytest.raises(ValueError):
    transforms.sampling(2, banned=np.zeros((3, 4), bool))


# --- Against T5X -----------------------------------------------------------------


@pytest.fixture(scope="module")
def masks():
  with np.load(T5X / "masks.npz") as arrays:
    return dict(arrays), json.loads((T5X / "masks.json").read_text())


def test_laws_are_t5x_s(masks):
  arrays, description = masks
  configs = {name: config for name, config in description["configs"].items() if isinstance(config, dict)}
  assert len(configs) == 16
  for name, config in configs.items():
    setting = transforms.sampling(16, temperature=config["temperature"], top_k=config["topk"], top_p=config["topp"])
    found = np.exp(to_law(arrays["logits"][:, None], setting))[:, 0]
    keep, probs = arrays[f"{name}/keep"], arrays[f"{name}/probs"]
    for row, kind in enumerate(description["rows"]):
      # Where float32 sums decide about the last group kept, T5X's README allows it to differ.
      slack = arrays[f"{name}/slack"][row] if f"{name}/slack" in arrays else 1.0
      if config["topp"] == 1.0:
        differs = (found[row] > 0) != keep[row]
        assert (probs[row][differs] < 1e-6).all() and (found[row][differs] < 1e-6).all(), (name, kind)
      elif slack > 1e-5 or name == "t0.7_p1e-6":
        # Below 1e-30 one of the two may have been flushed to zero.
        np.testing.assert_array_equal(found[row] > 1e-30, keep[row] & (probs[row] > 1e-30), err_msg=f"{name} {kind}")
      else:
        continue
      np.testing.assert_allclose(found[row], probs[row], atol=1e-6, err_msg=f"{name} {kind}")


@pytest.mark.parametrize("k", [0, 1, 10, 256, 257])
def test_top_k_mask_is_t5x_s(masks, k):
  arrays, _ = masks
  kept = np.asarray(top_k_mask(arrays["logits"], jnp.int32(k))) > -1e7
  theirs = arrays[f"direct/topk_mask_{k}"] > -1e7
  np.testing.assert_array_equal(kept, arrays["logits"] > -1e7 if k == 0 else theirs)


@pytest.mark.parametrize("p", [0.0, 0.9])
def test_top_p_mask_is_t5x_s(masks, p):
  arrays, description = masks
  kept = np.asarray(top_p_mask(arrays["logits"], jnp.float32(p))) > -1e7
  if p == 0.0:  # T5X masks everything here; 0 is off.
    np.testing.assert_array_equal(kept, arrays["logits"] > -1e7)
    return
  theirs = arrays[f"direct/topp_mask_{p}"] > -1e7
  for row, kind in enumerate(description["rows"]):
    if away_from_a_cut(np.float64(arrays["logits"][row]), p):
      np.testing.assert_array_equal(kept[row], theirs[row], err_msg=kind)


@pytest.mark.parametrize("name", ["0.0", "1e-05", "0.0001"])
def test_greedy_is_t5x_s(masks, name):
  arrays, _ = masks
  law = to_law(arrays["logits"][:, None], transforms.sampling(16, temperature=float(name)))
  np.testing.assert_array_equal(np.argmax(law, -1), arrays[f"greedy_at_t{name}/tokens"])


def test_tokens_that_t5x_drew_with_both_masks_are_possible(masks):
  arrays, _ = masks
  setting = transforms.sampling(16, temperature=0.7, top_k=10, top_p=0.9)
  log_p = np.asarray(to_law(arrays["logits"][:, None], setting))[:, 0]
  theirs = np.take_along_axis(log_p, arrays["dynamic/t0.7_k10_p0.9/tokens"], axis=1)
  close = np.isclose(theirs, arrays["dynamic/t0.7_k10_p0.9/logprobs"], atol=2e-5)
  assert close.all(axis=1).sum() >= 14, close.mean(axis=1)


@pytest.mark.parametrize("name", ["top_k", "min_length"])
@pytest.mark.parametrize("value", [0.9, 2.7, -0.5, 2**31, [2**32 + 1, 3], float("nan"), float("inf")])
def test_counts_are_whole_numbers_of_their_range(name, value):
  """Cut to an integer, a top_k of 0.9 (a top_p, likely) would be 0: off."""
  with pytest.raises(ValueError, match=rf"{name}: expected"):
    transforms.sampling(2, **{name: value})
  assert getattr(transforms.sampling(2, **{name: [2.0, np.int64(3)]}), name).tolist() == [2, 3]


@pytest.mark.parametrize("banned", [[True], [True] * 5, [5, 7]])
def test_banned_has_a_flag_for_every_logit(banned):
  """One flag would be broadcast, and ban all; ids are not flags."""
  settings_ = transforms.sampling(1, banned=banned)
  with pytest.raises(ValueError, match="banned: expected 4 flags, one a logit, found"):
    transforms.process(jnp.zeros((1, 1, 4)), settings_, transforms.Prefix(jnp.zeros((1, 1), jnp.int32)), 1)


def test_a_top_p_too_small_for_a_float_is_still_on():
  settings = transforms.sampling(1, temperature=1.0, top_p=1e-42)
  law = jax.jit(transforms.to_law)(jnp.log(jnp.array([[[0.5, 0.3, 0.2]]])), settings)
  assert jnp.exp(law)[0, 0].tolist() == [1.0, 0.0, 0.0]
