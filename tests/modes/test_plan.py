"""`--mode=plan`: its doors, what it does without the compiler, and a tiny plan with it."""

import json
import types

from absl import logging
import pytest

from specdec.modes import plan as plan_mode
from specdec.networks.t5 import T5, T5Config
from specdec.sharding import chips

SIZES = dict(vocab_size=128, emb_dim=64, head_dim=16, mlp_dim=128, num_encoder_layers=1, num_decoder_layers=1)
TARGET = T5(T5Config(num_heads=4, dtype="bfloat16", float32_attention_logits=True, **SIZES))
DRAFT = T5(T5Config(num_heads=2, dtype="bfloat16", float32_attention_logits=True, **SIZES))
SHAPE = dict(encoder_length=16, max_new_tokens=8, pieces=120)
ROW = types.SimpleNamespace(
    task="ende", drafter="tiny", temperature=0.0, gamma=2, alpha=0.8, c=0.02, expected=2.0, measured=1.9
)


def run(tmp_path, **arguments):
  return plan_mode.plan(TARGET, {"tiny": DRAFT}, **{"output": str(tmp_path / "plan.md"), "store": "", **SHAPE, **arguments})


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(alphas={"other": 0.5}), "drafter: expected one of tiny, found 'other'"),
        (dict(alphas={"tiny": 1.5}), "expected a number in \\[0, 1\\] for tiny"),
        (dict(alphas={"tiny": 0.5}, topology="v4"), "expected a chip of"),
        (dict(batch_size=0), "expected batch of at least 1"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_compiled(tmp_path, arguments, message):
  with pytest.raises(ValueError, match=message):
    run(tmp_path, **arguments)
  assert not list(tmp_path.iterdir())


def test_without_the_compiler_everything_still_lowers(tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(chips, "compiler_is_installed", lambda: False)
  logging.get_absl_logger().propagate = True
  assert run(tmp_path, alphas={"tiny": 0.5}, gammas=(2,)) == []
  page = (tmp_path / "plan.md").read_text()
  assert page.startswith("# Everything lowers for TPU") and "nothing was compiled" in page
  rows = [line.split(" | ") for line in page.splitlines() if " | yes | " in line]
  assert [row[0] for row in rows] == ["| decode", "| tiny, gamma 2"]
  assert all(int(row[2].rstrip(" |")) > 10_000 for row in rows)
  assert "pip install 'specdec[tpu_plan]'" in caplog.text


def test_without_the_compiler_nobody_can_tell_what_fits(tmp_path, monkeypatch):
  monkeypatch.setattr(chips, "compiler_is_installed", lambda: False)
  with pytest.raises(ValueError, match="must_fit: expected libtpu"):
    run(tmp_path, alphas={"tiny": 0.5}, gammas=(2,), must_fit=True)


def test_without_the_compiler_a_slice_says_what_to_install(monkeypatch):
  monkeypatch.setattr(chips, "compiler_is_installed", lambda: False)
  with pytest.raises(ValueError, match="pip install 'specdec\\[tpu_plan\\]'"):
    chips.slice_devices("v4:2x2x1")


def test_a_tiny_plan(tmp_path):
  pytest.importorskip("libtpu", reason="ahead-of-time TPU compilation needs libtpu (extra tpu_plan)")
  arguments = dict(published=[ROW], gammas=(2,), splits=(False,), schedules=False, store=str(tmp_path / "store"))
  tables = run(tmp_path, **arguments)
  assert {path.name for path in tmp_path.iterdir()} == {"plan.md", "plan.json", "plan.html", "store"}
  data = json.loads((tmp_path / "plan.json").read_text())
  programs = {(one["model"], one["name"]): one for one in data["programs"]}
  loop = programs["tiny, whole", "decode speculatively, gamma 2"]
  assert loop["sampled"]["collectives"].keys() <= {"all-gather", "all-reduce"}
  assert sum(loop["sampled"]["collectives"].values()) == 1 + 3 + 1  # Embedding, one layer, logits.
  assert programs["tiny, whole", "draft a token"]["sampled"]["collectives"] == {}
  (speed,) = [table for table in tables if table.title == "Speed-ups"]
  heads = [heading for heading, _ in speed.columns]
  (row,) = [dict(zip(heads, row)) for row in speed.rows]
  assert (row["α"], row["expected"], row["measured"]) == (0.8, 2.0, 1.9) and float(row["whole program"]) > 0
  assert "measured [published]" in (tmp_path / "plan.md").read_text()
  before = (tmp_path / "plan.md").read_text()
  stored = sorted(tmp_path.glob("store/*.json"))
  run(tmp_path, **arguments)  # From the store: nothing new is compiled.
  assert sorted(tmp_path.glob("store/*.json")) == stored and (tmp_path / "plan.md").read_text() == before
