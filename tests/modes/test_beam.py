"""`--mode=beam`, and beam search as a second baseline of `--mode=evaluate`."""

import json

import numpy as np
import pytest
import sacrebleu

from specdec import recipes
from specdec.data import metrics
from specdec.modes import beam
from specdec.modes import decode
from specdec.modes import evaluate
from tests.modes import tiny as lib

SHAPE = dict(batch_size=4, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)
BEAMS = 3


@pytest.fixture(scope="module", autouse=True)
def one_method():
  """The same search for every test, so that it compiles once."""
  with pytest.MonkeyPatch.context() as patch:
    found, build = {}, recipes.beam_search
    patch.setattr(recipes, "beam_search", lambda target, beams, eos_id=1: found.setdefault(beams, build(target, beams)))
    yield


@pytest.fixture(scope="module")
def records(tiny, tmp_path_factory):
  path = tmp_path_factory.mktemp("beam") / "out.jsonl"
  found = beam.beam(tiny.target, str(tiny.folder / "sentences.txt"), str(path), beams=BEAMS, **SHAPE)
  assert [json.loads(line) for line in path.read_text().splitlines()] == found
  assert [p.name for p in path.parent.iterdir()] == ["out.jsonl"]
  return found


def test_hypotheses_have_the_scores_of_the_flax_module(tiny, records):
  assert [r["inputs"] for r in records] == list(lib.SENTENCES)
  several = 0
  for record in records:
    hypotheses = record["hypotheses"]
    scores = [h["score"] for h in hypotheses]
    assert scores == sorted(scores, reverse=True) and record["prediction"] == hypotheses[0]["prediction"]
    assert len({tuple(h["output_ids"]) for h in hypotheses}) == len(hypotheses) <= BEAMS
    several += len(hypotheses) > 1
    for hypothesis in hypotheses:
      ids = hypothesis["output_ids"]
      laws = lib.log_laws(
          lib.fakes_pair().module, lib.fakes_pair().variables, [*tiny.target.vocabulary.encode(record["inputs"]), 1], ids
      )
      log_p = laws[np.arange(len(ids)), ids].sum()
      penalty = ((5 + len(ids)) / 6) ** 0.6 if record["stop"] == "EOS" else 1
      assert hypothesis["score"] == pytest.approx(log_p / penalty, abs=2e-3)
  assert several


def test_an_interrupted_run_goes_on(tiny, records, tmp_path):
  path = tmp_path / "out.jsonl"
  source = str(tiny.folder / "sentences.txt")
  with pytest.MonkeyPatch.context() as patch:
    write, written = decode.Records.write, []

    def stop(self, record):
      if len(written) == 5:
        raise KeyboardInterrupt
      written.append(record)
      write(self, record)

    patch.setattr(decode.Records, "write", stop)
    with pytest.raises(KeyboardInterrupt):
      beam.beam(tiny.target, source, str(path), beams=BEAMS, **SHAPE)
  again = beam.beam(tiny.target, source, str(path), beams=BEAMS, **SHAPE)
  assert [r["hypotheses"][0]["output_ids"] for r in again] == [r["hypotheses"][0]["output_ids"] for r in records]
  assert len(path.read_text().splitlines()) == len(records)


def test_evaluate_counts_it_beside_the_others(tiny, records, tmp_path, capsys):
  longer = dict(beams=BEAMS, alpha=4.0)  # The outputs of random weights are too short for BLEU at the usual .6.
  found = beam.beam(tiny.target, str(tiny.folder / "sentences.txt"), str(tmp_path / "out.jsonl"), **longer, **SHAPE)
  references = [r["prediction"] for r in found]
  assert references != [r["prediction"] for r in records]
  path = tiny.write("beam_references.txt", "".join(line + "\n" for line in references))
  source = str(tiny.folder / "sentences.txt")
  found = evaluate.evaluate(tiny.target, source, path, metric=metrics.rouge, **longer, **SHAPE)
  assert found["beam"] == pytest.approx(100) and found["beams"] == BEAMS and found["plain"] < 100
  assert found["metrics"]["beam"].keys() == set(metrics.ROUGE_KEYS)
  assert "BLEU 100.00 beam" in capsys.readouterr().err
  assert sacrebleu.corpus_bleu(references, [references]).score == pytest.approx(100)


def test_failures(tiny):
  source = str(tiny.folder / "sentences.txt")
  with pytest.raises(ValueError, match="beams: expected at least 1, found 0"):
    beam.beam(tiny.target, source, beams=0, **SHAPE)
  with pytest.raises(ValueError, match="alpha: expected at least 0, found -1"):
    beam.beam(tiny.target, source, alpha=-1.0, **SHAPE)
