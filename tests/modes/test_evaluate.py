"""`--mode=evaluate`, and the BLEU of a training run."""

import gzip
import json

import jax
import pytest
import sacrebleu

from specdec.modes import decode
from specdec.modes import evaluate
from tests.modes import tiny as lib

SHAPE = dict(batch_size=4, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)


@pytest.fixture(scope="module")
def predictions(tiny, tmp_path_factory):
  """The target's own greedy outputs, by the plain decoder."""
  output = tmp_path_factory.mktemp("plain") / "out.jsonl"
  records = decode.decode(
      tiny.target, None, input=str(tiny.folder / "sentences.txt"), output=str(output), compare=0, **SHAPE
  )
  return [r["prediction"] for r in records]


def test_corpus_bleu_is_sacrebleu_of_detokenised_text():
  hypotheses = ["Ein Hund, der rennt.", "Zwei Kinder spielen im Garten!", "Öl"]
  references = ["Ein Hund, der läuft.", "Zwei Kinder spielen im Garten.", "Öl"]
  score, signature = evaluate.corpus_bleu(hypotheses, references)
  assert score == sacrebleu.corpus_bleu(hypotheses, [references]).score
  assert 0 < score < 100
  # 13a splits punctuation off words.
  assert "tok:13a" in signature and "case:mixed" in signature
  assert score != sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none").score


def test_own_outputs_as_references_score_100(tiny, predictions, capsys, tmp_path):
  references = tiny.write("references.gz", gzip.compress("".join(p + "\n" for p in predictions).encode()))
  output = tmp_path / "bleu.jsonl"
  found = evaluate.evaluate(
      tiny.target, str(tiny.folder / "sentences.txt"), references, tiny.draft, str(output), lib.GAMMA, **SHAPE
  )
  assert json.loads(output.read_text()) == found
  assert found["plain"] == pytest.approx(100) and found["speculative"] == pytest.approx(100)
  assert (found["equal"], found["sentences"], found["gamma"], found["temperature"]) == (10, 10, lib.GAMMA, 0.0)
  error = capsys.readouterr().err
  assert "BLEU 100.00 plain, 10 sentences, nrefs:1" in error and "BLEU 100.00 speculative" in error


def test_order_and_score_against_other_references(tiny, predictions, capsys):
  """Sentences are decoded in another order than they stand in; each must meet its own reference."""
  references = [p + " und mehr" if i % 2 else p for i, p in enumerate(predictions)]
  path = tiny.write("references.txt", "\n".join(references))
  found = evaluate.evaluate(tiny.target, str(tiny.folder / "sentences.txt"), path, **SHAPE)
  assert found["plain"] == pytest.approx(sacrebleu.corpus_bleu(predictions, [references]).score)
  assert found["speculative"] is None and found["equal"] is None and found["gamma"] == 0
  assert json.loads(capsys.readouterr().out) == found


def test_bleu_of_a_training_run(tiny, predictions, monkeypatch):
  pair = lib.fakes_pair()
  references = [p + " und mehr" if i % 3 == 0 else p for i, p in enumerate(predictions)]
  score = evaluate.bleu(
      pair.module, tiny.target.vocabulary, lib.SENTENCES, references, lib.LENGTHS, 4, max_new_tokens=lib.NEW_TOKENS
  )
  expected = sacrebleu.corpus_bleu(predictions, [references]).score
  assert score(pair.variables) == {"validation/bleu": pytest.approx(expected)}
  other = jax.tree.map(lambda x: x * 0.5, pair.variables)
  assert score(other)["validation/bleu"] < expected
  assert score(pair.variables) == {"validation/bleu": pytest.approx(expected)}


def test_failures(tiny):
  path = tiny.write("few.txt", "one\ntwo\n")
  binding = f"--gin.evaluate.evaluate.references='{path}'"
  call = lambda *more: lib.call_main("--mode=evaluate", f"--gin_file={tiny.gin('evaluate')}", *more)
  assert call(binding).startswith("specdec: references: expected 10 lines, as ")
  assert "found 2 in" in call(binding)
  gone = call(f"--gin.evaluate.evaluate.references='{path}.gone'")
  assert gone.startswith("specdec: references: expected a file at ")
  assert call().startswith("specdec: --mode=evaluate: expected values for references; ")
