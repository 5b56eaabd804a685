"""`networks.t5` against a NumPy T5 in float64, and against what T5X computed."""

import functools
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.checkpoints import from_t5x
from specdec.checkpoints import names
from specdec.networks import layers
from specdec.networks import t5

SMALL = pathlib.Path(__file__).parents[1] / "fixtures" / "t5x"
SHARED = pathlib.Path(__file__).parents[3] / "shared" / "t5x_fixtures"
ROUNDING = 1e-4  # Between two float32 computations of one logit; a leak is a thousand times that.
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the full set of T5X fixtures is not beside the repository")


@pytest.fixture(autouse=True)
def exact_products():
  with jax.default_matmul_precision("highest"):
    yield


@functools.partial(jax.jit, static_argnums=0)
def run(config, params, encoder, decoder, mask=None):
  """encoder tokens [B, S], decoder tokens [B, L] -> encoded [B, S, E], logits [B, L, V]."""
  model, variables = t5.T5(config), {"params": params}
  return model.apply(variables, encoder, mask, method="encode"), model.apply(variables, encoder, decoder, mask)


# A T5 in NumPy and plain Python, float64, one token at a time where that is the definition.


def bucket_by_counting(distance, bidirectional, num_buckets, max_distance):
  """The bucket of key - query = `distance`, in whole numbers: no logarithm is rounded."""
  first = 0
  if bidirectional:
    num_buckets //= 2
    if distance > 0:
      first, distance = num_buckets, -distance
  behind = max(-distance, 0)
  exact = num_buckets // 2
  if behind < exact:
    return first + behind
  far = num_buckets - exact
  step = 0  # The largest with (behind / exact)^far >= (max_distance / exact)^step.
  while step < far - 1 and behind**far * exact ** (step + 1) >= max_distance ** (step + 1) * exact**far:
    step += 1
  return first + exact + step


class NumpyT5:
  """The forward pass from its description; `params` by name."""

  activations = {
      "relu": lambda x: np.maximum(x, 0),
      "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
      "linear": lambda x: x,
  }

  def __init__(self, config, params):
    self.config = config
    self.params = {name: np.asarray(leaf, np.float64) for name, leaf in names.flatten(params).items()}

  def norm(self, x, name):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * self.params[f"{name}/scale"]

  def attention(self, x, memory, bias, name):
    config = self.config
    heads = lambda y, part: (y @ self.params[f"{name}/{part}/kernel"]).reshape(len(y), config.num_heads, -1)
    query, key, value = heads(x, "query"), heads(memory, "key"), heads(memory, "value")
    mixed = np.zeros((len(x), config.num_heads, config.head_dim))
    for h in range(config.num_heads):
      logits = query[:, h] @ key[:, h].T + bias[h]
      weights = np.exp(logits - logits.max(-1, keepdims=True))
      mixed[:, h] = weights / weights.sum(-1, keepdims=True) @ value[:, h]
    return mixed.reshape(len(x), -1) @ self.params[f"{name}/out/kernel"]

  def mlp(self, x, name):
    activations = self.config.mlp_activations
    parts = ["wi"] if len(activations) == 1 else [f"wi_{i}" for i in range(len(activations))]
    branches = [self.activations[a](x @ self.params[f"{name}/{part}/kernel"]) for a, part in zip(activations, parts)]
    return np.prod(branches, axis=0) @ self.params[f"{name}/wo/kernel"]

  def bias(self, length, stack):
    config = self.config
    table = self.params[f"{stack}/relpos_bias/rel_embedding"]
    buckets = config.relative_attention_num_buckets, config.relative_attention_max_distance
    bucket = [[bucket_by_counting(k - q, stack == "encoder", *buckets) for k in range(length)] for q in range(length)]
    return table[:, bucket]

  def encode(self, tokens, mask):
    """One row: tokens [S], mask [S] -> [S, E]."""
    x = self.params["token_embedder/embedding"][tokens]
    bias = self.bias(len(tokens), "encoder") + np.where(mask, 0, -1e10)
    for i in range(self.config.num_encoder_layers):
      layer = f"encoder/layers_{i}"
      y = self.norm(x, f"{layer}/pre_attention_layer_norm")
      x = x + self.attention(y, y, bias, f"{layer}/attention")
      x = x + self.mlp(self.norm(x, f"{layer}/pre_mlp_layer_norm"), f"{layer}/mlp")
    return self.norm(x, "encoder/encoder_norm")

  def decode(self, encoded, mask, tokens):
    """One row: encoded [S, E], mask [S], tokens [L] -> logits [L, V]."""
    x = self.params["token_embedder/embedding"][tokens]
    order = np.arange(len(tokens))
    bias = self.bias(len(tokens), "decoder") + np.where(order[None] <= order[:, None], 0, -1e10)
    cross = np.broadcast_to(np.where(mask, 0, -1e10), (self.config.num_heads, 1, len(mask)))
    for i in range(self.config.num_decoder_layers):
      layer = f"decoder/layers_{i}"
      y = self.norm(x, f"{layer}/pre_self_attention_layer_norm")
      x = x + self.attention(y, y, bias, f"{layer}/self_attention")
      y = self.norm(x, f"{layer}/pre_cross_attention_layer_norm")
      x = x + self.attention(y, encoded, cross, f"{layer}/encoder_decoder_attention")
      x = x + self.mlp(self.norm(x, f"{layer}/pre_mlp_layer_norm"), f"{layer}/mlp")
    x = self.norm(x, "decoder/decoder_norm")
    if self.config.logits_via_embedding:
      return x @ self.params["token_embedder/embedding"].T / math.sqrt(self.config.emb_dim)
    return x @ self.params["decoder/logits_dense/kernel"]


