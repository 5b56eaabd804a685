"""Trees and their verification as plain recursive Python, in float64 and without the library's code.

Growth: every tree that a construction can draw, with its probability. Rules:
every way a walk over a drawn tree can end, with the box of uniforms that leads
there. Together they give the exact law of a step.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

Law = Callable[[tuple], np.ndarray]  # From tokens so far to [V].


class Drawn(NamedTuple):
  """One tree that may be drawn: by node, the root being node 0."""

  mass: float
  parents: list
  tokens: list
  values: list

  def prefix(self, node: int) -> tuple:
    return () if node == 0 else (*self.prefix(self.parents[node]), self.tokens[node])

  def depth(self, node: int) -> int:
    return len(self.prefix(node))

  def children(self, node: int) -> list:
    return [n for n in range(1, len(self.parents)) if self.parents[n] == node]

  def grown(self, node: int, token: int, mass: float, value: float = 1.0) -> "Drawn":
    return Drawn(self.mass * mass, [*self.parents, node], [*self.tokens, token], [*self.values, value])


ROOT = Drawn(1.0, [-1], [-1], [1.0])


def left_over(law: np.ndarray, taken: Sequence[int]) -> np.ndarray:
  """The law with tokens taken out; nothing where it had no others."""
  rest = np.array(law)
  rest[list(taken)] = 0
  return rest / rest.sum() if rest.sum() > 0 else rest


# --- What may be drawn -----------------------------------------------------------


def fixed(parents: Sequence[int], q: Law, replacement: bool) -> Iterator[Drawn]:
  """A static tree, node by node; a law with nothing left gives way to the uniform one."""

  def walk(tree):
    node = len(tree.parents)
    if node == len(parents):
      yield tree
      return
    law = q(tree.prefix(parents[node]))
    if not replacement:
      taken = [tree.tokens[n] for n in tree.children(parents[node])]
      law = left_over(law, taken)
      if law.sum() == 0:
        law = left_over(np.ones(len(law)), taken)
    for token, mass in enumerate(law):
      if mass > 0:
        yield from walk(tree.grown(parents[node], token, mass))

  yield from walk(ROOT)


def places(tree: Drawn, q: Law, max_depth: int) -> dict:
  """Open places of a tree: by node, the value of its next child and the law it is drawn from."""
  found = {}
  for node in range(len(tree.parents)):
    if tree.depth(node) >= max_depth:
      continue
    law, value, taken = q(tree.prefix(node)), None, []
    if node == 0:
      value = 1.0
    else:  # The parent's law when this node was drawn.
      parent = tree.parents[node]
      before = [tree.tokens[n] for n in tree.children(parent) if n < node]
      value = tree.values[node] * left_over(q(tree.prefix(parent)), before)[tree.tokens[node]]
    for child in tree.children(node):
      value *= 1 - left_over(law, taken)[tree.tokens[child]]
      taken.append(tree.tokens[child])
    rest = left_over(law, taken)
    if rest.sum() > 0:
      found[node] = value, rest
  return found


def greedy(q: Law, size: int, max_depth: int = 99) -> Iterator[Drawn]:
  """DySpec, Algorithm 1."""

  def walk(tree):
    open_places = places(tree, q, max_depth) if len(tree.parents) <= size else {}
    if not open_places:
      yield tree
      return
    node = max(open_places, key=lambda n: open_places[n][0])
    value, law = open_places[node]
    for token, mass in enumerate(law):
      if mass > 0:
        yield from walk(tree.grown(node, token, mass, value))

  yield from walk(ROOT)


def layered(q: Law, size: int, threshold: float, width: int, max_depth: int = 99) -> Iterator[Drawn]:
  """DySpec, Algorithm 2 with a cap, `width` nodes at a time; the most valuable places of a call come first."""

  def call(tree, nodes):
    """All ways to fill the places of `nodes`: [(mass, {node: [(token, value)]})]."""

    def fill(found, mass, room):
      best = None
      for node in nodes:
        law = left_over(q(tree.prefix(node)), [t for t, _ in found[node]])
        value = places(tree, q, max_depth)[node][0] if node in places(tree, q, max_depth) else -1
        before = []
        for token, _ in found[node]:
          value *= 1 - left_over(q(tree.prefix(node)), before)[token]
          before.append(token)
        if law.sum() > 0 and value >= threshold and (best is None or value > best[1]):
          best = node, value, law
      if best is None or room == 0:
        yield mass, found
        return
      node, value, law = best
      for token, p in enumerate(law):
        if p > 0:
          yield from fill({**found, node: [*found[node], (token, value)]}, mass * p, room - 1)

    yield from fill({node: [] for node in nodes}, 1.0, size + 1 - len(tree.parents))

  def walk(tree, scored):
    waiting = [n for n, (value, _) in places(tree, q, max_depth).items() if n not in scored and value >= threshold]
    nodes = sorted(waiting)[:width]
    if not nodes or len(tree.parents) > size:
      yield tree
      return
    for mass, found in call(tree, nodes):
      after = tree._replace(mass=tree.mass * mass)
      for node in nodes:
        for token, value in found[node]:
          after = after.grown(node, token, 1.0, value)
      yield from walk(after, scored | set(nodes))

  yield from walk(ROOT, frozenset())


# --- How a walk may end ------------------------------------------------------------


class End(NamedTuple):
  """A box of the uniforms in which the walk ends alike: {node: (low, high)}, where it ends, and what it draws from."""

  mass: float
  box: dict
  node: int
  rest: np.ndarray


def residual(p, q):
  rest = np.maximum(p - q, 0)
  rest = rest if rest.sum() > 1e-12 else p
  return rest / rest.sum()


def multi_round(tree: Drawn, p: Law, q: Law, rule: str) -> Iterator[End]:
  """Recursive rejection; `rule` is 'without', 'with' or 'certain' (tokens chosen with certainty)."""

  def at(node, mass, box):
    prefix = tree.prefix(node)
    target = np.array(p(prefix))
    own = np.array(q(prefix)) if rule != "certain" else None
    tried = []
    for child in tree.children(node):
      token = tree.tokens[child]
      if rule == "certain":
        own = np.eye(len(target))[token]
      chance = min(1.0, target[token] / own[token])
      if chance > 0:
        yield from at(child, mass * chance, {**box, child: (0.0, chance)})
      if chance >= 1:
        return
      mass, box = mass * (1 - chance), {**box, child: (chance, 1.0)}
      target = residual(target, own)
      tried.append(token)
      if rule == "without":
        own = left_over(own, [token])
        own = own if own.sum() > 0 else left_over(np.ones(len(own)), tried)
    yield End(mass, box, node, target)

  yield from at(0, 1.0, {})


def k_seq(tree: Drawn, p: Law, q: Law, rho: Callable) -> Iterator[End]:
  """SpecTr's rule; `rho(p, q, k)` is given."""

  def at(alive, node, mass, box):
    prefix = tree.prefix(node)
    target, own = np.array(p(prefix)), np.array(q(prefix))
    children = [n for n in range(1, len(tree.parents)) if tree.parents[n] in alive]
    if not children:
      yield End(mass, box, node, target)
      return
    k = len(children)
    bar = rho(target, own, k)
    for child in children:
      token = tree.tokens[child]
      chance = min(1.0, target[token] / (bar * own[token]))
      if chance > 0:
        same = {n for n in children if tree.tokens[n] == token}
        yield from at(same, child, mass * chance, {**box, child: (0.0, chance)})
      if chance >= 1:
        return
      mass, box = mass * (1 - chance), {**box, child: (chance, 1.0)}
    beta = np.minimum(own, target / bar).sum()
    rest = np.maximum(target - np.minimum(own, target / bar) * (1 - (1 - beta) ** k) / beta, 0) if beta > 0 else target
    rest = rest if rest.sum() > 1e-12 else target
    yield End(mass, box, node, rest / rest.sum())

  yield from at({0}, 0, 1.0, {})


