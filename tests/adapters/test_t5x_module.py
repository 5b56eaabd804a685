"""`adapters.t5x_module` called as T5X calls a network, against the teacher-forced `networks.t5`; T5X is not needed."""

import importlib
import json
import sys
import types

from flax.linen import partitioning
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.adapters import t5x_module
from specdec.benchmark import against
from specdec.checkpoints import names
from tests import fakes

ROUNDING = 2e-4  # Between two float32 computations of one logit (their deviation is about 2).
BATCH, S, L = 3, 6, 7


@pytest.fixture(scope="module")
def case():
  """The module, its variables, encoder rows with padding, decoder rows, and teacher-forced logits [B, L, V]."""
  pair = fakes.standard_pair()
  tokens = fakes.encoder_rows(BATCH, S, 16)
  tokens[1, 4:] = 0
  inputs = fakes.encoder_rows(BATCH, L, 16, seed=1)
  inputs[:, 0] = 0
  module = t5x_module.T5XModule(pair.module.config)
  forced = jax.jit(pair.module.apply)({"params": pair.variables}, tokens, inputs)
  return module, {"params": pair.variables}, tokens, inputs, np.asarray(forced)


def opened(module, variables, tokens, inputs):
  """Encoder output and an empty cache, as T5X makes them: the cache from ones."""
  encoded = module.apply(variables, tokens, enable_dropout=False, method=module.encode)
  ones = (jnp.ones_like(tokens), jnp.ones_like(inputs), jnp.ones_like(inputs))
  _, made = module.apply(variables, *ones, mutable=["cache"], decode=True, enable_dropout=False)
  return encoded, made["cache"]


def step_of(module, **keywords):
  def step(variables, cache, encoded, tokens, fed):
    return module.apply(
        {**variables, "cache": cache}, encoded, tokens, fed, fed, enable_dropout=False, mutable=["cache"],
        method=module.decode, **keywords,
    )  # fmt: skip

  return jax.jit(step)


def test_call_equals_the_network(case):
  module, variables, tokens, inputs, forced = case
  logits = module.apply(variables, tokens, inputs, inputs, enable_dropout=False)
  np.testing.assert_allclose(logits, forced, atol=ROUNDING)


def test_one_token_a_call_equals_teacher_forcing(case):
  module, variables, tokens, inputs, forced = case
  encoded, cache = opened(module, variables, tokens, inputs)
  assert cache["decoder"]["cache_index"].shape == ()
  step = step_of(module, decode=True, max_decode_length=L)
  for i in range(L):
    logits, made = step(variables, cache, encoded, tokens, inputs[:, i : i + 1])
    cache = made["cache"]
    np.testing.assert_allclose(logits[:, 0], forced[:, i], atol=ROUNDING)
  assert int(cache["decoder"]["cache_index"]) == L


def test_prefilled_prompts_of_different_lengths(case):
  module, variables, tokens, inputs, forced = case
  encoded, cache = opened(module, variables, tokens, inputs)
  lengths = np.array([0, 2, 5], np.int32)
  prompt = np.where(np.arange(L)[None] <= lengths[:, None], inputs, 0)
  fill = step_of(module, prefill=True, prefill_lengths=jnp.asarray(lengths))
  logits, made = fill(variables, cache, encoded, tokens, prompt)
  cache = made["cache"]
  assert cache["decoder"]["cache_index"].tolist() == lengths.tolist()
  for row, n in enumerate(lengths):
    np.testing.assert_allclose(logits[row, :n], forced[row, :n], atol=ROUNDING)
  fed = np.take_along_axis(inputs, lengths[:, None], axis=1)
  step = step_of(module, decode=True)
  logits, made = step(variables, cache, encoded, tokens, fed)
  np.testing.assert_allclose(logits[:, 0], forced[np.arange(BATCH), lengths], atol=ROUNDING)
  assert made["cache"]["decoder"]["cache_index"].tolist() == (lengths + 1).tolist()


def test_packed_rows_equal_rows_of_their_own(case):
  module, variables, tokens, inputs, forced = case
  first, second = 0, 2  # Both without padding.
  pack = lambda x: np.concatenate([x[first], x[second], [0, 0]])[None]
  ids = lambda n: np.array([[1] * n + [2] * n + [0, 0]], np.int32)
  logits = module.apply(
      variables, pack(tokens), pack(inputs), pack(inputs), encoder_segment_ids=ids(S), decoder_segment_ids=ids(L),
      enable_dropout=False,
  )  # fmt: skip
  np.testing.assert_allclose(logits[0, :L], forced[first], atol=ROUNDING)
  np.testing.assert_allclose(logits[0, L : 2 * L], forced[second], atol=ROUNDING)
  # Without segments the two would see each other.
  alone = module.apply(variables, pack(tokens), pack(inputs), pack(inputs), enable_dropout=False)
  assert np.abs(alone[0, L : 2 * L] - forced[second]).max() > 0.1


