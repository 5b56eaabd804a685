"""The decoding loop over any `Step`: one jitted program, from prompt to tokens."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.interfaces import Params, Prompt, Step, StepInfo

Array = jax.Array


class Statistics(NamedTuple):
  """Sums over the steps of each row.

  With G drafted tokens a step: `committed` is the number of tokens of the
  output; `accepted + steps - committed` is 1 if the last step was cut within
  its draft (by EOS or the limit) or ended not finite, else 0; `histogram` sums
  to `steps`, and weighted by its index to `accepted`.

  Attributes:
    steps: [B] int32, calls of the target.
    drafted: [B] int32.
    accepted: [B] int32, drafted tokens that were committed.
    committed: [B] int32.
    histogram: [B, G + 1] int32, steps by accepted tokens.
    visited: [B, G] int32, times that the prefix of this place was committed.
    acceptance: [B, G] float32, sum over those of the acceptance probability.
    log_prob: [B] float32, of the output under the target at temperature 1.
    drawn_log_prob: [B] float32, of the output in the law it was drawn from, after
      every transform: 0 for a greedy row.
  """

  steps: Array
  drafted: Array
  accepted: Array
  committed: Array
  histogram: Array
  visited: Array
  acceptance: Array
  log_prob: Array
  drawn_log_prob: Array


class Trace(NamedTuple):
  """Every step of every row, in order; rows past their `steps` are zero.

  Attributes:
    draft: [B, T, G] int32, proposals.
    parents: [B, T, G] int32, of their nodes, see `StepInfo`.
    tokens: [B, T, G + 1] int32, what was committed, then anything.
    accepted: [B, T] int32.
    committed: [B, T] int32.
  """

  draft: Array
  parents: Array
  tokens: Array
  accepted: Array
  committed: Array


class Output(NamedTuple):
  """The result of `generate`.

  Attributes:
    tokens: [B, max_new_tokens] int32, new tokens (the prefix is not among
      them), EOS included, then 0.
    lengths: [B] int32, how many of them there are.
    stop: [B] int32, `StopCode`.
    statistics: of each row.
    trace: of each row, or None.
  """

  tokens: Array
  lengths: Array
  stop: Array
  statistics: Statistics
  trace: Trace | None


def row_keys(key: Array, batch: int) -> Array:
  """One key a row: `key` itself if it is [B], else folded with the row's number."""
  if key.ndim == 1:
    return key
  return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch))


def _accumulate(sums: Statistics, info: StepInfo, running: Array) -> Statistics:
  one = running.astype(jnp.int32)
  bins = jnp.arange(sums.histogram.shape[1])[None, :]
  return Statistics(
      steps=sums.steps + one,
      drafted=sums.drafted + info.drafted,
      accepted=sums.accepted + info.accepted,
      committed=sums.committed + info.committed,
      histogram=sums.histogram + ((info.accepted[:, None] == bins) & running[:, None]),
      visited=sums.visited + info.visited,
      acceptance=sums.acceptance + jnp.where(info.visited, info.acceptance, 0.0),
      log_prob=sums.log_prob + info.log_prob,
      drawn_log_prob=sums.drawn_log_prob + info.drawn_log_prob,
  )


def _record(trace: Trace, info: StepInfo, running: Array, index: Array) -> Trace:
  def put(buffer, value):
    value = jnp.where(running.reshape(-1, *[1] * (value.ndim - 1)), value, 0)
    return jax.lax.dynamic_update_slice_in_dim(buffer, value[:, None].astype(buffer.dtype), index, 1)

  return Trace(
      put(trace.draft, info.draft),
      put(trace.parents, info.parents),
      put(trace.tokens, info.tokens),
      put(trace.accepted, info.accepted),
      put(trace.committed, info.committed),
  )


