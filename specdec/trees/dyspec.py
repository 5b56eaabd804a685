"""DySpec's dynamic trees: drawn where the draft itself says that acceptance is likely.

Premise: a token is accepted with about its draft probability a. A node's value
is the estimated probability that a walk tries it: the product of a over its
ancestors and of 1 - a over their and its earlier siblings. It is known before
the node's token is drawn; deciding after seeing the token would bias the output.

Source: Xiong et al. 2024, "DySpec: faster speculative decoding with dynamic token tree structure" (arXiv 2410.11744).
"""

import jax
import jax.numpy as jnp

from specdec.trees.growth import check_budget, CLOSED, Growth, NO_NODE, NO_TOKEN, Tree

Array = jax.Array


def _room_below(tree: Tree, max_depth: int | None, depth: Array) -> Array:
  return depth < (tree.depth.shape[0] if max_depth is None else max_depth)


def dyspec_growth(
    size: int, width: int = 8, max_depth: int | None = None, calls: int | None = None, children: int | None = None
) -> Growth:
  """The greedy tree of a fixed size: always the most valuable open place next.

  Each node has one open place, for its next child, so the heap is an array of
  one value a node. Its maximum is taken over all N lanes at once, which for the
  sizes that pay (N below a thousand) is cheaper than the log N dependent reads
  and writes of a heap. The draft scores up to `width` of the most valuable
  unscored nodes in one call, when the place to fill is below an unscored one:
  the tree is the same for every width, only the calls are fewer.

  Values fall in the order of drawing, and under the premise no tree of the same
  size has more expected accepted tokens (appendix D).

  Args:
    size: N, drafted nodes.
    width: nodes a call of the draft scores.
    max_depth: of the tree; None is no limit.
    calls: of the draft after the first; None is N, which no tree exceeds. With
      fewer, the tree goes on below the nodes that were scored.
    children: of a node at most; None is N.

  Raises:
    ValueError: an argument is below 1.

  Source: Algorithm 1.
  """
  check_budget(size, width=width, max_depth=max_depth, calls=calls, children=children)
  width, children = min(width, size), min(children or size, size)
  calls = min(calls or size, size)
  nodes = jnp.arange(size + 1)

  def draw(tree: Tree, opens: Array) -> Tree:
    node = jnp.argmax(tree.next_value)
    value, row, rank = tree.next_value[node], tree.row[node], tree.drawn[node]
    token, chance = tree.candidates[row, rank], tree.chance[row, rank]
    valid = token != NO_TOKEN  # Else the draft has nothing left here.
    at_node, at_new = nodes == node, (nodes == tree.size) & valid
    depth = tree.depth[node] + 1
    sibling = jnp.where(valid & (rank + 1 < children), value * (1 - chance), CLOSED)
    child = jnp.where(opens & _room_below(tree, max_depth, depth), value * chance, CLOSED)
    return tree._replace(
        tokens=jnp.where(at_new, token, tree.tokens),
        parents=jnp.where(at_new, node, tree.parents).astype(jnp.int32),
        depth=jnp.where(at_new, depth, tree.depth),
        value=jnp.where(at_new, value, tree.value),
        next_value=jnp.where(at_node, sibling, jnp.where(at_new, child, tree.next_value)),
        drawn=tree.drawn + at_node,
        size=tree.size + valid,
    )

  def can_draw(tree: Tree) -> Array:
    node = jnp.argmax(tree.next_value)
    return (tree.size <= size) & (tree.next_value[node] > CLOSED) & (tree.row[node] >= 0)

  def grow(tree: Tree, call: Array, scored: Array) -> tuple[Tree, Array]:
    del scored
    opens = call < calls  # Else no call is left, and places below unscored nodes stay empty.
    tree = tree._replace(next_value=jnp.where(opens | (tree.row >= 0), tree.next_value, CLOSED))
    tree = jax.lax.while_loop(can_draw, lambda tree: draw(tree, opens), tree)
    waiting = (tree.row < 0) & (tree.next_value > CLOSED) & (tree.size <= size)
    best, frontier = jax.lax.top_k(jnp.where(waiting, tree.next_value, CLOSED), width)
    return tree, jnp.where(best > CLOSED, frontier, NO_NODE).astype(jnp.int32)

  return Growth(size, width, calls, children, grow)


