"""`python -m t5x.train` trains our network, `python -m t5x.infer` decodes it plainly and with two lines more.

The target is what T5X trained (Orbax format); the draft is its earlier step,
written once more in T5X's legacy format. The gin files are a user's own.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("t5x", reason="T5X is not on PYTHONPATH (README.md, 'Where T5X comes in')")

from t5x import checkpoints
from t5x import partitioning
from t5x import train_state as train_state_lib

from specdec import loop
from specdec import recipes
from specdec.adapters import flax_model
from specdec.adapters import t5x_model
from specdec.adapters.t5x_module import T5XModule
from specdec.checkpoints import from_t5x
from specdec.interfaces import Params, Prompt
from specdec.networks.t5 import T5, T5Config
from specdec.probability import transforms
from tests.t5x import task

STEPS, EARLIER = 60, 30
SIZES = dict(vocab_size=task.V, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32)
SIZES |= dict(num_encoder_layers=1, num_decoder_layers=1)
CONFIG = T5Config(**SIZES)
COMMON = f"""
from __gin__ import dynamic_registration
import __main__ as PROGRAM_script
import seqio
from t5x import adafactor
from t5x import decoding
from t5x import models
from t5x import partitioning
from t5x import utils
from t5x.examples.t5 import network
from specdec.adapters import t5x_module
from specdec.networks import t5
from tests.t5x import task

seqio.PassThroughVocabulary:
  size = {task.V}
  eos_id = 1
models.EncoderDecoderModel:
  module = @NETWORK()
  input_vocabulary = @seqio.PassThroughVocabulary()
  output_vocabulary = @seqio.PassThroughVocabulary()
  optimizer_def = @adafactor.Adafactor()
  decode_fn = @decoding.temperature_sample
adafactor.Adafactor.logical_factor_rules = @adafactor.standard_logical_factor_rules()
NETWORK.config = @SIZES()
SIZES:
{chr(10).join(f"  {name} = {value}" for name, value in SIZES.items())}
  mlp_activations = ('gelu', 'linear')
  dropout_rate = 0.0
