"""A tiny pair in files, for the tests of the modes and of main: vocabularies, checkpoints, gin files, sentences."""

import functools
import pathlib
from typing import NamedTuple

from absl import flags
from absl.testing import flagsaver
import gin
import jax
import numpy as np
import pytest

from specdec import main
from specdec import models
from specdec import recipes
from specdec.adapters import flax_model
from specdec.benchmark import calls
from specdec.checkpoints import from_orbax
from specdec.data import vocabularies
from tests import fakes

PIECES = 64
GAMMA = 3
NEW_TOKENS = 12
LENGTHS = (48,)

SENTENCES = (
    "Ein Hund läuft über die Straße.",
    "Zwei Kinder spielen im Garten.",
    "Ein Mann fährt Fahrrad.",
    "Die Frau liest ein Buch auf der Bank.",
    "Drei Leute sitzen am Tisch und essen.",
    "Ein großer Hund schläft.",
    "Kinder laufen.",
    "Der Mann und die Frau spielen mit dem Hund im Garten.",
    "Öl, Äpfel und Übermut.",
    "Ein Buch liegt auf dem Tisch.",
)

GIN = """
from __gin__ import dynamic_registration
from specdec import models
from specdec.modes import {mode}
from specdec.networks import t5

FOLDER = '{folder}'
t5.T5Config:
  vocab_size = {logits}
  emb_dim = 16
  num_heads = 2
  head_dim = 8
  num_encoder_layers = 1
  mlp_dim = 32
target/t5.T5Config.num_decoder_layers = 2
draft/t5.T5Config.num_decoder_layers = 1
target/t5.T5.config = @target/t5.T5Config()
draft/t5.T5.config = @draft/t5.T5Config()
target/models.vocabulary.path = '{folder}/vocabulary.model'
draft/models.vocabulary.path = '{folder}/vocabulary.model'
target/models.load_model:
  module = @target/t5.T5()
  checkpoint = '{folder}/target'
  vocabulary = @target/models.vocabulary()
draft/models.load_model:
  module = @draft/t5.T5()
  checkpoint = '{folder}/draft'
  vocabulary = @draft/models.vocabulary()
{mode}.{mode}:
  target = @target/models.load_model()
  draft = @draft/models.load_model()
  input = '{folder}/sentences.txt'
  gamma = {gamma}
  input_lengths = {lengths}
  max_new_tokens = {new_tokens}
"""


class Tiny(NamedTuple):
  """Where the files are, and the pair itself."""

  folder: pathlib.Path
  target: models.Model
  draft: models.Model

  def gin(self, mode: str) -> str:
    """Writes the gin file of a mode that takes two models and a gamma."""
    text = GIN.format(mode=mode, folder=self.folder, logits=PIECES, gamma=GAMMA, lengths=LENGTHS, new_tokens=NEW_TOKENS)
    return self.write(f"{mode}.gin", text)

  def write(self, name: str, content: str | bytes) -> str:
    """Writes a file into the folder."""
    path = self.folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@functools.cache
def fakes_pair() -> fakes.T5Pair:
  """Greedy outputs of it end at different lengths, and drafts are accepted 0 to 3 at a time."""
  return fakes.t5_pair(PIECES, seed=3)


def load(folder: pathlib.Path) -> Tiny:
  """The pair from its files."""
  vocabulary = vocabularies.SentencePieceVocabulary(str(folder / "vocabulary.model"))
  modules = {"target": fakes_pair().module, "draft": fakes_pair().draft_module}
  return Tiny(folder, *(models.load_model(module, str(folder / role), vocabulary) for role, module in modules.items()))


def make(folder: pathlib.Path) -> Tiny:
  """Writes vocabulary.model, sentences.txt and the checkpoints target and draft, and loads them."""
  (folder / "sentences.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
  vocabularies.train_sentencepiece(str(folder / "vocabulary.model"), SENTENCES, PIECES)
  from_orbax.save(folder / "target", jax.tree.map(np.asarray, fakes_pair().variables))
  from_orbax.save(folder / "draft", jax.tree.map(np.asarray, fakes_pair().draft_variables))
  return load(folder)


# The same model and gamma give the same step, so that the tests of a process compile it once.
_CACHED = {
    (module, name): functools.cache(getattr(module, name))
    for module, name in (
        (flax_model, "t5_model"),
        (recipes, "autoregressive"),
        (recipes, "leviathan"),
        (recipes, "drafted_by"),
        (recipes, "sampling_transform"),
        (calls, "call_loop"),
    )
}


@pytest.fixture(scope="module")
def compiled_once():
  """Puts the cached builders in place."""
  with pytest.MonkeyPatch.context() as patch:
    for (module, name), cached in _CACHED.items():
      patch.setattr(module, name, cached)
    yield


@pytest.fixture(scope="session")
def pair_files(tmp_path_factory):
  """The files of the pair."""
  folder = tmp_path_factory.mktemp("pair")
  make(folder)
  return folder


@pytest.fixture(scope="module")
def tiny(pair_files, compiled_once):
  """The pair."""
  return load(pair_files)


def call_main(*arguments: str) -> str | None:
  """Runs main in this process: the message that it ends with, None if it ends well."""
  with flagsaver.flagsaver():
    flags.FLAGS(main.rewrite_gin_args(["specdec", *arguments]))
    try:
      main.main(["specdec"])
    except SystemExit as end:
      return end.code
    finally:
      gin.clear_config(clear_constants=True)


def log_laws(module, variables, input_ids, output_ids) -> np.ndarray:
  """Log-law [L, V] before each output token, by the Flax module on its raw parameters."""
  source = np.zeros((1, LENGTHS[-1]), np.int32)
  source[0, : len(input_ids)] = input_ids
  fed = np.zeros((1, 2 * NEW_TOKENS), np.int32)
  fed[0, 1 : len(output_ids)] = output_ids[:-1]
  logits = _apply(module, variables, source, fed)[0, : len(output_ids)]
  return np.asarray(jax.nn.log_softmax(logits), np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _apply(module, variables, source, fed):
  return module.apply({"params": variables}, source, fed)
