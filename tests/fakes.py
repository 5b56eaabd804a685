"""Models whose right answer is known.

`table_model` looks its next-token logits up by the decoder prefix, so that the
law of any output can be enumerated (`oracles`). `t5_pair` is a tiny random T5
and a draft that often agrees with it. `table_run` and `standard_run` decode
with one step and one set of shapes each, which compile once in a process.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec import loop
from specdec import recipes
from specdec.acceptance.rejection import chain_verdict
from specdec.acceptance.rejection import rejection
from specdec.adapters import flax_model
from specdec.drafters.model import model_drafter
from specdec.interfaces import LanguageModel, Law, Params, Prompt, Scores, Step
from specdec.networks.t5 import T5, T5Config
from specdec.probability import transforms
from specdec.step import speculative_step
from specdec.trees import topology
from tests import oracles

EOS = oracles.EOS


# --- A model that is a table -------------------------------------------------


class TableState(NamedTuple):
  """Of each row: its table, the number of the prefix that ends at each slot, and the cache's lengths."""

  row: Any  # [B]
  numbers: Any  # [B, L]
  length: Any  # [B]
  pending: Any  # []


def child(number, token, vocab: int, entries: int):
  """The number of a prefix with one token more; the tree of prefixes is numbered as a heap."""
  return (number * vocab + token + 1) % entries


def prefix_number(tokens: Sequence[int], vocab: int, entries: int) -> int:
  """The number of the prefix BOS, tokens."""
  number = 0
  for token in tokens:
    number = child(number, token, vocab, entries)
  return number


def heap_size(vocab: int, depth: int) -> int:
  """Prefixes of at most `depth` tokens: with that many entries, no two of them share one."""
  return sum(vocab**i for i in range(depth + 1))


def table_model() -> LanguageModel:
  """A model whose params are a table [K, entries, V] of logits.

  The first encoder token says which of the K tables a request uses; a prefix
  BOS, t1, t2, … uses the entry `prefix_number([t1, t2, …])`.
  """

  def init(table, prompt: Prompt, buffer_length: int) -> TableState:
    batch, width = prompt.prefix.shape
    zeros = jnp.zeros((batch, buffer_length), jnp.int32)
    state = TableState(prompt.tokens[:, 0], zeros, jnp.zeros((batch,), jnp.int32), jnp.int32(0))
    for i in range(width - 1):
      _, state = _advance(table, state, prompt.prefix[:, i : i + 1], topology.chain(1))
    return commit(state, None, prompt.prefix_length - 1)

  def score(table, state: TableState, tokens, tree):
    return _advance(table, state, tokens, tree)

  def commit(state: TableState, path, count) -> TableState:
    if path is not None:
      moved = jnp.take_along_axis(state.numbers, state.length[:, None] + path, axis=1)
      state = state._replace(numbers=_write(state.numbers, moved, state.length))
    return state._replace(length=state.length + count, pending=jnp.int32(0))

  return LanguageModel(init, score, commit)


def _write(buffer, new, start):
  return jax.vmap(lambda b, n, s: jax.lax.dynamic_update_slice_in_dim(b, n, s, 0))(buffer, new, start)


def _advance(table, state: TableState, tokens, tree):
  batch, number_of_nodes = tokens.shape
  _, entries, vocab = table.shape
  first = state.length + state.pending
  base = first if tree.columns is None else state.length  # The slot that a parent of 0 stands for.
  parents = tree.per_row(batch).parents
  numbers, row = state.numbers, jnp.arange(batch)
  for node in range(number_of_nodes):
    above = jnp.where(parents[:, node] < 0, base - 1, base + parents[:, node])
    number = child(numbers[row, jnp.maximum(above, 0)], tokens[:, node], vocab, entries)
    number = jnp.where(above < 0, 0, number)  # BOS
    numbers = _write(numbers, number[:, None], first + node)
  mine = jax.vmap(lambda n, s: jax.lax.dynamic_slice_in_dim(n, s, number_of_nodes))(numbers, first)
  logits = table[state.row[:, None], mine]
  state = state._replace(numbers=numbers, pending=state.pending + number_of_nodes)
  return Scores(logits, jnp.zeros((*tokens.shape, 1))), state


