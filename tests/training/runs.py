"""A toy run for the tests of the training loop, and the process that is killed in the middle of one.

  python -m tests.training.runs DIRECTORY (term|kill|kill-in-save) STEP
"""

import os
import signal
import sys

import numpy as np

from specdec.data import batches
from specdec.networks.t5 import T5, T5Config
from specdec.training import optimizers
from specdec.training import train

STEPS = 20
CHECKPOINT_EVERY = 5
VOCAB = 12

MODEL = T5(
    T5Config(
        vocab_size=VOCAB, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=32,
        dropout_rate=0.1,
    )
)  # fmt: skip


def copy_task(count: int = 40, seed: int = 0, boundaries=(4, 8)) -> batches.BucketedBatches:
  """Copy the input: rows of 2 to 8 tokens, EOS included."""
  rng = np.random.default_rng(seed)
  rows = [np.int32([*rng.integers(2, VOCAB, n - 1), 1]) for n in rng.integers(2, 9, count)]
  return batches.BucketedBatches(batches.Examples(rows, rows), boundaries, 32)


OPTIMIZER = optimizers.adafactor(optimizers.warmup_linear_decay(3e-2, 5, STEPS))


def run(directory, data=None, steps: int = STEPS, **arguments) -> train.TrainResult:
  """The run that every test interrupts in its own way."""
  arguments = dict(seed=7, label_smoothing=0.1, z_loss=1e-4, checkpoint_every=CHECKPOINT_EVERY) | arguments
  return train.train(MODEL, data or copy_task(), OPTIMIZER, steps, str(directory), **arguments)


class At:
  """Batches that do something when the batch of one step is asked for."""

  def __init__(self, step: int, act, data=None):
    self._data, self._step, self._act = data or copy_task(), step, act
    self.steps_per_epoch = self._data.steps_per_epoch
    self.asked = []

  def __call__(self, step: int):
    self.asked.append(step)
    if step == self._step and len(self.asked) > 1:  # The first is asked for shapes only.
      self._act()
    return self._data(step)


def _unless(condition, act, function):
  return lambda *arguments, **keywords: act() if condition(*arguments[:2]) else function(*arguments, **keywords)


def main() -> None:
  directory, how, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
  kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
  act = {"term": lambda: os.kill(os.getpid(), signal.SIGTERM), "kill": kill, "kill-in-save": lambda: None}[how]
  if how == "kill-in-save":
    for name in ("rename", "replace"):  # A checkpoint is written under another name first.
      setattr(os, name, _unless(lambda source, target: os.path.basename(target) == str(step), kill, getattr(os, name)))
  result = run(directory, At(step, act))
  print(f"ended at step {result.step}")


if __name__ == "__main__":
  main()