def dyspec_threshold_growth(
    size: int,
    threshold: float,
    width: int = 8,
    max_depth: int | None = None,
    calls: int | None = None,
    children: int | None = None,
) -> Growth:
  """The tree grown layer by layer: every place whose value is at least `threshold` is filled.

  A call of the draft scores up to `width` nodes, in the order of the layers. The
  size is bounded by `size` alone: where a call's children are more than there
  is room for, the most valuable ones join.

  Args:
    size: N, the cap.
    threshold: t in (0, 1], about 1 / N.
    width: nodes a call of the draft scores.
    max_depth: of the tree; None is no limit.
    calls: of the draft after the first; None is N.
    children: of a node at most; None is N.

  Raises:
    ValueError: an argument is out of range.

  Source: Algorithm 2, whose loop test is printed as v < t and must read v >= t.
  """
  check_budget(size, width=width, max_depth=max_depth, calls=calls, children=children)
  if not 0 < threshold <= 1:
    raise ValueError(f"threshold: expected a value in (0, 1], about 1 / size, found {threshold}.")
  width, children = min(width, size), min(children or size, size)
  calls = min(calls or size, size)
  nodes = jnp.arange(size + 1)

  def grow(tree: Tree, call: Array, scored: Array) -> tuple[Tree, Array]:
    # Values of all children of the nodes scored last: [W, K].
    present = scored != NO_NODE
    node = jnp.maximum(scored, 0)
    row = jnp.maximum(tree.row[node], 0)
    token, chance = tree.candidates[row], tree.chance[row]
    before = jnp.cumprod(jnp.pad(1 - chance, ((0, 0), (1, 0)), constant_values=1.0)[:, :-1], axis=1)
    value = tree.next_value[node][:, None] * before
    fits = (value >= threshold) & (token != NO_TOKEN) & present[:, None]
    # Where they are too many the most valuable ones join; of equals the first.
    score = jnp.where(fits, value, CLOSED).reshape(-1)
    order = jnp.argsort(-score, stable=True)
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=order.dtype))
    joins = fits.reshape(-1) & (place < size + 1 - tree.size)
    count = jnp.cumsum(joins)
    new = (nodes >= tree.size) & (nodes < tree.size + count[-1])
    source = jnp.minimum(jnp.searchsorted(count, nodes - tree.size + 1), score.shape[0] - 1)  # [N + 1]
    parent = node[source // children]
    take = lambda x: x.reshape(-1)[source]
    depth = tree.depth[parent] + 1
    child = jnp.where(_room_below(tree, max_depth, depth), take(value) * take(chance), CLOSED)
    done = (nodes[:, None] == jnp.where(present, scored, NO_NODE)[None, :]).any(axis=1)
    tree = tree._replace(
        tokens=jnp.where(new, take(token), tree.tokens),
        parents=jnp.where(new, parent, tree.parents).astype(jnp.int32),
        depth=jnp.where(new, depth, tree.depth),
        value=jnp.where(new, take(value), tree.value),
        next_value=jnp.where(new, child, jnp.where(done, CLOSED, tree.next_value)),
        size=tree.size + count[-1].astype(jnp.int32),
    )
    waiting = (tree.row < 0) & (tree.next_value >= threshold) & (tree.size <= size) & (call < calls)
    first = jnp.sort(jnp.where(waiting, nodes, size + 1))[:width]
    return tree, jnp.where(first <= size, first, NO_NODE).astype(jnp.int32)

  return Growth(size, width, calls, children, grow)
