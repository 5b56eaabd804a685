"""`--mode=fit_ngram`, and decoding with what it wrote: exact like every draft, and measured as any other."""

import gzip
import json

import numpy as np
import pytest

from specdec import models
from specdec.data import vocabularies
from specdec.drafters import ngram
from specdec.drafters import ngram_counts
from specdec.modes import decode
from specdec.modes import fit_ngram
from specdec.modes import measure_alpha
from tests.modes import tiny as lib

SHAPE = dict(batch_size=4, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)


@pytest.fixture(scope="module")
def counted(tiny, tmp_path_factory):
  """The n-grams of the target's own greedy outputs."""
  folder = tmp_path_factory.mktemp("ngram")
  records = decode.decode(tiny.target, input=f"{tiny.folder}/sentences.txt", output=str(folder / "out.jsonl"), compare=0, **SHAPE)
  counter = ngram_counts.Counter(tiny.target.vocabulary.size, 3)
  counter.add([record["output_ids"] for record in records])
  ngram_counts.save(str(folder / "ngram.npz"), counter.tables(), tiny.target.vocabulary.pieces())
  return records, str(folder / "ngram.npz")


def test_lines_of_files_are_counted(tiny, tmp_path):
  vocabulary = tiny.target.vocabulary
  (tmp_path / "a.txt").write_text(lib.SENTENCES[0] + "\n")
  (tmp_path / "b.txt.gz").write_bytes(gzip.compress((lib.SENTENCES[1] + "\n").encode()))
  files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz")]
  tables = fit_ngram.fit_ngram(vocabulary, str(tmp_path / "out.npz"), files, order=2)
  texts = [[*vocabulary.encode(text), vocabularies.EOS_ID] for text in lib.SENTENCES[:2]]
  expected = ngram_counts.Counter(vocabulary.size, 2)
  expected.add(texts)
  for found, right in zip(tables.orders[0], expected.tables().orders[0]):
    np.testing.assert_array_equal(found, right)
  loaded = models.load_ngram(str(tmp_path / "out.npz"), vocabulary, order=1)
  np.testing.assert_array_equal(loaded.params.unigram, tables.unigram)
  with pytest.raises(ValueError, match="expected either input or task, found neither"):
    fit_ngram.fit_ngram(vocabulary, str(tmp_path / "out.npz"))


def test_greedy_output_is_the_plain_decoder_s(tiny, counted, tmp_path):
  plain, path = counted
  draft = models.load_ngram(path, tiny.target.vocabulary)
  records = decode.decode(
      tiny.target, draft, lib.GAMMA, f"{tiny.folder}/sentences.txt", str(tmp_path / "out.jsonl"), compare=0, **SHAPE
  )
  assert [r["output_ids"] for r in records] == [r["output_ids"] for r in plain]
  assert sum(r["accepted"] for r in records) > 0.3 * sum(r["reached"] for r in records)


def test_alpha_of_ngrams_as_a_model_and_as_a_drafter_that_looks_on(tiny, counted, tmp_path):
  """The two ways of measuring agree: scoring the text, and proposing before each of its tokens."""
  _, path = counted
  as_model = models.load_ngram(path, tiny.target.vocabulary)
  as_drafter = models.Model(None, as_model.params, as_model.vocabulary, ngram.ngram_drafter)
  how = dict(gamma=lib.GAMMA, temperatures=[0.0, 1.0], leniences=[1.0, 0.5], input=f"{tiny.folder}/sentences.txt", **SHAPE)
  one = measure_alpha.measure_alpha(tiny.target, as_model, output=str(tmp_path / "a"), **how)
  two = measure_alpha.measure_alpha(tiny.target, as_drafter, output=str(tmp_path / "b"), **how)
  assert [json.loads(line) for line in (tmp_path / "b").read_text().splitlines()] == two
  for a, b in zip(one[:2], two[:2], strict=True):  # Greedy: the same text.
    assert (a["tokens"], a["sentences"]) == (b["tokens"], b["sentences"])
    assert b["alpha"] == pytest.approx(a["alpha"], abs=1e-5)
    assert b["standard_error"] == pytest.approx(a["standard_error"], abs=1e-5)
  for a, b in zip(one[2:], two[2:], strict=True):  # Sampled: other draws of the same law.
    assert abs(a["alpha"] - b["alpha"]) < 5 * np.hypot(a["standard_error"], b["standard_error"])
  assert one[0]["alpha"] <= one[1]["alpha"] and one[2]["alpha"] < one[3]["alpha"], "lenience accepts more"
  assert one[1]["counted"] == pytest.approx(
      sum(one[1]["accepted_by_position"]) / sum(one[1]["reached_by_position"])
  )
