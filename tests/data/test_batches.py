"""`data.batches`: each example once an epoch, an order that (seed, step) fixes, buckets, shifts and weights."""

import numpy as np
import pytest

from specdec.data import batches

BOUNDARIES = (4, 8, 16)
TOKENS = 32  # 8, 4 and 2 rows.


def make_examples(count=53, longest=16, seed=0):
  """Examples whose first input token is their number + 10; each side ends in EOS."""
  rng = np.random.default_rng(seed)
  row = lambda first, n: np.int32([first, *rng.integers(2, 9, n - 2), 1])
  lengths = rng.integers(2, longest + 1, (count, 2))
  inputs = [row(i + 10, n) for i, (n, _) in enumerate(lengths)]
  targets = [row(i + 10, n) for i, (_, n) in enumerate(lengths)]
  return batches.Examples(inputs, targets)


@pytest.fixture(scope="module")
def examples():
  return make_examples()


def numbers(batch):
  """The examples of a batch, in order."""
  return [int(first) - 10 for first in batch.encoder_input_tokens[:, 0] if first]


def test_each_epoch_holds_each_example_exactly_once(examples):
  stream = batches.BucketedBatches(examples, BOUNDARIES, TOKENS)
  epochs = []
  for epoch in range(3):
    steps = range(epoch * stream.steps_per_epoch, (epoch + 1) * stream.steps_per_epoch)
    order = [n for step in steps for n in numbers(stream(step))]
    assert sorted(order) == list(range(len(examples.inputs)))
    epochs.append(order)
  assert epochs[0] != epochs[1] != epochs[2], "each epoch has its own order"


def test_a_batch_is_a_function_of_seed_and_step(examples):
  one, other = (batches.BucketedBatches(examples, BOUNDARIES, TOKENS, seed=5) for _ in range(2))
  steps = [0, 7, 40, 3, 100, 7, 0]  # In any order, back to earlier epochs too.
  forward = {step: one(step) for step in range(101)}
  for step in steps:
    for a, b in zip(forward[step], other(step), strict=True):
      np.testing.assert_array_equal(a, b)
  different = batches.BucketedBatches(examples, BOUNDARIES, TOKENS, seed=6)
  assert [numbers(different(s)) for s in range(10)] != [numbers(forward[s]) for s in range(10)]


def test_each_example_lies_in_the_first_bucket_that_holds_both_sides(examples):
  stream = batches.BucketedBatches(examples, BOUNDARIES, TOKENS)
  seen = set()
  for step in range(stream.steps_per_epoch):
    batch = stream(step)
    rows, length = batch.encoder_input_tokens.shape
    seen.add(length)
    assert rows == TOKENS // length
    for n in numbers(batch):
      longest = max(len(examples.inputs[n]), len(examples.targets[n]))
      assert length == min(b for b in BOUNDARIES if b >= longest)
  assert seen == set(BOUNDARIES)


def test_rows_of_a_batch(examples):
  stream = batches.BucketedBatches(examples, BOUNDARIES, TOKENS)
  empty = 0
  for step in range(stream.steps_per_epoch):
    batch = stream(step)
    assert {array.dtype for array in batch[:3]} == {np.dtype(np.int32)}
    assert batch.decoder_loss_weights.dtype == np.float32
    for row, n in enumerate(numbers(batch)):
      source, target = examples.inputs[n], examples.targets[n]
      rest = batch.decoder_target_tokens.shape[1] - len(target)
      np.testing.assert_array_equal(batch.encoder_input_tokens[row, : len(source)], source)
      assert not batch.encoder_input_tokens[row, len(source) :].any()
      np.testing.assert_array_equal(batch.decoder_target_tokens[row], [*target, *[0] * rest])
      # Shifted right: begins with BOS, which is 0; the last target is not fed where the row is full.
      np.testing.assert_array_equal(batch.decoder_input_tokens[row], [0, *target, *[0] * rest][: len(target) + rest])
      np.testing.assert_array_equal(batch.decoder_loss_weights[row], [1.0] * len(target) + [0.0] * rest)
    for array in batch:
      assert not array[len(numbers(batch)) :].any(), "rows without an example are pad and weigh nothing"
    empty += len(batch[0]) - len(numbers(batch))
  assert empty > 0


def test_weights_sum_to_the_tokens_of_the_corpus(examples):
  stream = batches.BucketedBatches(examples, BOUNDARIES, TOKENS)
  total = sum(stream(step).decoder_loss_weights.sum() for step in range(stream.steps_per_epoch))
  assert total == sum(len(target) for target in examples.targets)


def test_one_example_and_one_bucket():
  stream = batches.BucketedBatches(make_examples(1, 5), [8], 8)
  assert stream.steps_per_epoch == 1
  assert numbers(stream(0)) == numbers(stream(99)) == [0]


@pytest.mark.parametrize(
    ("boundaries", "tokens", "message"),
    [
        ((8,), 8, "an example has 16 tokens and the last bucket holds 8"),
        ((), 8, "boundaries: expected rising lengths"),
        ((8, 8), 8, "boundaries: expected rising lengths"),
        ((16, 8), 16, "boundaries: expected rising lengths"),
        ((0, 16), 16, "boundaries: expected rising lengths of at least 1"),
        ((8, 16), 15, r"tokens_per_batch: expected at least the longest bucket \(16\), found 15"),
    ],
)
def test_wrong_arguments(examples, boundaries, tokens, message):
  with pytest.raises(ValueError, match=message):
    batches.BucketedBatches(examples, boundaries, tokens)


def test_wrong_examples(examples):
  with pytest.raises(ValueError, match="examples: expected at least one, found none"):
    batches.BucketedBatches(batches.Examples([], []), BOUNDARIES, TOKENS)
  with pytest.raises(ValueError, match="shorter|longer"):
    batches.BucketedBatches(batches.Examples(examples.inputs, examples.targets[:-1]), BOUNDARIES, TOKENS)