def random_tables(seed: int, vocab: int, depth: int, scale: float = 1.5, noise: float = 1.0, tables: int = 1):
  """A target's and a draft's table [tables, entries, V]: the draft's is the target's with noise."""
  generator = np.random.default_rng(seed)
  shape = (tables, heap_size(vocab, depth), vocab)
  target = generator.normal(size=shape) * scale
  draft = target + generator.normal(size=shape) * noise
  return np.float32(target), np.float32(draft)


def table_law(table: np.ndarray, **settings) -> Callable[[tuple], np.ndarray]:
  """`next_law` of one table [entries, V] under sampling settings."""
  entries, vocab = table.shape
  return lambda tokens: oracles.numpy_law(table[prefix_number(tokens, vocab, entries)], **settings)


def settings(batch: int, **values) -> transforms.Sampling:
  """`transforms.sampling`, under a name that does not hide a module."""
  return transforms.sampling(batch, **values)


def prompts(batch: int, first_token=0, encoder_length: int = 1, prefix=((0,),), prefix_length=None) -> Prompt:
  """[B] requests without padding: `first_token` a row, then twos; `prefix` [1 or B, P]."""
  tokens = np.full((batch, encoder_length), 2, np.int32)
  tokens[:, 0] = first_token
  prefix = np.broadcast_to(np.asarray(prefix, np.int32), (batch, len(prefix[0])))
  if prefix_length is None:
    prefix_length = np.full(batch, prefix.shape[1])
  return Prompt(
      jnp.asarray(tokens), jnp.ones(tokens.shape, bool), jnp.asarray(prefix), jnp.asarray(prefix_length, jnp.int32)
  )


# --- Tiny T5s ----------------------------------------------------------------


class T5Pair(NamedTuple):
  """A T5, and a draft of fewer layers and noisy weights."""

  module: T5
  variables: Any  # T5X's names
  target: LanguageModel
  target_params: Any
  draft_module: T5
  draft_variables: Any
  draft: LanguageModel
  draft_params: Any


