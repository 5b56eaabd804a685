"""A smaller model that drafts a token tree, by any construction of `trees`.

One cache serves all branches: the draft scores nodes as pending tokens, each of
which sees its ancestors among them through the mask, so that no prefix is
copied. As in `drafters.model` the cache may lack the last accepted token, and
every proposal begins by scoring two tokens.

Dimensions: B batch, N drafted nodes, K candidates a node, W nodes scored a
call, C calls, V vocabulary.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.drafters.model import score_last
from specdec.interfaces import Context, Draft, Drafter, LanguageModel, Law, Prompt, Transform, Verdict
from specdec.probability import sampling as draw
from specdec.probability.transforms import GREEDY_TEMPERATURE
from specdec.trees import children as children_lib
from specdec.trees import growth as growth_lib
from specdec.trees import topology
from specdec.trees.growth import Growth, NO_NODE, NO_TOKEN, Tree

Array = jax.Array

# Folded into the key of a proposal for what is drawn beyond the first child of a node; `draw.uniforms` counts from 0.
_SIBLINGS = 0x5EED

DRAFT_TEMPERATURE = 0.6  # DySpec's draft is always drawn at it (section 5.1); here it values the trees of greedy rows.


_PIECE = 2  # Nodes of the frontier whose children are drawn at a time.


class TreeDraftState(NamedTuple):
  """State of the draft model, how many tokens its cache holds [B], and where it holds the nodes of the tree [B, N + 1]."""

  model: Any
  length: Array
  row: Array


class _Tables(NamedTuple):
  """What the draft holds and said."""

  node: Array  # [B, C W], the node in each pending slot, `NO_NODE` where none
  log_q: Array  # [B, N, V], the law after each node that was scored; the last node is a leaf
  line: Array  # [B, N + 1, N + 1] bool, of each node that was scored its ancestors and itself


def siblings_noise(keys: Array, node: Array, shape: tuple[int, ...], gumbel: bool) -> Array:
  """What the children of `node` [B, W] beyond the first are drawn with: [B, W, *shape], Gumbel or uniform.

  Of the row's key and the node's number alone, so that neither the batch nor
  the grouping of calls changes a draw.
  """
  sample = jax.random.gumbel if gumbel else jax.random.uniform

  def one(key, number):
    return sample(jax.random.fold_in(jax.random.fold_in(key, _SIBLINGS), number), shape)

  return jax.vmap(jax.vmap(one, in_axes=(None, 0)))(keys, node)


def tree_drafter(
    model: LanguageModel, growth: Growth, transform: Transform, draft_temperature: float = DRAFT_TEMPERATURE
) -> Drafter:
  """Drafts a tree with `model`, by layers or by the most valuable nodes, as the construction says.

  Sampled rows draw children from the draft's law. Greedy rows, whose law is a
  point mass, take the most likely children in order; the acceptance rules do
  not read their q.

  Args:
    model: the draft; its vocabulary is the target's.
    growth: the construction, such as `trees.dyspec.dyspec_growth(64)`.
    transform: the target's own transform, so that q is what is sampled from.
    draft_temperature: at which a greedy row's draft probabilities value places
      of the tree. Without influence on fixed trees.

  Raises:
    ValueError: draft_temperature is not positive.

  Source: Xiong et al. 2024 (DySpec), Algorithms 1 and 2; Chen et al. 2024 (Sequoia); Miao et al. 2024 (SpecInfer).
  """
  if not draft_temperature > 0:
    raise ValueError(f"draft_temperature: expected a number above 0, found {draft_temperature}.")
  grow = jax.vmap(growth.grow, in_axes=(0, None, 0))
  count, fixed = growth.children, growth.topology

  def init(params: Any, prompt: Prompt, buffer_length: int) -> TreeDraftState:
    batch = prompt.prefix.shape[0]
    row = jnp.full((batch, growth.size + 1), growth_lib.UNSCORED, jnp.int32)
    return TreeDraftState(model.init(params, prompt, buffer_length + growth.slots), prompt.prefix_length - 1, row)

  def candidates(key: Array, uniforms: Array, node: Array, law: Law, context: Context) -> tuple[Array, Array]:
    """Children [B, W, K] of `node` [B, W] in order, and their chances; drawn for sampled rows."""
    greedy = context.sampling.temperature <= GREEDY_TEMPERATURE

    def best():
      tokens = children_lib.most_likely(law.logits, count, growth.fills)
      scaled = law.logits / draft_temperature
      log_q = children_lib.at_tokens(scaled, tokens) - jax.nn.logsumexp(scaled, axis=-1, keepdims=True)
      return tokens, children_lib.chances(tokens, log_q)

    def sampled():
      uniform = jnp.take_along_axis(uniforms, node, axis=1)
      shape = (count - 1,) if growth.replacement else law.log_p.shape[-1:]
      noise = None if count == 1 else siblings_noise(key, node, shape, not growth.replacement)
      if growth.replacement:
        tokens = children_lib.with_replacement(uniform, noise, law.log_p, count)
      else:
        tokens = children_lib.without_replacement(uniform, noise, law.log_p, count, growth.fills)
      return tokens, children_lib.chances(tokens, children_lib.at_tokens(law.log_p, tokens), growth.replacement)

    def mixed():
      return jax.tree.map(lambda a, b: jnp.where(greedy[:, None, None], a, b), best(), sampled())

    # Two conditions: neither kind of batch pays for the other.
    drawn = lambda: jax.lax.cond(jnp.any(greedy), mixed, sampled)
    return jax.lax.cond(jnp.all(greedy), best, drawn)

  def frontier_candidates(key: Array, uniforms: Array, node: Array, law: Law, context: Context, frontier: Array):
    """`candidates` of the first nodes up to the last that is there: a deep tree rarely fills its frontier."""
    batch, width = node.shape
    piece = min(_PIECE, width)

    def draw_piece(i, found):
      part = lambda x: jax.lax.dynamic_slice_in_dim(x, i * piece, piece, 1)  # The last one may begin earlier.
      new = candidates(key, uniforms, part(node), Law(part(law.log_p), part(law.logits)), context)
      return jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, i * piece, 1), found, new)

    needed = jnp.where(frontier != NO_NODE, 1 + jnp.arange(width), 0).max()
    nothing = jnp.full((batch, width, count), NO_TOKEN, jnp.int32), jnp.zeros((batch, width, count), jnp.float32)
    return jax.lax.fori_loop(0, -(-needed // piece), draw_piece, nothing)

  def propose(key: Array, params: Any, state: TreeDraftState, context: Context) -> tuple[Draft, TreeDraftState]:
    batch = key.shape[0]
    uniforms = draw.uniforms(key, growth.size)
    logits, last, new, model_state = score_last(model, params, state.model, state.length, context)
    law = transform(logits, last, topology.chain(1), context)
    root = jnp.zeros((batch, 1), jnp.int32)
    tokens, chance = candidates(key, uniforms, root, law, context)

    put = lambda table, value, at: jax.lax.dynamic_update_slice_in_dim(table, value.astype(table.dtype), at, 1)
    scatter = jax.vmap(lambda table, node, value: table.at[node].set(value, mode="drop"))
    nodes = jnp.arange(growth.size + 1)
    tree = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape)), growth_lib.seed(growth))
    tree = tree._replace(candidates=put(tree.candidates, tokens, 0), chance=put(tree.chance, chance, 0))
    tables = _Tables(
        node=jnp.full((batch, growth.slots), NO_NODE, jnp.int32),
        log_q=put(jnp.zeros((batch, growth.size, law.log_p.shape[-1]), jnp.float32), law.log_p, 0),
        line=jnp.broadcast_to(jnp.eye(growth.size + 1, dtype=bool), (batch, growth.size + 1, growth.size + 1)),
    )
    first = jnp.where(jnp.arange(growth.width) == 0, 0, NO_NODE).astype(jnp.int32)
    tree, frontier = grow(tree, jnp.int32(0), jnp.broadcast_to(first, (batch, growth.width)))

    def call(carry):
      index, model_state, tree, tables, frontier = carry
      at = 1 + index * growth.width
      node = jnp.maximum(frontier, 0)
      # A node's parent was scored before it, so that its line is known.
      parent = jnp.maximum(jnp.take_along_axis(tree.parents, node, axis=1), 0)
      line = jnp.take_along_axis(tables.line, parent[:, :, None], axis=1) | (node[:, :, None] == nodes)
      place = jnp.where(frontier == NO_NODE, growth.size + 1, frontier)
      tables = tables._replace(node=put(tables.node, frontier, at - 1), line=scatter(tables.line, place, line))
      block, columns = _window(tree, tables.node, frontier, line)
      tokens = jnp.take_along_axis(tree.tokens, node, axis=1)
      # The root is committed: for the draft the first uncommitted position is that of depth 1.
      below = dataclasses.replace(block, depth=block.depth - 1, columns=block.columns - 1)
      scores, model_state = model.score(params, model_state, tokens, below)
      law = transform(scores.logits, columns, block, context)
      # The last node is a leaf; the clip is for places without a node.
      found, chance = frontier_candidates(key, uniforms, jnp.minimum(node, growth.size - 1), law, context, frontier)
      tables = tables._replace(log_q=scatter(tables.log_q, place, law.log_p))
      tree = tree._replace(candidates=put(tree.candidates, found, at), chance=put(tree.chance, chance, at))
      tree = jax.vmap(growth_lib.mark_scored, in_axes=(0, 0, None))(tree, frontier, index)
      tree, after = grow(tree, index + 1, frontier)
      return index + 1, model_state, tree, tables, after

    def more(carry):
      return (carry[0] < growth.calls) & jnp.any(carry[4] != NO_NODE)

    if growth.calls:
      carry = (jnp.int32(0), model_state, tree, tables, frontier)
      _, model_state, tree, tables, _ = jax.lax.while_loop(more, call, carry)
    block = topology.from_parent_arrays(tree.parents) if fixed is None else fixed
    return Draft(tree.tokens[:, 1:], block, tables.log_q), TreeDraftState(model_state, state.length + new, tree.row)

  def observe(state: TreeDraftState, verdict: Verdict, committed: Array) -> TreeDraftState:
    row = jnp.take_along_axis(state.row, verdict.path, axis=1)
    place = jnp.arange(row.shape[1])[None, :]
    # Of the committed tokens the cache holds those of the path that were scored: all, or all but a leaf.
    scored = jnp.cumprod((row > 0) & (place < verdict.count[:, None]), axis=1).sum(axis=1)
    known = jnp.minimum(jnp.maximum(committed - 1, 0), scored)
    model_state = model.commit(state.model, jnp.maximum(row - 1, 0), known)
    return TreeDraftState(model_state, state.length + known, state.row)

  return Drafter(init, propose, observe, growth.size)


def _window(tree: Tree, slots: Array, frontier: Array, line: Array) -> tuple[topology.Topology, Array]:
  """The nodes `frontier` [B, W] as rows over the pending slots, and the slots' tokens.

  `slots` [B, S] are the nodes that they hold, `line` [B, W, N + 1] the ancestors of each row and itself.
  """
  node, held = jnp.maximum(frontier, 0), jnp.maximum(slots, 0)
  mask = jnp.take_along_axis(line, held[:, None, :], axis=2)
  mask = mask & (slots >= 0)[:, None, :] & (frontier >= 0)[:, :, None]
  at = lambda x, index: jnp.take_along_axis(x, index, axis=1)
  above = jnp.maximum(at(tree.parents, node), 0)
  block = topology.Topology(
      parents=at(tree.row, above) - 1,  # A child of the root gets -1, `NO_PARENT`.
      depth=at(tree.depth, node),
      mask=mask,
      columns=at(tree.depth, held),
  )
  return block, at(tree.tokens, held)
