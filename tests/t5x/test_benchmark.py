"""`--mode=benchmark --against=t5x`: a record a decoder, on the same weights and with the same tokens."""

import json

import pytest

pytest.importorskip("t5x", reason="T5X is not on PYTHONPATH (README.md, 'Where T5X comes in')")

from tests.modes import tiny as lib
from tests.modes.tiny import call_main, compiled_once, pair_files, tiny  # noqa: F401


def test_records(tiny, tmp_path, capsys):
  output = tmp_path / "records.jsonl"
  text = lib.GIN.format(
      mode="benchmark", folder=tiny.folder, logits=lib.PIECES, gamma=0, lengths=lib.LENGTHS, new_tokens=lib.NEW_TOKENS
  ).replace("gamma = 0", f"gammas = ({lib.GAMMA},)")
  bindings = ["sentences=3", "repeats=2", "temperatures=(0.0, 1.0)"]
  message = call_main(
      "--mode=benchmark", "--against=t5x", f"--gin_file={tiny.write('against.gin', text)}", f"--output={output}",
      *(f"--gin.benchmark.benchmark.{binding}" for binding in bindings),
  )  # fmt: skip
  assert message is None
  records = [json.loads(line) for line in output.read_text().splitlines()]
  names = ["t5x", "plain", f"gamma {lib.GAMMA}"]
  assert [(r["temperature"], r["decoder"]) for r in records] == [(t, name) for t in (0.0, 1.0) for name in names]
  for r in records:
    assert r["rows"] == 3 and r["tokens"] > 3
    assert r["call_ms_per_token"] > 0 and r["call_ratio"] > 0
    assert isinstance(r["loop_ms_per_token"], float) and isinstance(r["loop_ratio"], float)
    assert r["equal"] == (3 if r["temperature"] == 0 else None)
  assert records[0]["call_ratio"] == records[0]["loop_ratio"] == 1
  assert "| batch_size | temperature | decoder | call_ms_per_token |" in capsys.readouterr().err


def test_unknown_rival(tiny):
  from specdec.modes import benchmark

  with pytest.raises(ValueError, match=r"against: expected one of \['flax', 't5x'\], found 'x'"):
    benchmark.benchmark(tiny.target, tiny.draft, "not read", against="x")