"""
TASK = f"""
MODEL = @models.EncoderDecoderModel()
MIXTURE_OR_TASK_NAME = '{task.NAME}'
TASK_FEATURE_LENGTHS = {{{task.LENGTHS}}}
"""  # After the include of the run that asks for them; the braces are for `format`.
OURS = COMMON.replace("PROGRAM", "train").replace("NETWORK", "t5x_module.T5XModule").replace("SIZES", "t5.T5Config")
THEIRS = COMMON.replace("PROGRAM", "infer").replace("NETWORK", "network.Transformer").replace("SIZES", "network.T5Config")
TRAIN = "\ninclude 't5x/configs/runs/pretrain.gin'" + TASK + """
MODEL_DIR = '{folder}'
TRAIN_STEPS = {steps}
BATCH_SIZE = 16
USE_CACHED_TASKS = False
RANDOM_SEED = 0
train_script.train.eval_steps = 1
train_script.train.eval_period = {period}
utils.SaveCheckpointConfig.period = {period}
utils.create_learning_rate_scheduler.factors = 'constant'
utils.create_learning_rate_scheduler.base_learning_rate = 0.03
"""
INFER = "\ninclude 't5x/configs/runs/infer.gin'" + TASK + """
CHECKPOINT_PATH = '{target}'
INFER_OUTPUT_DIR = '{output}'
infer_script.infer.mode = 'predict_with_aux'
utils.DatasetConfig.batch_size = 8
utils.RestoreCheckpointConfig.dtype = 'float32'
partitioning.PjitPartitioner.num_partitions = {partitions}
"""
TWO_LINES = """
include 'runs/t5x_infer.gin'
DRAFT_CHECKPOINT_PATH = '{draft}'
"""
DRAFT_SIZES = "\n" + "\n".join(f"small/t5.T5Config.{name} = {value}" for name, value in SIZES.items())


def gin_file(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
  path = folder / name
  path.write_text(text)
  return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("t5x")


@pytest.fixture(scope="module")
def trained(folder):
  """The checkpoint that `python -m t5x.train` wrote of our network."""
  text = OURS + TRAIN.format(folder=folder / "model", steps=STEPS, period=EARLIER)
  task.run_t5x("train", gin_file(folder, "train.gin", text))
  return folder / "model" / f"checkpoint_{STEPS}"


@pytest.fixture(scope="module")
def draft(folder, trained):
  """The earlier step, written by T5X in its legacy format."""
  params = from_t5x.load(trained.parent / f"checkpoint_{EARLIER}")
  model = task.t5x_model(T5XModule(CONFIG))
  shapes = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, 8)}
  axes = jax.eval_shape(lambda key: model.get_initial_variables(key, shapes), jax.random.PRNGKey(0))["params_axes"]
  state = train_state_lib.InferenceState(jnp.array(EARLIER), jax.tree.map(jnp.asarray, params), params_axes=axes)
  checkpoints.Checkpointer(state, partitioning.PjitPartitioner(num_partitions=1), str(folder / "draft")).save(state)
  return folder / "draft" / f"checkpoint_{EARLIER}"


def infer(folder, trained, name, text="", devices=1, partitions=1):
  """The JSON lines of `python -m t5x.infer`."""
  output = folder / name
  text = THEIRS + INFER.format(target=trained, output=output, partitions=partitions) + text
  task.run_t5x("infer", gin_file(folder, f"{name}.gin", text), devices)
  (file,) = output.glob(f"{task.NAME}-predict_with_aux.jsonl-*-of-00001")
  return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(folder, trained):
  """What T5X says by itself, on its own network with the parameters of ours."""
  return infer(folder, trained, "alone", "\ndecoding.temperature_sample.temperature = 0.0")


def test_specdec_decodes_what_t5x_trained(trained, draft, alone):
  """`checkpoints.from_t5x`, then our loop with a draft: T5X's own predictions."""
  module = T5(CONFIG)
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  expected = jax.eval_shape(module.init, jax.random.key(0), token, token)["params"]
  params = [flax_model.prepare(module, from_t5x.load(path, expected=expected)) for path in (trained, draft)]
  sources = [example["inputs"] for example in task.numbers("test").as_numpy_iterator()]
  tokens = np.zeros((len(sources), task.LENGTHS["inputs"]), np.int32)
  for row, source in zip(tokens, sources):
    row[: len(source) + 1] = [*source, 1]
  bos, one = np.zeros((len(tokens), 1), np.int32), np.ones(len(tokens), np.int32)
  prompt = Prompt(*map(jnp.asarray, (tokens, tokens > 0, bos, one)))
  model = flax_model.t5_model(module)
  output = loop.generate(
      recipes.leviathan(model, model, 3), jax.random.key(0), Params(*params), prompt,
      transforms.sampling(len(tokens)), task.LENGTHS["targets"],
  )  # fmt: skip
  for row, n, theirs in zip(np.asarray(output.tokens), np.asarray(output.lengths), alone):
    assert row[:n].tolist() == theirs["prediction"][:n]
  statistics = output.statistics
  assert 0.3 < float(statistics.accepted.sum() / statistics.visited.sum()) < 1.0  # An earlier step is a fair draft.


@pytest.mark.parametrize("devices,partitions", [(1, 1), (4, 2)])
def test_two_lines_give_the_same_predictions(folder, trained, draft, alone, devices, partitions):
  """T5X's inference with the adapter, both models on T5X's partitioner: greedily what T5X alone says."""
  text = TWO_LINES.format(draft=draft) + DRAFT_SIZES
  ours = infer(folder, trained, f"speculative_{devices}", text, devices, partitions)
  assert [record["prediction"] for record in ours] == [record["prediction"] for record in alone]
  assert len(ours) == task.EXAMPLES["test"]
  for record in ours:
    aux = record["aux"]
    assert aux["scores"] == 0
    assert aux["drafted"] == 5 * aux["steps"] and 0 <= aux["alpha"] <= 1
  steps, committed = (sum(record["aux"][name] for record in ours) for name in ("steps", "committed"))
  assert steps < committed


def test_restoring_without_a_draft_folder(trained):
  shapes = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, 8)}
  base = task.t5x_model(T5XModule(CONFIG))
  model = t5x_model.SpeculativeEncoderDecoderModel(base, recipes.leviathan, T5(CONFIG))
  make = lambda m: train_state_lib.InferenceState.create(m.get_initial_variables(jax.random.PRNGKey(0), shapes))
  partitioner = partitioning.PjitPartitioner(num_partitions=1)
  manager = t5x_model.PairCheckpointManager(str(trained) + "_gone", str(trained), make(model), partitioner)
  with pytest.raises(ValueError, match="expected the draft's folder checkpoint_STEP, found none"):
    manager.restore(path=str(trained))
  with pytest.raises(ValueError, match="expected the parameters {target, draft}"):
    t5x_model.PairCheckpointManager("gone", str(trained), make(base), partitioner)
