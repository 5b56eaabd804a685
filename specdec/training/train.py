"""The training loop: teacher forcing, checkpoints that resume to the same result.

The data order is a function of the step, the dropout key is folded from the
step, and the state is saved whole; so a run that was killed and resumed ends
with the weights of one that was not.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from absl import logging
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import tqdm

from specdec.training import losses
from specdec.training.checkpoints import TrainCheckpoints

Array = jax.Array


class Batches(Protocol):
  """Where batches come from; `data.batches.BucketedBatches` is one.

  A batch has the fields encoder_input_tokens, decoder_input_tokens,
  decoder_target_tokens, decoder_loss_weights.
  """

  steps_per_epoch: int

  def __call__(self, step: int) -> Any: ...


class TrainState(NamedTuple):
  """What the next step needs."""

  step: Array  # [] int32, steps done
  params: Any
  opt_state: Any


class TrainResult(NamedTuple):
  """The end of a run.

  Attributes:
    params: the parameters.
    step: steps done; fewer than asked when the run was stopped.
    metrics: of the last evaluation.
  """

  params: Any
  step: int
  metrics: Mapping[str, float]


def make_train_step(model: nn.Module, optimizer: optax.GradientTransformation, label_smoothing: float, z_loss: float):
  """Builds `(state, batch, seed key) -> (state, LossSums)`, to be jitted."""

  def train_step(state: TrainState, batch, key: Array) -> tuple[TrainState, losses.LossSums]:
    key_dropout = jax.random.fold_in(key, state.step)

    def mean_loss(params):
      logits = model.apply(
          {"params": params},
          batch.encoder_input_tokens,
          batch.decoder_input_tokens,
          enable_dropout=True,
          rngs={"dropout": key_dropout},
      )
      sums = losses.cross_entropy(
          logits, batch.decoder_target_tokens, batch.decoder_loss_weights, label_smoothing, z_loss
      )
      return sums.loss / jnp.maximum(sums.weight, 1.0), sums

    gradients, sums = jax.grad(mean_loss, has_aux=True)(state.params)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), sums

  return train_step


def make_eval_step(model: nn.Module):
  """Builds `(params, batch) -> LossSums` without dropout or smoothing."""

  def eval_step(params, batch) -> losses.LossSums:
    logits = model.apply({"params": params}, batch.encoder_input_tokens, batch.decoder_input_tokens)
    return losses.cross_entropy(logits, batch.decoder_target_tokens, batch.decoder_loss_weights)

  return eval_step


def _means(sums: losses.LossSums, prefix: str) -> dict[str, float]:
  weight = float(sums.weight)
  return {
      f"{prefix}/loss": float(sums.loss) / weight,
      f"{prefix}/nats_per_token": -float(sums.log_likelihood) / weight,
      f"{prefix}/accuracy": float(sums.correct) / weight,
  }


class _StopRequest:
  """Turns SIGTERM and SIGINT into a flag while it is open."""

  def __enter__(self):
    self.asked = False
    self._old = {s: signal.signal(s, self._ask) for s in (signal.SIGTERM, signal.SIGINT)}
    return self

  def _ask(self, *_):
    self.asked = True

  def __exit__(self, *_):
    for number, handler in self._old.items():
      signal.signal(number, handler)


def train(
    model: nn.Module,
    batches: Batches,
    optimizer: optax.GradientTransformation,
    steps: int,
    directory: str,
    seed: int = 0,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    validation: Batches | None = None,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    evaluate_every: int = 1000,
    checkpoint_every: int = 500,
    log_every: int = 50,
    write_metrics: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None,
) -> TrainResult:
  """Trains `model` from scratch, or on from the newest checkpoint in `directory`.

  Args:
    model: a Flax module called as `(encoder_input_tokens, decoder_input_tokens,
      enable_dropout=)`.
    batches: the training batches, a function of the step.
    optimizer: an optax transformation.
    steps: steps in all.
    directory: for the checkpoints; what it already holds is resumed.
    seed: of the initial weights and of dropout.
    label_smoothing: see `losses.cross_entropy`.
    z_loss: see `losses.cross_entropy`.
    validation: batches for the validation loss, one epoch of them.
    evaluate: further metrics of the parameters, e.g. BLEU.
    evaluate_every: steps between evaluations; one more at the end.
    checkpoint_every: steps between checkpoints; one more at the end, and one
      when SIGTERM or SIGINT asks the run to stop.
    log_every: steps between training metrics.
    write_metrics: called with (step, metrics).

  Returns:
    A `TrainResult`.

  Raises:
    ValueError: a number of steps is below 1, or the checkpoint is of another
      model or optimizer.
    FloatingPointError: the loss or a weight stopped being finite; the last
      checkpoint, from before that, stays.
  """
  numbers = dict(steps=steps, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, log_every=log_every)
  for name, value in numbers.items():
    if value < 1:
      raise ValueError(f"{name}: expected at least 1, found {value}.")
  key = jax.random.key(seed)
  key_init, key_steps = jax.random.split(key)
  first = batches(0)
  init = lambda k: model.init(k, first.encoder_input_tokens, first.decoder_input_tokens)["params"]
  params = jax.jit(init)(key_init)
  state = TrainState(jnp.int32(0), params, optimizer.init(params))
  checkpoints = TrainCheckpoints(directory)
  if checkpoints.latest() is not None:
    state = checkpoints.restore(state)
    logging.info("Resuming from step %d in %s.", int(state.step), directory)
  train_step = jax.jit(make_train_step(model, optimizer, label_smoothing, z_loss), donate_argnums=0)
  eval_step = jax.jit(make_eval_step(model))
  norm = jax.jit(optax.tree.norm)

  def run_evaluation(step: int) -> dict[str, float]:
    metrics = {}
    if validation is not None:
      sums = [eval_step(state.params, validation(i)) for i in range(validation.steps_per_epoch)]
      metrics |= _means(jax.tree.map(lambda *x: sum(x), *sums), "validation")
    if evaluate is not None:
      metrics |= dict(evaluate(state.params))
    if metrics:
      write_metrics(step, metrics)
      logging.info("step %d: %s", step, ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    return metrics

  def save(step: int) -> int:
    if not norm(state.params) < float("inf"):  # A finite loss may have had a gradient that is not.
      raise FloatingPointError(f"The weights are not finite at step {step}; lower the learning rate.")
    checkpoints.save(step, state)
    return step

  step, saved, metrics, window = int(state.step), int(state.step), {}, None
  started, tokens = time.monotonic(), 0.0
  progress = tqdm.tqdm(total=steps, initial=step, unit="step", disable=not sys.stderr.isatty())
  with _StopRequest() as stop, progress, contextlib.closing(checkpoints):
    while step < steps and not stop.asked:
      state, sums = train_step(state, batches(step), key_steps)
      window = sums if window is None else jax.tree.map(jnp.add, window, sums)
      step += 1
      progress.update()
      if step % log_every == 0 or step == steps:
        means = _means(window, "train")
        if not means["train/loss"] < float("inf"):
          raise FloatingPointError(f"The loss is {means['train/loss']} near step {step}; lower the learning rate.")
        tokens += float(window.weight)
        means["train/tokens_per_second"] = tokens / (time.monotonic() - started)
        write_metrics(step, means)
        logging.info("step %d of %d: %s", step, steps, ", ".join(f"{k} {v:.4f}" for k, v in means.items()))
        window = None
      if step % evaluate_every == 0 or step == steps:
        metrics = run_evaluation(step)
      if step % checkpoint_every == 0 or step == steps:
        saved = save(step)
    if step > saved:
      save(step)
    if stop.asked:
      logging.info("Stopped at step %d, which is saved; the same command goes on from there.", step)
  return TrainResult(state.params, step, metrics)
