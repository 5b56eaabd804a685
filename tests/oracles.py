"""What the library should say, in float64 NumPy and without its code: laws, their integrals, and statistics.

The oracles sort where the library bisects and enumerate where it draws.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

EOS = 1
GREEDY = 1e-4  # T5X's MIN_TEMPERATURE, written down a second time on purpose.


# --- Laws ------------------------------------------------------------------------


def numpy_keep(logits: np.ndarray, top_k: int = 0, top_p: float = 0.0) -> np.ndarray:
  """Which of [V] survive top-k and then top-p, ties kept; by sorting."""
  keep = logits > -np.inf
  if top_k > 0:
    keep &= logits >= np.sort(logits)[-min(top_k, len(logits))]
  if top_p > 0:
    weight = np.where(keep, np.exp(logits - logits.max()), 0.0)
    weight /= weight.sum()
    order = np.argsort(-weight, kind="stable")
    mass = np.cumsum(weight[order])
    enough = np.flatnonzero(mass >= top_p)
    if len(enough):
      keep &= logits >= logits[order[enough[0]]]
  return keep


def numpy_law(logits, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.0) -> np.ndarray:
  """Next-token law [V] in float64: temperature, top-k, top-p; greedy is the first argmax."""
  logits = np.asarray(logits, np.float64)
  if temperature <= GREEDY:
    return np.eye(len(logits))[np.argmax(logits)]
  tempered = logits / temperature
  weight = np.where(numpy_keep(tempered, top_k, top_p), np.exp(tempered - tempered.max()), 0.0)
  return weight / weight.sum()


def numpy_process(logits, prefix: Sequence[int], new_tokens: int, eos: int = EOS, min_length=0, penalty=1.0, banned=()):
  """Logits [V] after penalty, bans and minimum length; `prefix` is every token of the decoder so far."""
  out = np.array(logits, np.float64)
  for token in set(prefix):
    out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
  for token in banned:
    out[token] = -np.inf
  if new_tokens < min_length:
    out[eos] = -np.inf
  return out


def sequence_law(next_law: Callable[[tuple], np.ndarray], cap: int, eos: int = EOS) -> dict[tuple, float]:
  """The law of whole outputs: `next_law(tokens so far) -> [V]`, until EOS or `cap` tokens."""
  done = {}

  def walk(tokens, mass):
    if len(tokens) == cap or (tokens and tokens[-1] == eos):
      done[tokens] = done.get(tokens, 0.0) + mass
      return
    for token, p in enumerate(next_law(tokens)):
      if p > 0:
        walk((*tokens, token), mass * p)

  walk((), 1.0)
  return done


# --- Exact integration over uniforms -------------------------------------------


def cells(edges: Sequence[np.ndarray], points: int, generator) -> tuple[np.ndarray, np.ndarray]:
  """Cuts the unit cube at `edges`, one array of cuts a dimension, and picks points in every cell.

  Returns:
    Volumes [C], and points [C, points, D] float32, none so near a cut that
    float32 could take it for one beyond. Cells narrower than that are left out:
    the volumes then sum to less than 1, which the caller must check.
  """
  lows, widths = [], []
  for cuts in edges:
    cuts = np.unique(np.clip(np.concatenate([[0.0, 1.0], cuts]), 0, 1))
    width = np.diff(cuts)
    wide = width > 1e-6
    lows.append(cuts[:-1][wide])
    widths.append(width[wide])
  grid = lambda parts: np.stack([x.ravel() for x in np.meshgrid(*parts, indexing="ij")], axis=-1)
  low, width = grid(lows), grid(widths)
  margin = np.minimum(4e-7, width / 3)[:, None]
  inside = generator.uniform(size=(len(low), points, len(edges)))
  return width.prod(axis=1), np.float32(low[:, None] + margin + inside * (width[:, None] - 2 * margin))


def accept_edges(drafted: Sequence[int], p: np.ndarray, q: np.ndarray, lenience: float = 1.0) -> list[np.ndarray]:
  """Where the answer of speculative sampling may change: cuts of each of its G + 1 uniforms.

  Args:
    drafted: G tokens.
    p: [G + 1, V] float64, the target's law before each of them and after the last.
    q: [G, V] float64, the draft's.
    lenience: l.
  """
  edges = [np.array([p[i, x] / (lenience * q[i, x])]) for i, x in enumerate(drafted)]
  final = []
  for i in range(len(p)):
    rest = np.maximum(p[i] - lenience * q[i], 0) if i < len(q) else p[i]
    rest = rest if rest.sum() > 1e-9 else p[i]
    final.append(np.cumsum(rest)[:-1] / rest.sum())
  return [*edges, np.concatenate(final)]


def continued(law: dict[tuple, float], next_law: Callable[[tuple], np.ndarray], length: int) -> dict[tuple, float]:
  """The law of `length` tokens when those that `law` leaves open are drawn from `next_law`."""
  done = {}
  for tokens, mass in law.items():
    if len(tokens) >= length:
      done[tokens[:length]] = done.get(tokens[:length], 0.0) + mass
    else:
      longer = {(*tokens, x): mass * p for x, p in enumerate(next_law(tokens)) if p > 0}
      for key, value in continued(longer, next_law, length).items():
        done[key] = done.get(key, 0.0) + value
  return done


# --- Statistics --------------------------------------------------------------


def outputs(tokens, lengths) -> list[tuple]:
  """The output of each row as a tuple."""
  return [tuple(row[:n].tolist()) for row, n in zip(np.asarray(tokens), np.asarray(lengths))]


def counts(rows: Sequence[tuple]) -> dict[tuple, int]:
  """How often each output came."""
  found = {}
  for row in rows:
    found[row] = found.get(row, 0) + 1
  return found


def p_value_against(law: dict[tuple, float], rows: Sequence[tuple]) -> float:
  """Chi-square of samples against an exact law; outputs expected fewer than 5 times share one bin."""
  found = counts(rows)
  impossible = [row for row in found if law.get(row, 0.0) < 1e-9]
  assert not impossible, f"emitted, though it has probability 0: {impossible[:3]}"
  expected, observed, rest = [], [], [0.0, 0]
  for row, p in law.items():
    if p * len(rows) >= 5:
      expected.append(p * len(rows))
      observed.append(found.get(row, 0))
    else:
      rest[0] += p * len(rows)
      rest[1] += found.get(row, 0)
  if rest[0] >= 1:
    expected.append(rest[0])
    observed.append(rest[1])
  else:  # Too rare for a bin of its own.
    expected[-1] += rest[0]
    observed[-1] += rest[1]
  if len(expected) == 1:
    return 1.0
  return float(stats.chisquare(observed, np.array(expected) * sum(observed) / sum(expected)).pvalue)


def p_value_between(one: Sequence[tuple], other: Sequence[tuple]) -> float:
  """Chi-square of two samples against each other; outputs seen fewer than 10 times share one bin."""
  ours, theirs = counts(one), counts(other)
  table, rest = [], [0, 0]
  for row in ours.keys() | theirs.keys():
    pair = [ours.get(row, 0), theirs.get(row, 0)]
    if sum(pair) >= 10:
      table.append(pair)
    else:
      rest = [rest[0] + pair[0], rest[1] + pair[1]]
  if sum(rest):
    table.append(rest)
  if len(table) < 2:
    return 1.0
  return float(stats.chi2_contingency(np.array(table).T, correction=False).pvalue)
