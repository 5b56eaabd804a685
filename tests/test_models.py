"""`specdec.models`: loading, pairing, prompts and texts."""

import os

import jax.numpy as jnp
import numpy as np
import pytest

from specdec import models
from specdec.data import vocabularies
from specdec.loop import Output
from specdec.trees import topology
from tests.modes import tiny as lib
from tests.modes.tiny import compiled_once, pair_files, tiny  # noqa: F401


def test_resolve():
  found = models.resolve("pretrained:ende/target")
  assert os.path.isabs(found) and found.endswith(os.path.join("specdec", "pretrained", "ende/target"))
  for path in ("some/folder", "/abs", "gs://bucket/pretrained:ende", ""):
    assert models.resolve(path) == path


def test_prompt_encodes_texts(tiny):
  encode = tiny.target.vocabulary.encode
  texts = ["Ein Hund läuft.", "Ein Mann und eine Frau spielen im Garten."]
  rows = [[*encode(text), vocabularies.EOS_ID] for text in texts]
  prompt = tiny.target.prompt(texts)
  assert prompt.tokens.shape == (2, max(map(len, rows)))
  for tokens, mask, row in zip(np.asarray(prompt.tokens), np.asarray(prompt.mask), rows):
    assert tokens[mask].tolist() == row
  np.testing.assert_array_equal(prompt.prefix, [[0], [0]])
  np.testing.assert_array_equal(prompt.prefix_length, [1, 1])
  assert tiny.target.prompt(texts, length=40).tokens.shape == (2, 40)
  cut = tiny.target.prompt(texts, length=5)
  np.testing.assert_array_equal(cut.tokens, [[*row[:4], vocabularies.EOS_ID] for row in rows])


def test_texts_decode_rows(tiny):
  ids = tiny.target.vocabulary.encode("Ein Hund")
  tokens = np.zeros((2, len(ids) + 2), np.int32)
  tokens[0, : len(ids) + 1] = [*ids, vocabularies.EOS_ID]
  tokens[1, : len(ids)] = ids
  output = Output(jnp.asarray(tokens), jnp.array([len(ids) + 1, 2]), None, None, None)
  assert tiny.target.texts(output) == ["Ein Hund", tiny.target.vocabulary.decode(ids[:2])]


def test_pair_checks_the_vocabulary(tiny):
  assert models.pair(tiny.target, tiny.draft) == (tiny.target, tiny.draft)
  assert models.pair(tiny.target, None) == (tiny.target, None)
  other = models.Model(tiny.draft.model, tiny.draft.params, models.vocabulary(tiny.draft.vocabulary.path, extra_ids=2))
  with pytest.raises(ValueError, match=r"target has 64 pieces and the draft 66; .* is 64, '<extra_id_1>'"):
    models.pair(tiny.target, other)


def test_load_model_refuses_what_does_not_fit(tiny):
  pair, vocabulary = lib.fakes_pair(), tiny.target.vocabulary
  with pytest.raises(ValueError, match="it has 164 pieces, and the model only 64 logits"):
    models.load_model(pair.module, str(tiny.folder / "target"), models.vocabulary(vocabulary.path, extra_ids=100))
  with pytest.raises(ValueError, match=r"\d+ of \d+ parameters do not fit the model") as raised:
    models.load_model(pair.module, str(tiny.folder / "draft"), vocabulary)
  assert "decoder/layers_1/mlp/wo/kernel: expected shape (32, 16), found no such parameter" in str(raised.value)
  with pytest.raises(ValueError, match="expected a checkpoint folder, found nothing"):
    models.load_model(pair.module, str(tiny.folder / "gone"), vocabulary)


def test_load_model_casts(tiny):
  half = models.load_model(lib.fakes_pair().module, str(tiny.folder / "target"), tiny.target.vocabulary, dtype="bfloat16")
  assert half.params.decoder.embedding.dtype == jnp.bfloat16
  assert tiny.target.params.decoder.embedding.dtype == jnp.float32


def test_sharpness_multiplies_the_logits_of_random_weights(tiny):
  prompt = tiny.target.prompt(["Ein Hund."], 8)

  def logits(sharpness):
    model = models.random_model(tiny.target.module, tiny.target.vocabulary, 3, sharpness)
    state = model.model.init(model.params, prompt, 4)
    return model.model.score(model.params, state, prompt.prefix, topology.chain(1))[0].logits

  np.testing.assert_allclose(logits(6.0), 6 * logits(1.0), rtol=1e-4, atol=1e-5)
  with pytest.raises(ValueError, match="sharpness: expected a factor above 0"):
    logits(0.0)


def test_unknown_pretrained_name():
  with pytest.raises(ValueError, match=r"pretrained: expected one of \['ende'\], found 'deen'"):
    models.pretrained("deen")


def test_shipped_pair_loads():
  for part in ("target", "draft", "vocabulary.model"):
    if not os.path.exists(models.resolve(f"pretrained:ende/{part}")):
      pytest.skip(f"the shipped {part} is not in this checkout")
  target, draft = models.pretrained("ende")
  assert target.vocabulary.pieces() == draft.vocabulary.pieces()
  assert target.vocabulary.size == models.SHIPPED["ende"]["target"].vocab_size