def random_model(seed, **changes):
  """A small model with wide random weights, and tokens whose rows end in padding."""
  sizes = dict(vocab_size=31, emb_dim=12, num_heads=3, head_dim=8, mlp_dim=20, num_encoder_layers=1)
  sizes |= dict(num_decoder_layers=1, relative_attention_num_buckets=8, relative_attention_max_distance=12)
  config = t5.T5Config(**sizes | changes)
  rng = np.random.default_rng(seed)
  encoder, decoder = rng.integers(2, 31, (3, 17)), rng.integers(2, 31, (3, 15))
  for row, length in enumerate((17, 9, 2)):
    encoder[row, length:] = 0
  decoder[:, 0] = 0
  described = jax.eval_shape(t5.T5(config).init, jax.random.key(0), encoder, decoder)["params"]
  draw = lambda leaf: jnp.float32((leaf.ndim == 1) + 0.4 * rng.normal(size=leaf.shape))  # Scales lie around one.
  return config, jax.tree.map(draw, described), jnp.int32(encoder), jnp.int32(decoder)


VARIANTS = {
    "gated": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "gated, tied": {"logits_via_embedding": True},
    "plain": {"mlp_activations": ("relu",), "num_decoder_layers": 3},
    "plain, tied": {"mlp_activations": ("relu",), "logits_via_embedding": True, "num_encoder_layers": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_numpy_in_float64(variant):
  config, params, encoder, decoder = random_model(len(variant), **VARIANTS[variant])
  encoded, logits = run(config, params, encoder, decoder)
  oracle = NumpyT5(config, params)
  assert np.asarray(logits).std() > 0.3
  for row, mask in enumerate(np.asarray(encoder) > 0):
    expected = oracle.encode(encoder[row], mask)
    np.testing.assert_allclose(encoded[row][mask], expected[mask], atol=2e-5)
    np.testing.assert_allclose(logits[row], oracle.decode(expected, mask, decoder[row]), atol=1e-4)


def test_only_tokens_under_the_mask_are_seen():
  config, params, encoder, decoder = random_model(1)
  mask = (encoder > 0).at[0, 3:].set(False)
  _, logits = run(config, params, encoder, decoder, mask)
  _, replaced = run(config, params, jnp.where(mask, encoder, 7), decoder, mask)
  _, unmasked = run(config, params, encoder, decoder, encoder > 0)
  np.testing.assert_array_equal(logits, replaced)
  assert np.abs(logits - unmasked)[0].max() > 0.1


def test_more_encoder_padding_changes_nothing():
  config, params, encoder, decoder = random_model(2)
  _, logits = run(config, params, encoder, decoder)
  _, padded = run(config, params, jnp.pad(encoder, ((0, 0), (0, 23))), decoder)
  np.testing.assert_allclose(padded, logits, atol=ROUNDING)


def test_later_decoder_tokens_change_nothing_before_them():
  config, params, encoder, decoder = random_model(3)
  _, logits = run(config, params, encoder, decoder)
  _, changed = run(config, params, encoder, decoder.at[:, 7:].set(5))
  np.testing.assert_array_equal(changed[:, :7], logits[:, :7])
  assert np.abs(changed - logits)[:, 7:].max() > 0.1


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 12), (16, 128), (64, 256)])
def test_relative_position_bucket_equals_a_loop(bidirectional, buckets, max_distance):
  distances = np.arange(-600, 601, dtype=np.int32)
  expected = [bucket_by_counting(int(d), bidirectional, buckets, max_distance) for d in distances]
  found = jax.jit(lambda d: layers.relative_position_bucket(d, bidirectional, buckets, max_distance))(distances)
  assert found.tolist() == expected


