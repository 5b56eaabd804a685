"""`--mode=train` from gin and one's own files to parameters that decode; imports TensorFlow."""

import json

import pytest

from specdec import models
from specdec.networks.t5 import T5, T5Config
from tests.modes import tiny as lib

GIN = """
from __gin__ import dynamic_registration
from specdec.data import tasks
from specdec.data import vocabularies
from specdec.modes import train
from specdec.networks import t5
from specdec.training import optimizers

vocabularies.sentencepiece_or_train:
  path = '{folder}/words.model'
  folder = '{folder}'
  files = ['train.de', 'train.en']
  size = 64
tasks.parallel_text:
  name = 'toy'
  vocabulary = @vocabularies.sentencepiece_or_train()
  folder = '{folder}'
  inputs = {{'train': 'train.en', 'validation': 'val.en'}}
  targets = {{'train': 'train.de', 'validation': 'val.de'}}
t5.T5Config:
  vocab_size = 64
  emb_dim = 16
  num_heads = 2
  head_dim = 8
  num_encoder_layers = 1
  num_decoder_layers = 1
  mlp_dim = 32
t5.T5.config = @t5.T5Config()
optimizers.adafactor.learning_rate = 0.01
train.train:
  model = @t5.T5()
  task = @tasks.parallel_text()
  optimizer = @optimizers.adafactor()
  steps = 2
  directory = '{folder}/run'
  boundaries = (48,)
  tokens_per_batch = 192
  bleu_sentences = 3
  log_every = 1
  tensorboard = False
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("toy")
  english = [f"Sentence {i}: a dog and {i % 7} children play." for i in range(30)]
  for language, lines in (("de", lib.SENTENCES * 3), ("en", english)):
    (folder / f"train.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / f"val.{language}").write_text("\n".join(lines[:5]) + "\n", encoding="utf-8")
  (folder / "train.gin").write_text(GIN.format(folder=folder), encoding="utf-8")
  return folder


def metrics(folder):
  return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_train_then_load(folder, compiled_once):
  command = ["--mode=train", f"--gin_file={folder}/train.gin"]
  assert lib.call_main(*command) is None
  records = metrics(folder)
  assert [r["step"] for r in records if "train/loss" in r] == [1, 2]
  (evaluated,) = [r for r in records if "validation/loss" in r]
  assert evaluated["step"] == 2 and 0 <= evaluated["validation/bleu"] <= 100
  # Another model in the same directory is refused in one line.
  message = lib.call_main(*command, "--gin.t5.T5Config.mlp_dim=16")
  assert message.startswith("specdec: training checkpoint: step 2 in ") and "\n" not in message
  # Going on, without BLEU.
  assert lib.call_main(*command, "--gin.train.train.steps=3", "--gin.train.train.bleu_sentences=0") is None
  assert metrics(folder)[-1]["step"] == 3 and "validation/bleu" not in metrics(folder)[-1]
  vocabulary = models.vocabulary(str(folder / "words.model"))
  config = T5Config(
      vocab_size=64, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=32
  )
  assert models.load_model(T5(config), str(folder / "run"), vocabulary).vocabulary.size == 64


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("train.train.steps=0", "specdec: steps: expected at least 1, found 0."),
        ("tasks.parallel_text.targets={'train': 'train.de'}", "specdec: task toy: expected the same splits"),
        ("tasks.parallel_text.folder='nowhere'", "specdec: task: expected these files to exist: ['nowhere/train.en']"),
        ("train.train.validation_split='test'", "specdec: task toy: expected a split among"),
    ],
)
def test_failures_end_with_one_message(folder, binding, message):
  settings = [f"--gin_file={folder}/train.gin", f"--gin.train.train.directory='{folder}/bad'", f"--gin.{binding}"]
  found = lib.call_main("--mode=train", *settings)
  assert found.startswith(message) and "\n" not in found
