"""Length-bucketed batches in a fixed order, so that a step number is all a resumed run needs."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specdec.data.vocabularies import PAD_ID


class Examples(NamedTuple):
  """Tokenised pairs, each ending in EOS.

  Attributes:
    inputs: a list of int32 arrays of encoder tokens.
    targets: a list of int32 arrays of decoder tokens, of the same number.
  """

  inputs: Sequence[np.ndarray]
  targets: Sequence[np.ndarray]


class Batch(NamedTuple):
  """One training batch under T5X's feature names; [B, S] and [B, L] int32.

  A row without an example is all pad and has weight 0.
  """

  encoder_input_tokens: np.ndarray  # [B, S]
  decoder_input_tokens: np.ndarray  # [B, L], targets shifted right, BOS = 0
  decoder_target_tokens: np.ndarray  # [B, L]
  decoder_loss_weights: np.ndarray  # [B, L] float32, 0 on pads


def pad(rows: Sequence[np.ndarray], count: int, length: int) -> np.ndarray:
  """Stacks ragged rows into int32 [count, length], filled up with pad."""
  stacked = np.full((count, length), PAD_ID, np.int32)
  for i, row in enumerate(rows):
    stacked[i, : len(row)] = row
  return stacked


def make_batch(inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], count: int, length: int) -> Batch:
  """Builds a `Batch` of `count` rows and S = L = `length` from at most `count` examples."""
  target_tokens = pad(targets, count, length)
  input_tokens = np.zeros_like(target_tokens)
  input_tokens[:, 1:] = target_tokens[:, :-1]
  weights = np.zeros(target_tokens.shape, np.float32)
  for i, row in enumerate(targets):
    weights[i, : len(row)] = 1.0
  return Batch(pad(inputs, count, length), input_tokens, target_tokens, weights)


@dataclasses.dataclass(frozen=True)
class BucketedBatches:
  """Shuffled batches whose rows have like lengths; a pure function of the step.

  Each example belongs to the first bucket that holds both of its sides. Every
  epoch visits each example exactly once; its order depends on (seed, epoch).

  Attributes:
    examples: what to batch.
    boundaries: rising bucket lengths; the last holds the longest example.
    tokens_per_batch: rows of a bucket = tokens_per_batch // its length.
    seed: of the order.

  Raises:
    ValueError: an example is longer than the last boundary, or there is none.
  """

  examples: Examples
  boundaries: Sequence[int]
  tokens_per_batch: int
  seed: int = 0

  def __post_init__(self):
    boundaries = np.asarray(self.boundaries)
    if len(boundaries) == 0 or np.any(np.diff(boundaries) <= 0) or boundaries[0] < 1:
      raise ValueError(f"boundaries: expected rising lengths of at least 1, found {list(self.boundaries)}.")
    if self.tokens_per_batch < boundaries[-1]:
      raise ValueError(
          f"tokens_per_batch: expected at least the longest bucket ({boundaries[-1]}), found {self.tokens_per_batch}."
      )
    lengths = np.asarray([max(len(a), len(b)) for a, b in zip(*self.examples, strict=True)], np.int64)
    if len(lengths) == 0:
      raise ValueError("examples: expected at least one, found none.")
    if lengths.max() > boundaries[-1]:
      raise ValueError(f"boundaries: an example has {lengths.max()} tokens and the last bucket holds {boundaries[-1]}.")
    object.__setattr__(self, "_bucket", np.searchsorted(boundaries, lengths))
    object.__setattr__(self, "_orders", {})

  def _rows(self, bucket: int) -> int:
    return self.tokens_per_batch // self.boundaries[bucket]

  @property
  def steps_per_epoch(self) -> int:
    """Batches that an epoch has."""
    counts = np.bincount(self._bucket, minlength=len(self.boundaries))
    return sum(-(-int(n) // self._rows(b)) for b, n in enumerate(counts))

  def _epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
    if epoch not in self._orders:
      rng = np.random.default_rng((self.seed, epoch))
      order = rng.permutation(len(self._bucket))
      batches = []
      for bucket in range(len(self.boundaries)):
        members = order[self._bucket[order] == bucket]
        rows = self._rows(bucket)
        batches += [(bucket, members[i : i + rows]) for i in range(0, len(members), rows)]
      self._orders.clear()  # One epoch at a time is enough.
      self._orders[epoch] = [batches[i] for i in rng.permutation(len(batches))]
    return self._orders[epoch]

  def __call__(self, step: int) -> Batch:
    """The batch of training step `step`, counted from 0 over all epochs."""
    epoch, index = divmod(step, self.steps_per_epoch)
    bucket, members = self._epoch(epoch)[index]
    inputs = [self.examples.inputs[i] for i in members]
    targets = [self.examples.targets[i] for i in members]
    return make_batch(inputs, targets, self._rows(bucket), self.boundaries[bucket])