# Against T5X.


def score_batch(logits, targets, weights):
  log_p = jax.nn.log_softmax(logits)
  return jnp.sum(jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0] * weights, axis=-1)


def assert_equals_t5x(config, params, reference):
  data = {key: reference[key] for key in reference if "/" not in key}
  encoded, logits = run(config, params, data["encoder_input_tokens"], data["decoder_input_tokens"])
  seen, live = data["encoder_input_tokens"] > 0, data["decoder_target_tokens"] > 0
  np.testing.assert_allclose(encoded[seen], data["encoded"][seen], atol=2e-5)
  np.testing.assert_allclose(logits[live], data["logits"][live], atol=1e-4)
  scores = score_batch(logits, data["decoder_target_tokens"], data["decoder_loss_weights"])
  np.testing.assert_allclose(scores, data["score_batch"], atol=5e-3)


def shared_model(name, **changes):
  config = json.loads((SHARED / "manifest.json").read_text())["configs"][name.removesuffix("_scan")]
  return t5.T5Config(**config | changes), from_t5x.load(SHARED / "checkpoints" / name)


def shifted_right(tokens):
  return jnp.pad(jnp.asarray(tokens), ((0, 0), (1, 0)))[:, :-1]


def test_small_checkpoint_of_t5x():
  config = t5.T5Config(512, 32, 2, 16, 1, 1, 64)
  described = jax.eval_shape(t5.T5(config).init, jax.random.key(0), jnp.ones((1, 1), int), jnp.ones((1, 1), int))
  params = from_t5x.load(SMALL, expected=described)
  with np.load(SMALL / "reference.npz") as reference:
    assert_equals_t5x(config, params, reference)
    # Greedy decoding, teacher forced: each token is the best after those before it.
    decodes = reference["greedy_t0/decodes"]
    _, logits = run(config, params, reference["encoder_input_tokens"], shifted_right(decodes))
    assert np.array_equal(np.where(decodes > 0, logits.argmax(-1), 0), decodes)


@shared
@pytest.mark.parametrize("name", ["target", "draft", "tied", "target_scan", "target_orbax", "draft_inline_norms"])
def test_shared_reference(name):
  model = name if name in ("tied", "target_scan") else name.split("_")[0]
  config, _ = shared_model(model)
  params = from_t5x.load(SHARED / "checkpoints" / name)
  with np.load(SHARED / "reference" / f"{name.split('_')[0]}.npz") as reference:
    assert_equals_t5x(config, params, reference)