def t5_variables(module: T5, seed: int) -> dict:
  """Random parameters under T5X's names: laws that are peaked, and positions and attention that matter."""
  one = jnp.ones((1, 2), jnp.int32)
  shapes = jax.eval_shape(module.init, jax.random.key(0), one, one)["params"]
  generator = np.random.default_rng(seed)

  def draw(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    values = np.float32(generator.normal(size=leaf.shape))
    if name.endswith("scale"):
      return 1 + 0.1 * values
    if name.endswith("kernel"):
      scale = 2.0 if "logits_dense" in name else 0.5 if "query" in name else 1.0
      return values * np.float32(scale / np.sqrt(leaf.shape[0]))
    return values * np.float32(0.5 if "embedding" in name else 1.5)

  return jax.tree_util.tree_map_with_path(draw, shapes)


def t5_pair(vocab: int = 16, seed: int = 12, noise: float = 0.1, vocab_size: int | None = None) -> T5Pair:
  """`vocab` logits, of which `vocab_size` are pieces; the draft lacks the target's second, weaker layer."""
  config = dict(vocab_size=vocab, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, mlp_dim=32)
  module = T5(T5Config(**config, num_decoder_layers=2))
  draft_module = T5(T5Config(**config, num_decoder_layers=1))
  variables = t5_variables(module, seed)
  weak = variables["decoder"]["layers_1"]
  for kernel in (weak["self_attention"]["out"], weak["encoder_decoder_attention"]["out"], weak["mlp"]["wo"]):
    kernel["kernel"] *= np.float32(0.3)
  decoder = {name: part for name, part in variables["decoder"].items() if name != "layers_1"}
  generator = np.random.default_rng(seed + 1)
  draft_variables = jax.tree.map(
      lambda x: x + np.float32(noise * x.std() * generator.normal(size=x.shape)), {**variables, "decoder": decoder}
  )
  return T5Pair(
      module, variables, flax_model.t5_model(module, vocab_size), flax_model.prepare(module, variables),
      draft_module, draft_variables,
      flax_model.t5_model(draft_module, vocab_size), flax_model.prepare(draft_module, draft_variables),
  )  # fmt: skip


def nan_embedding(module: T5, variables, token: int):
  """The parameters, laid out for decoding, with NaN for the embedding of one token."""
  embedding = np.array(variables["token_embedder"]["embedding"])
  embedding[token] = np.nan
  return flax_model.prepare(module, {**variables, "token_embedder": {"embedding": embedding}})


def encoder_rows(batch: int, length: int, vocab: int, seed: int = 0) -> np.ndarray:
  """[B, S] random pieces, no special ones among them."""
  return np.random.default_rng(seed).integers(2, vocab, (batch, length)).astype(np.int32)


# --- One pair for many tests: the same step and shapes compile once in a process -----


STANDARD = dict(batch=8, encoder=8, prefix=4, new_tokens=20, gamma=3)


@functools.cache
def standard_pair() -> T5Pair:
  """The pair that tests share. Greedy outputs end at different lengths, and drafts are accepted 0 to 3 at a time."""
  return t5_pair()


@functools.cache
def standard_step(method: str = "leviathan") -> Step:
  """`leviathan` or `autoregressive` of the standard pair."""
  pair = standard_pair()
  if method == "autoregressive":
    return recipes.autoregressive(pair.target)
  return recipes.leviathan(pair.target, pair.draft, STANDARD["gamma"])


def standard_prompt(seed: int = 0) -> Prompt:
  """8 requests of 8 encoder tokens; the decoder's prefix is BOS alone, in a buffer of 4."""
  batch, width = STANDARD["batch"], STANDARD["prefix"]
  tokens = encoder_rows(batch, STANDARD["encoder"], 16, seed)
  prefix = np.tile(np.int32([0] + [5] * (width - 1)), (batch, 1))  # What stands beyond the prefix is not read.
  return Prompt(jnp.asarray(tokens), jnp.ones(tokens.shape, bool), jnp.asarray(prefix), jnp.ones(batch, jnp.int32))


def standard_params() -> Params:
  """Of target and draft."""
  return Params(standard_pair().target_params, standard_pair().draft_params)


def standard_run(prompt: Prompt, key, step: Step | None = None, params: Params | None = None, limit=None, **setting):
  """`loop.generate` with the standard step, shapes and structure of arguments."""
  batch = prompt.prefix.shape[0]
  new_tokens = STANDARD["new_tokens"]
  limit = jnp.full((batch,), new_tokens, jnp.int32) if limit is None else jnp.asarray(limit, jnp.int32)
  setting.setdefault("banned", np.zeros(16, bool))
  return loop.generate(
      step or standard_step(), loop.row_keys(key, batch), params or standard_params(), prompt,
      settings(batch, **setting), new_tokens, limit,
  )  # fmt: skip


def row_of(tree, row: int):
  """One row of every array, as a batch of one."""
  return jax.tree.map(lambda x: x[row : row + 1], tree)


@functools.cache
def table_step(gamma: int, eos: int = EOS) -> Step:
  """`leviathan` of two tables; 0 is the plain decoder."""
  model = table_model()
  return recipes.leviathan(model, model, gamma, eos) if gamma else recipes.autoregressive(model, eos)


def table_params(target, draft=None) -> Params:
  """Tables [entries, V] or [K, entries, V], on the device."""
  as_tables = lambda table: jnp.asarray(table if np.ndim(table) == 3 else table[None])
  return Params(as_tables(target), as_tables(target if draft is None else draft))


TABLES, ENTRIES, VOCAB = 16, 997, 4  # Prefixes share entries; the logits stay a function of the prefix.
TABLE_ROWS, TABLE_PREFIX, TABLE_CAP = 64, 4, 12


def noisy_tables(seed: int, noise: float = 1.0, scale: float = 1.5):
  """16 tables of a target, and of a draft that is near it."""
  generator = np.random.default_rng(seed)
  target = generator.normal(size=(TABLES, ENTRIES, VOCAB)) * scale
  return np.float32(target), np.float32(target + noise * generator.normal(size=target.shape))


def same_tables(logits):
  """16 tables that say [V] after every prefix."""
  return np.broadcast_to(np.float32(logits), (TABLES, ENTRIES, VOCAB))


def table_run(
    target, draft=None, gamma=3, eos=EOS, key=0, rows=None, prefix=((0,) * TABLE_PREFIX,), prefix_length=1,
    limit=TABLE_CAP, **setting,
):  # fmt: skip
  """`loop.generate` over 64 rows and their tables; row b uses table b % 16 unless `rows` says otherwise.

  Every setting is always an array, so that one gamma and EOS compile once in a process.
  """
  many = lambda x: np.resize(x, TABLE_ROWS)
  rows = many(np.arange(TABLES) if rows is None else rows)
  prompt = prompts(TABLE_ROWS, rows, 1, prefix, many(prefix_length))
  every = dict(temperature=0.0, min_length=0, repetition_penalty=1.0, banned=np.zeros(VOCAB, bool)) | setting
  key = loop.row_keys(jax.random.key(key) if isinstance(key, int) else key, TABLE_ROWS)
  return loop.generate(
      table_step(gamma, eos), key, table_params(target, draft), prompt, settings(TABLE_ROWS, **every), TABLE_CAP,
      jnp.asarray(many(limit), jnp.int32), trace=True,
  )  # fmt: skip


def greedy_walk(table, cap, eos=EOS, prefix=(), **setting) -> tuple:
  """The plain greedy output of one table [entries, V], in NumPy; `prefix` follows BOS."""
  out = []
  while len(out) < cap and (not out or out[-1] != eos):
    entry = table[prefix_number([*prefix, *out], table.shape[1], len(table))]
    out.append(int(np.argmax(oracles.numpy_process(entry, [0, *prefix, *out], len(out), eos, **setting))))
  return tuple(out)


# --- Steps with other parts --------------------------------------------------------


def temperature_transform(logits, tokens, tree, context) -> Law:
  """The law at a temperature, and no masks: a transform that compiles fast."""
  logits = logits.astype(jnp.float32)
  temperature = context.sampling.temperature[:, None, None]
  greedy = jnp.log(jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1]))
  sampled = jax.nn.log_softmax(logits / jnp.maximum(temperature, oracles.GREEDY))
  return Law(jnp.where(temperature <= oracles.GREEDY, greedy, sampled), logits)


