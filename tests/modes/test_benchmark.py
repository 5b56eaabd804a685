"""`--mode=benchmark`: a record a cell, with the measured ratio beside the predicted one."""

import json

import pytest

from specdec.benchmark import calls
from specdec.modes import benchmark
from tests.modes import tiny as lib

FIELDS = {
    "batch_size", "temperature", "gamma", "ratio", "low", "high", "predicted", "theorem_3_8", "alpha", "tokens_per_call",
    "theorem_3_8_v1", "alpha_standard_error", "input", "sentences", "repeats", "max_new_tokens", "costs", "compile_seconds",
    "accepted_by_position", "reached_by_position", "quality", "platform", "processor", "gin", "c", "v", "v_score", "plain_tokens_per_second", "target_call_us", "equal", "rows", "seed",
    "jax", "jaxlib", "numpy", "python", "device", "devices", "machine", "cores", "commit", "date",
}  # fmt: skip


def test_records(tiny, tmp_path, capsys):
  output = tmp_path / "new" / "records.jsonl"
  shape = dict(batch_sizes=[4], sentences=6, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)
  source = str(tiny.folder / "sentences.txt")
  shape |= dict(references=source, metrics=["bleu", "rouge"])
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
    assert set(r["costs"]) == set(calls.Costs._fields) and r["costs"]["draft"] / r["costs"]["target"] == r["c"]
    assert r["compile_seconds"]["speculative"] >= 0
    assert len(r["accepted_by_position"]) == len(r["reached_by_position"]) == lib.GAMMA
    assert all(a <= b for a, b in zip(r["accepted_by_position"], r["reached_by_position"]))
    assert set(r["quality"]["plain"]) == set(r["quality"]["speculative"]) == {"bleu", "rouge1", "rouge2", "rougeLsum"}
  assert found[0]["equal"] == 6
  assert found[0]["quality"]["plain"] == found[0]["quality"]["speculative"], "equal outputs have equal scores"
  error = capsys.readouterr().err
  assert "B 4, T 0, gamma 3: equal outputs: 6 of 6" in error
  assert "| batch_size | temperature | gamma | ratio | low | high | predicted |" in error


def test_against_a_plain_flax_loop(tiny, tmp_path, capsys):
  source, output = str(tiny.folder / "sentences.txt"), tmp_path / "records.jsonl"
  shape = dict(batch_sizes=[4], sentences=6, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)
  found = benchmark.benchmark(
      tiny.target, tiny.draft, source, str(output), [lib.GAMMA], [0.0], **shape, against="flax", repeats=1
  )
  assert [json.loads(line) for line in output.read_text().splitlines()] == found
  assert [r["decoder"] for r in found] == ["flax", "plain", f"gamma {lib.GAMMA}"]
  assert [(r["equal"], r["rows"]) for r in found] == [(6, 6)] * 3, "the loop over Flax's weights writes the same tokens"
  assert all(r["call_ratio"] > 0 for r in found)
  assert "| flax |" in capsys.readouterr().err
  with pytest.raises(ValueError, match="expected temperature 0 alone, found 0, 1"):
    benchmark.benchmark(tiny.target, tiny.draft, source, str(tmp_path / "none.jsonl"), against="flax")
  assert not (tmp_path / "none.jsonl").exists()


def test_a_draft_of_another_vocabulary(tiny, tmp_path):
  other = tiny.draft.vocabulary.__class__(tiny.draft.vocabulary.path, extra_ids=1)
  draft = tiny.draft.__class__(tiny.draft.model, tiny.draft.params, other)
  with pytest.raises(ValueError, match=r"target has 64 pieces and the draft 65; .* is 64, '<extra_id_0>'"):
    benchmark.benchmark(tiny.target, draft, "not read", str(tmp_path / "out.jsonl"))
  assert not list(tmp_path.iterdir())


def test_references_must_fit(tiny, tmp_path):
  source = str(tiny.folder / "sentences.txt")
  (tmp_path / "short.txt").write_text("one\n")
  with pytest.raises(ValueError, match="references: expected 10 lines"):
    benchmark.benchmark(tiny.target, tiny.draft, source, references=str(tmp_path / "short.txt"))