@functools.partial(jax.jit, static_argnames=("step", "max_new_tokens", "trace"))
def generate(
    step: Step,
    key: Array,
    params: Params,
    prompt: Prompt,
    sampling: Any,
    max_new_tokens: int,
    limit: Array | None = None,
    trace: bool = False,
) -> Output:
  """Decodes a batch to its end.

  One row is one request: its tokens depend on its key, prompt and settings
  alone. Compiled once for a step and the shapes; keys, settings and limits are
  traced.

  Args:
    step: from `recipes` or `step.speculative_step`.
    key: one key, or [B] of them; a row alone with its key gives the same tokens.
    params: of target and drafter.
    prompt: [B] requests.
    sampling: settings of each row (`probability.transforms.sampling`).
    max_new_tokens: size of the output; no row gets more.
    limit: [B] int32, new tokens allowed each row; None is `max_new_tokens`.
    trace: also return every step.

  Raises:
    ValueError: max_new_tokens is below 1, or the shapes disagree.
  """
  batch, prefix_width = prompt.prefix.shape
  if max_new_tokens < 1:
    raise ValueError(f"max_new_tokens: expected at least 1, found {max_new_tokens}.")
  for name, array in (("prompt.tokens", prompt.tokens), ("prompt.mask", prompt.mask), ("temperature", sampling.temperature)):
    if array.shape[0] != batch:
      raise ValueError(f"{name}: expected {batch} rows as in prompt.prefix, found {array.shape[0]}.")
  expected = {"prompt.mask": prompt.tokens.shape, "prompt.prefix_length": (batch,), "limit": (batch,)}
  for name, array in (("prompt.mask", prompt.mask), ("prompt.prefix_length", prompt.prefix_length), ("limit", limit)):
    if array is not None and jnp.shape(array) != expected[name]:
      raise ValueError(f"{name}: expected shape {expected[name]}, found {jnp.shape(array)}.")
  for name, array in (("prompt.tokens", prompt.tokens), ("prompt.prefix", prompt.prefix),
                      ("prompt.prefix_length", prompt.prefix_length), ("limit", limit)):  # fmt: skip
    if array is not None and not jnp.issubdtype(jnp.result_type(array), jnp.integer):
      raise ValueError(f"{name}: expected integers, found {jnp.result_type(array)}.")
  int32 = lambda array: None if array is None else jnp.asarray(array, jnp.int32)
  prompt = Prompt(int32(prompt.tokens), prompt.mask, int32(prompt.prefix), int32(prompt.prefix_length))
  limit = int32(limit)
  if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.shape not in ((), (batch,)):
    raise ValueError(f"key: expected one of jax.random.key or {batch} of them, found {key.dtype} of shape {key.shape}.")
  keys = row_keys(key, batch)
  cap = jnp.full((batch,), max_new_tokens, jnp.int32) if limit is None else jnp.minimum(limit, max_new_tokens)
  state = step.init(params, prompt, sampling, prompt.prefix_length + cap, prefix_width + max_new_tokens)
  zeros = lambda *shape: jnp.zeros((batch, *shape), jnp.int32)
  size = step.size
  sums = Statistics(
      zeros(), zeros(), zeros(), zeros(), zeros(size + 1), zeros(size),
      zeros(size).astype(jnp.float32), zeros().astype(jnp.float32), zeros().astype(jnp.float32),
  )  # fmt: skip
  steps = max_new_tokens  # Every step of a running row commits a token or ends it.
  record = None
  if trace:
    record = Trace(*[zeros(steps, size)] * 2, zeros(steps, size + 1), zeros(steps), zeros(steps))

  def body(carry):
    index, state, sums, record = carry
    running = state.running
    step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, index)
    state, info = step.step(step_keys, params, state)
    sums = _accumulate(sums, info, running)
    if record is not None:
      record = _record(record, info, running, index)
    return index + 1, state, sums, record

  carry = (jnp.int32(0), state, sums, record)
  _, state, sums, record = jax.lax.while_loop(lambda carry: carry[1].running.any(), body, carry)
  new = lambda row, start: jax.lax.dynamic_slice_in_dim(row, start, max_new_tokens)
  tokens = jax.vmap(new)(state.tokens, state.prefix_length)
  return Output(tokens, state.length - state.prefix_length, state.stop, sums, record)
