"""`--mode=trees`: records by cell, a table and plots; a stopped run goes on."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from specdec.modes import trees
from tests.modes import tiny as lib

CELL = {
    "kind", "temperature", "size", "method", "tokens_per_step", "standard_error", "drafted_per_step", "steps", "committed",
    "ms_per_token", "ms_per_step", "target_ms", "propose_ms", "build_ms", "build_share", "parents", "settings",
    "jax", "jaxlib", "numpy", "python", "device", "devices", "platform", "processor", "machine", "cores", "commit", "date",
}  # fmt: skip


def arguments(tiny, folder, **changes):
  files = {name: str(folder / file) for name, file in dict(
      output="r.jsonl", table="t.md", plot="p.svg", time_plot="s.svg", premise_plot="q.svg").items()}  # fmt: skip
  return dict(
      target=tiny.target, draft=tiny.draft, input=str(tiny.folder / "sentences.txt"), methods=("sequoia",), sizes=(5,),
      temperatures=(0.0, 1.0), sentences=6, batch_size=3, probe_children=4, max_depth=3, input_lengths=lib.LENGTHS,
      max_new_tokens=lib.NEW_TOKENS, **files,
  ) | changes  # fmt: skip


def test_records_table_and_plots(tiny, tmp_path, capsys):
  found = trees.trees(**arguments(tiny, tmp_path))
  lines = (tmp_path / "r.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines] == found
  assert [r["kind"] for r in found] == ["rank", "premise", "calls"] * 2 + ["cell"] * 2 + ["budget"] * 2
  for r in found[0:6:3]:
    assert len(r["acceptance"]) == 4 and 0 < sum(r["acceptance"]) <= 1 + 1e-6
  for r in found[1:6:3]:
    weight, probability, accepted = (np.array(r[k]) for k in ("weight", "probability", "accepted"))
    assert (accepted <= weight + 1e-3).all() and accepted.sum() > 0
    edge = np.arange(len(weight)) / len(weight)
    assert (probability >= edge * weight - 1e-3).all() and (probability <= (edge + 1 / len(weight)) * weight + 1e-3).all()
  for r in found[2:6:3]:
    assert set(r["target_seconds"]) == {"1", "6"} and min(*r["target_seconds"].values(), r["draft_seconds"]) > 0
  for r in found[6:8]:
    assert set(r) == CELL and r["size"] == r["drafted_per_step"] == 5 and len(r["parents"]) == 6
    assert 1 < r["tokens_per_step"] <= 4 and 0 < r["standard_error"] < 1
    assert abs(r["tokens_per_step"] - r["committed"] / r["steps"]) < 1e-9
    assert min(r["ms_per_token"], r["ms_per_step"], r["propose_ms"], r["build_ms"], r["build_share"]) > 0
    assert r["build_share"] == pytest.approx(r["build_ms"] / r["ms_per_step"])
    calls = next(c for c in found if (c["kind"], c["temperature"]) == ("calls", r["temperature"]))
    assert r["target_ms"] == 1e3 * calls["target_seconds"]["6"]
  assert [(r["predicted_size"], r["measured_size"]) for r in found[8:]] == [(5, 5)] * 2
  assert "| temperature | size | method | tokens_per_step |" in (tmp_path / "t.md").read_text()
  for name in ("p.svg", "q.svg", "s.svg"):
    ElementTree.fromstring((tmp_path / name).read_text())
  # Stopped in the middle of the last line: the others are not measured again.
  (tmp_path / "r.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
  again = trees.trees(**arguments(tiny, tmp_path))
  assert again[:-1] == found[:-1] and again[-1]["kind"] == "budget"
  assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == again
  with pytest.raises(ValueError, match="other settings"):
    trees.trees(**arguments(tiny, tmp_path, sentences=5))
  capsys.readouterr()


def test_an_unknown_method_is_refused(tiny, tmp_path):
  with pytest.raises(ValueError, match="methods: expected some of chain, .* found 'medusa'|found medusa"):
    trees.trees(**arguments(tiny, tmp_path, methods=("medusa",)))


@pytest.mark.parametrize("size,expected", [(8, (2, 1, 1, 1)), (16, (4, 1, 1, 1)), (32, (4,) + (1,) * 7), (7, (1,) * 7)])
def test_chains_of_a_budget(size, expected):
  assert trees._several_chains(size) == expected