def simple_step(pair: T5Pair, gamma: int, rule=rejection) -> Step:
  """A step of a T5 pair without masks and without an EOS."""
  drafter = model_drafter(pair.draft, gamma, temperature_transform)
  return speculative_step(pair.target, drafter, rule, temperature_transform, -1)


def accept_counts(accepted):
  """A rule that accepts `accepted` [B] tokens, whatever they are, and corrects with the target's best."""

  def rule(key, draft, law, sampling):
    wanted = jnp.asarray(accepted)[:, None]
    best = jnp.argmax(law.log_p, axis=-1).astype(jnp.int32)
    next_token = jnp.take_along_axis(best, wanted, axis=1)[:, 0]
    return chain_verdict(jnp.arange(draft.tokens.shape[1])[None] < wanted, next_token, jnp.zeros(draft.tokens.shape))

  return rule


@functools.cache
def poisoned_step() -> Step:
  """The standard step, started each time from caches whose uncommitted slots hold NaN."""
  step = standard_step()

  def poison(cache):
    beyond = (jnp.arange(cache.buffer_length)[None] >= cache.length[:, None])[:, None, :, None]
    spoil = lambda buffers: tuple(jnp.where(beyond, jnp.nan, buffer) for buffer in buffers)
    return cache._replace(keys=spoil(cache.keys), values=spoil(cache.values))

  def run(key, params, state):
    target = state.target._replace(cache=poison(state.target.cache))
    model = state.draft.model._replace(cache=poison(state.draft.model.cache))
    return step.step(key, params, state._replace(target=target, draft=state.draft._replace(model=model)))

  return Step(step.init, run, step.size)


def near_tie(target, prompt: Prompt, row: int, tokens, place: int) -> float:
  """The gap of a `models.Model`'s two best logits where `tokens` [L] of `row` were chosen at `place`."""
  length = len(tokens)
  one = Prompt(*(field[row : row + 1] for field in prompt))
  inputs = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.asarray(tokens[:-1])])[None]
  state = target.model.init(target.params, one, length)
  scores, _ = target.model.score(target.params, state, inputs, topology.chain(length))
  best = jax.lax.top_k(scores.logits[0, place], 2)[0]
  return float(best[0] - best[1])