@shared
def test_shared_reference_past_the_last_bucket():
  config, params = shared_model("target")
  with np.load(SHARED / "reference" / "target_long.npz") as long:
    targets = jnp.asarray(long["decoder_target_tokens"])
    logits = np.asarray(run(config, params, long["encoder_input_tokens"], shifted_right(targets))[1])
    np.testing.assert_allclose(logits[:, long["positions"]], long["logits"], atol=1e-4)
    np.testing.assert_allclose(jax.nn.logsumexp(logits, -1), long["logsumexp"], atol=1e-4)
    chosen = np.take_along_axis(logits, np.asarray(targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(chosen, long["target_token_logits"], atol=1e-4)
    best = np.take_along_axis(logits, long["argmax"][..., None], -1)[..., 0]
    np.testing.assert_allclose(best, logits.max(-1), atol=2e-4)  # The same token, or a tie within the tolerance.


@shared
@pytest.mark.parametrize("model", ["target", "draft"])
def test_shared_trained_pair(model):
  config, params = shared_model(f"trained_{model}")
  with np.load(SHARED / "reference" / "trained.npz") as data:
    encoder = data["encoder_input_tokens"]
    _, logits = run(config, params, encoder, data["decoder_input_tokens"])
    scores = score_batch(logits, data["decoder_target_tokens"], data["decoder_loss_weights"])
    np.testing.assert_allclose(scores, data[f"{model}/score_batch"], atol=5e-3)
    path, live = data["target/greedy/decodes"], data["path_live"]
    logits = np.asarray(run(config, params, encoder, shifted_right(path))[1])
    np.testing.assert_allclose(logits[live], data[f"{model}/path_logits"][live], atol=1e-4)
    if model == "target":
      assert np.array_equal(logits.argmax(-1)[live], path[live])


@shared
def test_shared_bfloat16_activations():
  config, params = shared_model("target", dtype="bfloat16")
  folder = SHARED / "reference"
  with np.load(folder / "target.npz") as tokens, np.load(folder / "target_bfloat16.npz") as rounded:
    _, logits = run(config, params, tokens["encoder_input_tokens"], tokens["decoder_input_tokens"])
    assert logits.dtype == jnp.float32
    error = np.abs(logits - rounded["logits"])[tokens["decoder_target_tokens"] > 0]
    assert error.max() < 0.3 and error.mean() < 0.05


def described(config):
  tokens = jnp.ones((1, 1), jnp.int32)
  return names.flatten(jax.eval_shape(t5.T5(config).init, jax.random.key(0), tokens, tokens)["params"])


@shared
@pytest.mark.parametrize("name", ["target", "draft", "tied", "trained_target", "trained_draft"])
def test_shared_fixture_names_and_shapes(name):
  entry = json.loads((SHARED / "params" / "fixtures.json").read_text())[name]
  found = {key: list(leaf.shape) for key, leaf in described(t5.T5Config(**entry["config"])).items()}
  assert found == {param["name"]: param["shape"] for param in entry["params"]}


@shared
@pytest.mark.parametrize("name", [f"t5_1_1_{size}" for size in "small base large xl xxl".split()] + ["t5_1_0_small"])
def test_shared_public_sizes(name):
  entry = json.loads((SHARED / "params" / "public_t5.json").read_text())[name]
  expected = {}
  for param in entry["params"]:
    for i in range(param.get("layers", 1)):
      expected[param["name"].replace("layers_*", f"layers_{i}")] = param["shape"]
  found = {key: list(leaf.shape) for key, leaf in described(t5.T5Config(**entry["config"])).items()}
  assert found == expected
  assert sum(math.prod(shape) for shape in found.values()) == entry["num_parameters"]


@pytest.mark.parametrize(
    "field",
    [
        {"dtype": "int32"},
        {"dtype": "bf16"},
        {"relative_attention_num_buckets": 2},
        {"relative_attention_max_distance": 16},
        {"relative_attention_max_distance": 8},
    ],
    ids=str,
)
def test_choices_that_no_network_can_be_made_of(field):
  """A maximum distance of half the buckets gave bucket -2147483632, which is some row of the table, in silence."""
  with pytest.raises(ValueError, match=f"T5Config.{next(iter(field))}: expected"):
    t5.T5Config(vocab_size=4, **field)