@pytest.mark.parametrize("kind", [jnp.int32, jnp.float32])
def test_initial_variables_and_axes(case, kind):
  module, variables, *_ = case
  one = jnp.ones((1, 2), kind)
  made = jax.eval_shape(lambda key: module.init(key, one, one, one, enable_dropout=False), jax.random.key(0))
  assert set(made) == {"params", "params_axes"}
  names.check(made["params"], variables["params"])
  axes = names.flatten(dict(partitioning.get_axis_names(made["params_axes"]).unfreeze()))
  params = names.flatten(made["params"])
  assert axes.keys() == params.keys()
  assert all(len(axes[name]) == len(params[name].shape) for name in params)
  assert set(module.init(jax.random.key(0), one, one, one, enable_dropout=False, mutable=["params"])) == {"params"}


def test_axes_of_t5_1_0_names():
  config = fakes.standard_pair().module.config
  config = config.__class__(**{**vars(config), "mlp_activations": ("relu",), "logits_via_embedding": True})
  one = jnp.ones((1, 2), jnp.int32)
  init = t5x_module.T5XModule(config).init
  made = jax.eval_shape(lambda key: init(key, one, one, one, enable_dropout=False), jax.random.key(0))
  axes = names.flatten(dict(partitioning.get_axis_names(made["params_axes"]).unfreeze()))
  assert tuple(axes["decoder/layers_0/mlp/wi/kernel"]) == ("embed", "mlp")
  assert not [name for name in axes if "logits" in name]


def test_axes_equal_those_of_t5x(shared):
  """Every parameter of the unscanned models that T5X described has its own axes."""
  described = json.loads((shared("t5x_fixtures/params") / "fixtures.json").read_text())
  for name in ("target", "tied", "draft"):
    theirs = {entry["name"]: tuple(entry["logical_axes"]) for entry in described[name]["params"]}
    tree = names.unflatten({name: np.zeros(1) for name in theirs})
    ours = names.flatten(dict(partitioning.get_axis_names(t5x_module.logical_axes(tree)).unfreeze()))
    assert {name: tuple(axes) for name, axes in ours.items()} == theirs


def test_bad_calls(case):
  module, variables, tokens, inputs, _ = case
  encoded, cache = opened(module, variables, tokens, inputs)
  with pytest.raises(ValueError, match="expected 1 tokens a row, found 3"):
    step_of(module, decode=True)(variables, cache, encoded, tokens, inputs[:, :3])
  with pytest.raises(ValueError, match="found segment ids; decode without packing"):
    step_of(module, decode=True, decoder_segment_ids=jnp.ones_like(inputs))(
        variables, cache, encoded, tokens, inputs[:, :1]
    )


# --- Without T5X -----------------------------------------------------------------


def import_adapter(monkeypatch):
  monkeypatch.delitem(sys.modules, "specdec.adapters.t5x_model", raising=False)
  with pytest.raises(ModuleNotFoundError) as error:
    importlib.import_module("specdec.adapters.t5x_model")
  assert error.value.name == "t5x"
  (line,) = str(error.value).splitlines()
  return line


def test_one_line_says_what_is_missing(monkeypatch):
  monkeypatch.setitem(sys.modules, "t5x", None)
  line = import_adapter(monkeypatch)
  assert line.startswith("specdec.adapters.t5x_model needs T5X: ") and "github.com/google-research/t5x" in line


def test_one_line_says_what_t5x_lacks(monkeypatch, tmp_path):
  (tmp_path / "t5x").mkdir()
  (tmp_path / "t5x" / "__init__.py").write_text("import airio_that_is_not_here\n")
  for name in [name for name in sys.modules if name.split(".")[0] == "t5x"]:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.syspath_prepend(str(tmp_path))
  assert "T5X, which is there but lacks airio_that_is_not_here: " in import_adapter(monkeypatch)


def test_benchmark_against_t5x_says_it_too(monkeypatch):
  monkeypatch.setitem(sys.modules, "t5x", None)
  monkeypatch.delitem(sys.modules, "specdec.adapters.t5x_model", raising=False)
  monkeypatch.delattr("specdec.adapters.t5x_model", raising=False)
  pair = fakes.standard_pair()
  target = types.SimpleNamespace(module=pair.module, params=pair.target_params)
  with pytest.raises(ModuleNotFoundError, match="needs T5X"):
    against.yardstick("t5x", target, 4, 0.0)