class Cells(NamedTuple):
  """Boxes of uniforms, `points` of each asked: mass [C], uniforms [C * points, G + 1], index [C] of the tree, and
  whether a box is wide enough that rounding cannot leave it."""

  mass: np.ndarray
  uniforms: np.ndarray
  tree: np.ndarray
  wide: np.ndarray


def cells(trees: Sequence[Drawn], size: int, ends: Callable[[Drawn], Iterator[End]], points: int = 2, seed: int = 0) -> Cells:
  """The boxes of every end of every tree, cut by the token that is drawn last."""
  generator = np.random.default_rng(seed)
  mass, low, high, index = [], [], [], []
  for number, tree in enumerate(trees):
    for end in ends(tree):
      edges = np.concatenate([[0.0], np.cumsum(end.rest)])
      edges[-1] = 1.0
      for token, p in enumerate(end.rest):
        if p > 1e-12:
          lows, highs = np.zeros(size + 1), np.ones(size + 1)
          for node, (a, b) in end.box.items():
            lows[node - 1], highs[node - 1] = a, b
          lows[size], highs[size] = edges[token], edges[token + 1]
          mass.append(tree.mass * end.mass * p)
          low.append(lows)
          high.append(highs)
          index.append(number)
  low, width = np.array(low), np.array(high) - np.array(low)
  margin = np.minimum(2e-6, width / 3)[:, None]
  inside = generator.uniform(size=(len(low), points, size + 1))
  uniforms = low[:, None] + margin + inside * (width[:, None] - 2 * margin)
  wide = (width > 1e-5).all(axis=1)
  return Cells(np.array(mass), np.float32(uniforms).reshape(-1, size + 1), np.array(index), wide)
