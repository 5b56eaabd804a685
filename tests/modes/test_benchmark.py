"""`--mode=benchmark`: a record a cell, with the measured ratio beside the predicted one."""

import json

import pytest

from specdec.modes import benchmark
from tests.modes import tiny as lib

FIELDS = {
    "batch_size", "temperature", "gamma", "ratio", "low", "high", "predicted", "theorem_3_8", "alpha", "tokens_per_call",
    "c", "v", "v_score", "plain_tokens_per_second", "target_call_us", "equal", "rows", "seed",
    "jax", "jaxlib", "numpy", "python", "device", "devices", "machine", "cores", "commit", "date",
}  # fmt: skip


def test_records(tiny, tmp_path, capsys):
  output = tmp_path / "new" / "records.jsonl"
  shape = dict(batch_sizes=[4], sentences=6, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)
  source = str(tiny.folder / "sentences.txt")
  found = benchmark.benchmark(tiny.target, tiny.draft, source, str(output), [lib.GAMMA], [0.0, 1.0], **shape)
  assert [json.loads(line) for line in output.read_text().splitlines()] == found
  assert [(r["batch_size"], r["temperature"], r["gamma"]) for r in found] == [(4, 0.0, lib.GAMMA), (4, 1.0, lib.GAMMA)]
  for r in found:
    assert set(r) == FIELDS
    assert 0 < r["low"] <= r["ratio"] <= r["high"]
    assert r["predicted"] > 0 and r["theorem_3_8"] > 0
    assert 0 < r["alpha"] < 1 and 1 <= r["tokens_per_call"] <= lib.GAMMA + 1
    assert min(r["c"], r["v"], r["v_score"], r["plain_tokens_per_second"], r["target_call_us"]) > 0
    assert r["rows"] == 6
    assert r["plain_tokens_per_second"] < 1e9
  assert found[0]["equal"] == 6
  error = capsys.readouterr().err
  assert "B 4, T 0, gamma 3: equal outputs: 6 of 6" in error
  assert "| batch_size | temperature | gamma | ratio | low | high | predicted |" in error


def test_a_draft_of_another_vocabulary(tiny, tmp_path):
  other = tiny.draft.vocabulary.__class__(tiny.draft.vocabulary.path, extra_ids=1)
  draft = tiny.draft.__class__(tiny.draft.model, tiny.draft.params, other)
  with pytest.raises(ValueError, match=r"target has 64 pieces and the draft 65; .* is 64, '<extra_id_0>'"):
    benchmark.benchmark(tiny.target, draft, "not read", str(tmp_path / "out.jsonl"))
  assert not list(tmp_path.iterdir())
