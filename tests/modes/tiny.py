"""A tiny pair in files, for the tests of the modes and of main: vocabularies, checkpoints, gin files, sentences."""

import functools
import pathlib
from typing import NamedTuple

import jax
import numpy as np

from specdec import models
from specdec.checkpoints import from_orbax
from specdec.data import vocabularies
from tests import fakes

PIECES = 64
GAMMA = 3
NEW_TOKENS = 12
LENGTHS = (16, 32)

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
    """Writes the gin file of a mode of two models and a gamma."""
    path = self.folder / f"{mode}.gin"
    text = GIN.format(
        mode=mode, folder=self.folder, logits=PIECES, gamma=GAMMA, lengths=LENGTHS, new_tokens=NEW_TOKENS
    )
    path.write_text(text, encoding="utf-8")
    return str(path)

  def write(self, name: str, text: str | bytes) -> str:
    """Writes a file into the folder."""
    path = self.folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@functools.cache
def fake_pair() -> fakes.T5Pair:
  """Greedy outputs of it end at different lengths, and drafts are accepted 0 to 3 at a time."""
  return fakes.t5_pair(PIECES, seed=3)


def make(folder: pathlib.Path) -> Tiny:
  """Writes vocabulary.model, sentences.txt and the checkpoints target and draft."""
  (folder / "sentences.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
  vocabularies.train_sentencepiece(str(folder / "vocabulary.model"), SENTENCES, PIECES)
  pair = fake_pair()
  from_orbax.save(folder / "target", jax.tree.map(np.asarray, pair.variables))
  from_orbax.save(folder / "draft", jax.tree.map(np.asarray, pair.draft_variables))
  vocabulary = vocabularies.SentencePieceVocabulary(str(folder / "vocabulary.model"))
  return Tiny(
      folder,
      models.Model(pair.target, pair.target_params, vocabulary),
      models.Model(pair.draft, pair.draft_params, vocabulary),
  )
