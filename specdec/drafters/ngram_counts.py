"""Counting n-grams into the tables of `drafters.ngram`, and keeping them in a file."""

from collections.abc import Iterable, Sequence
import hashlib
import io
import zipfile

from etils import epath
import jax.numpy as jnp
import numpy as np

from specdec.drafters.ngram import NgramTables, Order

BOS_ID = 0  # T5's decoder begins with its pad, so that every text has a first context.
FORMAT = 1


class Counter:
  """Counts of the n-grams of every order up to one, from texts that come in any portions.

  Args:
    vocab: V; ids are in [0, V).
    order: the highest order, 1 is unigrams.

  Raises:
    ValueError: an order below 1, or so high that V**order does not fit 63 bits.

  Example:
    >>> counter = Counter(vocab=4, order=2)
    >>> counter.add([[2, 3, 1], [2, 2, 1]])
    >>> counter.tables().orders[0].token.tolist()  # after 0: 2; after 2: 1, 2, 3; after 3: 1
    [2, 1, 2, 3, 1, 4]
  """

  def __init__(self, vocab: int, order: int):
    if order < 1 or vocab < 2 or vocab**order >= 2**63:
      raise ValueError(f"order: expected 1 or more with vocab**order below 2**63, found order {order} of {vocab} pieces.")
    self.vocab, self.order, self.texts = vocab, order, 0
    # Of order n: n-grams as numbers of base V, rising, and how often each came.
    self._counts = [(np.zeros(0, np.int64), np.zeros(0, np.int64)) for _ in range(order)]

  @property
  def tokens(self) -> int:
    """How many tokens were counted."""
    return int(self._counts[0][1].sum())

  def add(self, texts: Iterable[Sequence[int]]) -> None:
    """Counts texts, each a sequence of ids that ends with EOS; BOS is put before it.

    Raises:
      ValueError: an id outside of the vocabulary.
    """
    texts = [np.asarray(text, np.int64) for text in texts]
    self.texts += len(texts)
    if not texts:
      return
    every = np.concatenate([part for text in texts for part in (np.array([BOS_ID]), text)])
    if every.size and (every.min() < 0 or every.max() >= self.vocab):
      raise ValueError(f"n-grams: expected ids in [0, {self.vocab}), found {every.min()} to {every.max()}.")
    lengths = np.array([len(text) + 1 for text in texts])
    place = np.arange(len(every)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # 0 is BOS.
    for n in range(1, self.order + 1):
      ends = np.flatnonzero(place >= max(1, n - 1))  # BOS is a context and never counted as a token.
      number = np.zeros(len(ends), np.int64)
      for back in range(n - 1, -1, -1):
        number = number * self.vocab + every[ends - back]
      self._counts[n - 1] = _merge(self._counts[n - 1], np.unique(number, return_counts=True))

  def tables(self, max_successors: int = 0, min_count: int = 1) -> NgramTables:
    """Discounts the counts and lays them out.

    Args:
      max_successors: entries kept a context, the most frequent ones; 0 keeps
        all. What is left out goes to the shorter context.
      min_count: n-grams of order 3 and above that came less often are left out.

    Raises:
      ValueError: nothing was counted, or a bad argument.

    The discount of order n is `D = n1 / (n1 + 2 n2)`, with n1 and n2 the
    n-grams that came once and twice (Ney, Essen and Kneser 1994).
    """
    if max_successors < 0 or min_count < 1:
      raise ValueError(f"expected max_successors >= 0 and min_count >= 1, found {max_successors} and {min_count}.")
    if not self.tokens:
      raise ValueError("n-grams: expected at least one token to count, found none.")
    unigram, vocab = np.zeros(self.vocab), self.vocab
    keys, counts = self._counts[0]
    discount = _discount(counts)
    unigram[keys] = (counts - discount) / counts.sum()
    unigram += discount * len(keys) / counts.sum() / vocab
    orders, contexts = [], np.arange(vocab)  # The kept contexts, as numbers.
    for n in range(2, self.order + 1):
      keys, counts = self._counts[n - 1]
      discount = _discount(counts)
      seen, first = np.unique(keys // vocab, return_index=True)
      total = np.add.reduceat(counts, first) if len(first) else counts
      total_of = np.repeat(total, np.diff(np.append(first, len(keys))))
      keep = np.isin(keys // vocab, contexts) & (counts >= (min_count if n > 2 else 1))
      keys, mass, total_of = keys[keep], (counts[keep] - discount) / total_of[keep], total_of[keep]
      if max_successors:
        keep = _most_frequent(keys // vocab, mass, max_successors)
        keys, mass = keys[keep], mass[keep]
      context = np.searchsorted(contexts, keys // vocab)
      start = np.searchsorted(context, np.arange(len(contexts) + 1))
      mass = mass.astype(np.float32)
      backoff = 1.0 - np.bincount(context, mass, minlength=len(contexts))
      orders.append(
          Order(
              jnp.asarray(start, jnp.int32),
              jnp.asarray(np.append(keys % vocab, vocab), jnp.int32),
              jnp.asarray(np.append(mass, 0.0), jnp.float32),
              jnp.asarray(np.maximum(backoff, 0.0), jnp.float32),
          )
      )
      contexts = keys
    return NgramTables(jnp.asarray(unigram, jnp.float32), tuple(orders))


def _merge(one, other):
  """Adds two tables of (rising keys, counts)."""
  keys, place = np.unique(np.concatenate([one[0], other[0]]), return_inverse=True)
  return keys, np.bincount(place, np.concatenate([one[1], other[1]]), len(keys)).astype(np.int64)


def _discount(counts: np.ndarray) -> float:
  once, twice = int((counts == 1).sum()), int((counts == 2).sum())
  return once / (once + 2 * twice) if once and twice else 0.5


def _most_frequent(context: np.ndarray, mass: np.ndarray, count: int) -> np.ndarray:
  """Which entries are among the `count` heaviest of their context, the first ones of a tie; bool."""
  order = np.lexsort((-mass, context))
  sorted_ = context[order]
  rank = np.arange(len(order)) - np.searchsorted(sorted_, sorted_)
  keep = np.zeros(len(order), bool)
  keep[order] = rank < count
  return keep


def vocabulary_hash(pieces: Sequence[str]) -> str:
  """What tells one vocabulary from another in a file of tables."""
  return hashlib.sha256("\n".join(pieces).encode("utf-8", "surrogatepass")).hexdigest()


def save(path: str, tables: NgramTables, pieces: Sequence[str]) -> None:
  """Writes tables as one `.npz`, whole or not at all.

  Args:
    path: any path that `etils.epath` opens.
    tables: of any order.
    pieces: of the vocabulary that was counted.
  """
  arrays = {"format": FORMAT, "vocabulary": vocabulary_hash(pieces), "unigram": np.asarray(tables.unigram)}
  for n, order in enumerate(tables.orders, start=2):
    arrays |= {f"{name}_{n}": np.asarray(value) for name, value in order._asdict().items()}
  data = io.BytesIO()
  np.savez_compressed(data, **arrays)
  target = epath.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  partial = target.parent / (target.name + ".partial")
  partial.write_bytes(data.getvalue())
  partial.replace(target)


def load(path: str, pieces: Sequence[str], order: int | None = None) -> NgramTables:
  """Reads tables that `save` wrote.

  Args:
    path: the file.
    pieces: of the vocabulary that they are to draft for.
    order: 1 unigram, 2 bigram, …; None is the highest there is.

  Raises:
    ValueError: no such file, not such a file, counted with another vocabulary,
      or of a lower order.
  """
  try:
    with np.load(io.BytesIO(epath.Path(path).read_bytes()), allow_pickle=False) as file:
      found = {name: file[name] for name in file.files}
    if int(found["format"]) != FORMAT:
      raise ValueError(f"format {int(found['format'])}")
    highest = 1 + sum(name.startswith("start_") for name in found)
    orders = tuple(Order(*(jnp.asarray(found[f"{name}_{n}"]) for name in Order._fields)) for n in range(2, highest + 1))
    tables = NgramTables(jnp.asarray(found["unigram"]), orders)
  except FileNotFoundError as error:
    raise ValueError(f"n-grams: expected a file at {path}, found nothing there; --mode=fit_ngram writes one.") from error
  except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(f"n-grams: expected a file that --mode=fit_ngram wrote at {path}, found another ({error}).") from error
  if str(found["vocabulary"]) != vocabulary_hash(pieces) or len(found["unigram"]) != len(pieces):
    raise ValueError(
        f"n-grams: {path} was counted with another vocabulary ({len(found['unigram'])} pieces, here {len(pieces)}); "
        "count again with the vocabulary of the target."
    )
  return tables if order is None else tables.cut(order)
