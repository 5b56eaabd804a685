"""`--mode=measure_alpha` against a brute-force computation: Flax modules, float64, every token of every text."""

import json

import numpy as np
import pytest

from specdec.data import vocabularies
from specdec.modes import decode
from specdec.modes import measure_alpha
from tests.modes import tiny as lib

SHAPE = dict(batch_size=4, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)
TEMPERATURES = (0.0, 1.0)
LINES = [{"inputs": text} for text in lib.SENTENCES]
LINES[2]["prefix"] = "Der Mann"  # A forced beginning: the text is what follows it.


@pytest.fixture(scope="module")
def source(tiny):
  return tiny.write("alpha.jsonl", "\n".join(json.dumps(line) for line in LINES))


@pytest.fixture(scope="module")
def measured(tiny, source, tmp_path_factory):
  output = tmp_path_factory.mktemp("alpha") / "alpha.jsonl"
  records = measure_alpha.measure_alpha(
      tiny.target, tiny.draft, source, str(output), gamma=lib.GAMMA, temperatures=TEMPERATURES, **SHAPE
  )
  assert [json.loads(line) for line in output.read_text().splitlines()] == records
  return {record["temperature"]: record for record in records}


def law(log_p, temperature):
  """Float64 laws [L, V]."""
  if temperature == 0:
    return np.eye(log_p.shape[-1])[log_p.argmax(-1)]
  p = np.exp(log_p / temperature)
  return p / p.sum(-1, keepdims=True)


def decoded(tiny, source, tmp_path, draft, temperature):
  return decode.decode(
      tiny.target, draft, lib.GAMMA, source, str(tmp_path / "out.jsonl"), temperature=temperature, compare=0, **SHAPE
  )


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_alpha_is_the_mean_of_sum_min(tiny, source, measured, tmp_path, temperature):
  pair, encode = lib.fakes_pair(), tiny.target.vocabulary.encode
  betas = []
  for record, line in zip(decoded(tiny, source, tmp_path, None, temperature), LINES, strict=True):
    ids = [*encode(line["inputs"]), vocabularies.EOS_ID]
    prefix = encode(line.get("prefix", ""))
    text = [*prefix, *record["output_ids"]]
    p = law(lib.log_laws(pair.module, pair.variables, ids, text), temperature)
    q = law(lib.log_laws(pair.draft_module, pair.draft_variables, ids, text), temperature)
    betas.append(np.minimum(p, q).sum(-1)[len(prefix) :])
  every = np.concatenate(betas)
  found = measured[temperature]
  assert (found["tokens"], found["sentences"]) == (len(every), len(LINES))
  assert found["alpha"] == pytest.approx(every.mean(), abs=1e-5)
  residual = np.array([(b - every.mean()).sum() for b in betas])
  assert found["standard_error"] == pytest.approx(np.sqrt(10 / 9 * np.square(residual).sum()) / len(every), rel=1e-3)
  assert 0.1 < found["alpha"] < 0.95


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_counted_acceptance_is_that_of_a_speculative_run(tiny, source, measured, tmp_path, temperature):
  records = decoded(tiny, source, tmp_path, tiny.draft, temperature)
  expected = sum(r["accepted"] for r in records) / sum(r["reached"] for r in records)
  assert measured[temperature]["counted"] == pytest.approx(expected)


def test_it_stops_at_enough_tokens(tiny, source, capsys):
  (record,) = measure_alpha.measure_alpha(
      tiny.target, tiny.draft, source, tokens=10, gamma=lib.GAMMA, temperatures=[0.0], **SHAPE
  )
  assert record["sentences"] == 4 and record["tokens"] >= 10
  captured = capsys.readouterr()
  assert json.loads(captured.out) == record
  assert f"alpha {record['alpha']:.4f}" in captured.err
