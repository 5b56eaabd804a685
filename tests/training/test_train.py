"""`training.train`: what is learned, what is written, and that a killed and resumed run ends as if it had not been.

`runs.py` holds the toy run and, as a program, the process that gets killed.
"""

import dataclasses
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from specdec.checkpoints import from_orbax
from specdec.training import checkpoints
from specdec.training import metrics
from specdec.training import optimizers
from specdec.training import train
from tests.training import runs

# Orbax closes its event loop on the first damaged array, and the others then complain into the void.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
  """Every run builds the same program; the tests build it once."""
  with pytest.MonkeyPatch.context() as patch:
    for name in ("make_train_step", "make_eval_step"):
      patch.setattr(train, name, functools.cache(getattr(train, name)))
    yield


@pytest.fixture(scope="module", autouse=True)
def compilation_cache(tmp_path_factory):
  """What is compiled here is there for the processes below."""
  settings = {
      "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
      "jax_persistent_cache_min_compile_time_secs": 0.0,
  }
  before = {name: getattr(jax.config, name) for name in settings}
  for name, value in settings.items():
    jax.config.update(name, value)
  yield {name.upper(): str(value) for name, value in settings.items()}
  for name, value in before.items():
    jax.config.update(name, value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """The run that nothing interrupts: its result, its metrics, and its directory."""
  directory = tmp_path_factory.mktemp("whole")
  write = metrics.writer(str(directory), tensorboard=False)
  held_out = runs.copy_task(12, 1, [8])
  result = runs.run(
      directory / "checkpoints", validation=held_out, evaluate=lambda params: {"validation/bleu": 1.5},
      evaluate_every=10, log_every=5, write_metrics=write,
  )  # fmt: skip
  return result, directory


def assert_same_params(found, expected):
  for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


def saved_steps(directory):
  return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


# --- What is learned and written -------------------------------------------


def test_loss_falls_and_is_written(whole):
  result, directory = whole
  records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
  training = {r["step"]: r for r in records if "train/loss" in r}
  validation = {r["step"]: r for r in records if "validation/loss" in r}
  assert sorted(training) == [5, 10, 15, 20]
  assert sorted(validation) == [10, 20]
  assert training[20]["train/loss"] < training[5]["train/loss"] - 0.1
  assert validation[20]["validation/loss"] < validation[10]["validation/loss"]
  assert set(training[5]) == {
      "step", "train/loss", "train/nats_per_token", "train/accuracy", "train/tokens_per_second"
  }  # fmt: skip
  assert all(r["validation/bleu"] == 1.5 for r in validation.values())
  # Validation has no smoothing and no z-loss, so its loss is the nats of a token.
  assert all(r["validation/loss"] == pytest.approx(r["validation/nats_per_token"]) for r in validation.values())
  assert result.step == runs.STEPS
  assert result.metrics == {k: v for k, v in validation[20].items() if k != "step"}
  assert saved_steps(directory / "checkpoints") == [15, 20], "the newest two are kept"


def test_mixed_lengths_took_part(whole):
  data = runs.copy_task()
  assert {data(step).encoder_input_tokens.shape for step in range(runs.STEPS)} == {(8, 4), (4, 8)}


def test_validation_loss_is_the_mean_over_tokens(whole):
  result, _ = whole
  data = runs.copy_task(12, 1, [8])
  nats, tokens, apply = 0.0, 0.0, jax.jit(runs.MODEL.apply)
  for step in range(data.steps_per_epoch):
    batch = data(step)
    logits = apply({"params": result.params}, batch.encoder_input_tokens, batch.decoder_input_tokens)
    log_p = np.float64(jax.nn.log_softmax(logits))
    picked = np.take_along_axis(log_p, batch.decoder_target_tokens[..., None], axis=-1)[..., 0]
    nats -= (picked * batch.decoder_loss_weights).sum()
    tokens += batch.decoder_loss_weights.sum()
  assert result.metrics["validation/loss"] == pytest.approx(nats / tokens, rel=1e-5)


def test_training_on_a_finished_run_changes_nothing(whole):
  result, directory = whole
  again = runs.run(directory / "checkpoints")
  assert again.step == runs.STEPS
  assert_same_params(again.params, result.params)


# --- Interrupted at any moment ----------------------------------------------


@pytest.mark.parametrize("step", [0, 4, 5, 17])
def test_resumed_after_an_error_it_ends_the_same(whole, tmp_path, step):
  def fail():
    raise RuntimeError("the data are gone")

  with pytest.raises(RuntimeError, match="the data are gone"):
    runs.run(tmp_path, runs.At(step, fail))
  assert saved_steps(tmp_path) == [s for s in (5, 10, 15) if s <= step][-2:]
  data = runs.At(-1, None)
  result = runs.run(tmp_path, data)
  assert data.asked[1] == step // runs.CHECKPOINT_EVERY * runs.CHECKPOINT_EVERY, "it goes on after the checkpoint"
  assert_same_params(result.params, whole[0].params)


def test_signals_stop_the_run_with_a_checkpoint(whole, tmp_path):
  before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
  for number, at, expected in ((signal.SIGTERM, 3, 4), (signal.SIGINT, 11, 12)):
    stopped = runs.run(tmp_path, runs.At(at, lambda number=number: os.kill(os.getpid(), number)))
    assert stopped.step == expected
    assert saved_steps(tmp_path)[-1] == expected
  assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
  assert_same_params(runs.run(tmp_path).params, whole[0].params)


def test_killed_processes_resume_to_the_same_result(whole, tmp_path, compilation_cache):
  """SIGTERM, then SIGKILL between two checkpoints, then SIGKILL while one is written; all in one directory."""

  def process(how, step):
    return subprocess.run(
        [sys.executable, "-m", "tests.training.runs", str(tmp_path), how, str(step)],
        cwd=ROOT, env=os.environ | compilation_cache, capture_output=True, text=True, check=False,
    )  # fmt: skip

  stopped = process("term", 2)
  assert stopped.returncode == 0, stopped.stderr
  assert "ended at step 3" in stopped.stdout
  assert saved_steps(tmp_path) == [3]
  step = int(np.random.default_rng(2022).integers(6, 10))
  killed = process("kill", step)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  assert saved_steps(tmp_path) == [3, 5]
  killed = process("kill-in-save", 10)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  assert saved_steps(tmp_path) == [3, 5]
  assert any("10" in path.name for path in tmp_path.iterdir()), "what was half-written lies under another name"
  data = runs.At(-1, None)
  assert_same_params(runs.run(tmp_path, data).params, whole[0].params)
  assert data.asked[1] == 5


# --- Errors -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["steps", "evaluate_every", "checkpoint_every", "log_every"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_of_steps(tmp_path, name, value):
  with pytest.raises(ValueError, match=f"{name}: expected at least 1, found {value}"):
    runs.run(tmp_path, **{name: value})
  assert not list(tmp_path.iterdir())


class Poisoned(runs.At):
  """Batches of which one has an infinite loss."""

  def __call__(self, step):
    batch = super().__call__(step)
    weights = batch.decoder_loss_weights
    return batch._replace(decoder_loss_weights=np.full_like(weights, np.inf)) if step == 7 else batch


@pytest.mark.parametrize(
    ("log_every", "stop_at", "message"),
    [
        (1, -1, "loss is nan near step 8"),
        (99, -1, "weights are not finite at step 10"),
        (99, 7, "weights are not finite at step 8"),
    ],
    ids=["seen in the loss", "seen before a checkpoint", "seen before the last checkpoint"],
)
def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(tmp_path, log_every, stop_at, message):
  data = Poisoned(stop_at, lambda: os.kill(os.getpid(), signal.SIGTERM))
  with pytest.raises(FloatingPointError, match=message):
    runs.run(tmp_path, data, log_every=log_every)
  assert saved_steps(tmp_path) == [5]
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(from_orbax.load(tmp_path)))


