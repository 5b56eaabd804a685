"""`--mode=train`: a model from gin, on a seqio task, into a directory."""

import os
from collections.abc import Sequence

from absl import logging
import flax.linen as nn
import optax

from specdec.data import batches as batches_lib
from specdec.data import tasks
from specdec.modes import evaluate
from specdec.training import metrics as metrics_lib
from specdec.training import train as train_lib


def train(
    model: nn.Module,
    task: tasks.Task | str | Sequence[tasks.Task],
    optimizer: optax.GradientTransformation,
    steps: int,
    directory: str,
    boundaries: Sequence[int] = (16, 24, 32, 48, 64),
    tokens_per_batch: int = 1024,
    validation_task: tasks.Task | str | None = None,
    validation_split: str = "validation",
    seed: int = 0,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    bleu_sentences: int = 0,
    evaluate_every: int = 1000,
    checkpoint_every: int = 500,
    log_every: int = 50,
    tensorboard: bool = True,
) -> train_lib.TrainResult:
  """Trains `model` on the split 'train' of `task`; see `training.train.train`.

  Args:
    model: the Flax module.
    task: seqio task (or several, read together).
    optimizer: an optax transformation.
    steps: training steps in all.
    directory: checkpoints under `checkpoints/`, metrics beside them.
    boundaries: lengths of the buckets; longer examples are cut to the last.
    tokens_per_batch: rows of a bucket = this // its length.
    validation_task: task of the validation loss; None takes `task` when it is
      one task.
    validation_split: its split; '' turns validation off.
    seed: of weights, dropout and data order.
    label_smoothing: mass taken from the right token.
    z_loss: coefficient of the squared log partition function.
    bleu_sentences: sentences of the validation split that are decoded at every
      evaluation for sacreBLEU; 0 is off.
    evaluate_every: steps between evaluations; there is one more at the end.
    checkpoint_every: steps between checkpoints.
    log_every: steps between training metrics.
    tensorboard: also write TensorBoard event files.
  """
  length = boundaries[-1]
  batch = lambda one, split: batches_lib.BucketedBatches(
      tasks.examples(one, split, length, length), boundaries, tokens_per_batch, seed
  )
  train_batches = batch(task, "train")
  logging.info("%d examples, %d steps an epoch.", len(train_batches.examples.inputs), train_batches.steps_per_epoch)
  if validation_task is None and isinstance(task, (str, tasks.Task)):
    validation_task = task
  validation, bleu = None, None
  if validation_task is not None and validation_split:
    validation = batch(validation_task, validation_split)
    if bleu_sentences:
      texts = tasks.texts(validation_task, validation_split, bleu_sentences)
      bleu = evaluate.bleu(model, texts.vocabulary, texts.inputs, texts.targets, boundaries, max_new_tokens=length)
  return train_lib.train(
      model,
      train_batches,
      optimizer,
      steps,
      os.path.join(directory, "checkpoints"),
      seed=seed,
      label_smoothing=label_smoothing,
      z_loss=z_loss,
      validation=validation,
      evaluate=bleu,
      evaluate_every=evaluate_every,
      checkpoint_every=checkpoint_every,
      log_every=log_every,
      write_metrics=metrics_lib.writer(directory, tensorboard),
  )