def test_checkpoint_of_another_model_or_optimizer(whole):
  _, directory = whole
  other = runs.T5(dataclasses.replace(runs.MODEL.config, vocab_size=16))
  message = r"step 20 in .* is of another model or optimizer: params/\S+ has shape \(16, 16\)"
  with pytest.raises(ValueError, match=message):
    train.train(other, runs.copy_task(), optimizers.adafactor(0.1), 50, str(directory / "checkpoints"))
  with pytest.raises(ValueError, match="step 20 in .* is of another model or optimizer: opt_state/"):
    train.train(runs.MODEL, runs.copy_task(), optax.sgd(0.1), 50, str(directory / "checkpoints"))
  assert saved_steps(directory / "checkpoints") == [15, 20]


def test_damaged_checkpoint(tmp_path):
  state = train.TrainState(np.int32(2), {"w": np.arange(4000.0)}, ())
  store = checkpoints.TrainCheckpoints(str(tmp_path))
  store.save(2, jax.tree.map(jax.numpy.asarray, state))
  store.close()
  for path in tmp_path.rglob("d/*"):
    os.truncate(path, 5)
  with pytest.raises(ValueError, match="training checkpoint: step 2 in .* cannot be read"):
    checkpoints.TrainCheckpoints(str(tmp_path)).restore(state)


def test_no_checkpoint(tmp_path):
  with pytest.raises(ValueError, match="expected at least one, found none"):
    checkpoints.TrainCheckpoints(str(tmp_path)).restore({})


def test_metrics_of_a_killed_run_are_written_once(tmp_path):
  write = metrics.writer(str(tmp_path), tensorboard=False)
  for step in (5, 10, 15):
    write(step, {"train/loss": 1.0})
  with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
    file.write('{"step": 20, "tra')  # The kill came here; the newest checkpoint is of step 9.
  resumed = metrics.writer(str(tmp_path), tensorboard=False)
  resumed(10, {"train/loss": 2.0})
  resumed(10, {"validation/loss": 2.5})
  records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [r["step"] for r in records] == [5, 10, 10]
  assert records[1:] == [{"step": 10, "train/loss": 2.0}, {"step": 10, "validation/loss": 2.5}]


def test_tensorboard_files(tmp_path):
  pytest.importorskip("clu")
  write = metrics.writer(str(tmp_path / "new"), tensorboard=True)
  write(3, {"train/loss": 1.25})
  write(4, {"train/loss": 1.0})
  lines = (tmp_path / "new" / "metrics.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines] == [{"step": 3, "train/loss": 1.25}, {"step": 4, "train/loss": 1.0}]
  events = list((tmp_path / "new").glob("events.out.tfevents.*"))
  assert len(events) == 1 and b"train/loss" in events[0].read_bytes()
