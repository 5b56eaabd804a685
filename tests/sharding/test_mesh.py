"""On eight pretend devices: the tokens of one device, and only the collectives that the rules ask for."""

import json
import pathlib
import subprocess
import sys

import jax
import pytest

from specdec.networks.t5 import T5Config
from specdec.sharding import mesh as mesh_lib
from tests.sharding import pretend

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS = 2  # Of the target's encoder and decoder.


@pytest.fixture(scope="module")
def report():
  run = subprocess.run(
      [sys.executable, "-m", "tests.sharding.pretend"], cwd=ROOT, capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stderr[-3000:]
  return json.loads(run.stdout)


def test_every_run_gives_the_tokens_of_one_device(report):
  assert report["devices"] == pretend.DEVICES
  assert {run["run"] for run in report["runs"]} == {"2x4 near", "2x4 near split", "1x8 far split", "1x8 plain split"}
  assert report["accepted"] > 10 and len(set(report["lengths"])) > 2  # Drafts are accepted, rows end apart.
  ties = 0
  for run in report["runs"]:
    assert all(gap < 1e-4 for gap in run["gaps"]), run
    if run["greedy"]:
      ties += run["unequal"]
    else:
      assert run["same"], run
    if run["same"]:
      assert run["steps"][0] == run["steps"][1]
  assert ties <= 1


def test_a_decoder_sums_three_times_a_layer_and_gathers_its_logits_once(report):
  programs = report["programs"]["2x4 target"]
  assert programs["encode"] == {"all-reduce": 1 + 2 * LAYERS}  # The embedding; attention and mlp of each layer.
  for count in (1, pretend.GAMMA + 1):
    assert programs[f"score {count}"] == {"all-reduce": 1 + 3 * LAYERS, "all-gather": 1}
  batch, heads = pretend.BATCH // 2, pretend.TARGET.config.num_heads // 4
  assert programs["cache shard"][:2] == [batch, heads]


def test_a_draft_whose_heads_do_not_divide_shares_mlp_and_vocabulary(report):
  programs = report["programs"]["1x8 far"]
  assert programs["encode"] == {"all-reduce": 1 + 1}
  assert programs["score 1"] == {"all-reduce": 1 + 1, "all-gather": 1}
  assert programs["cache shard"][:2] == [pretend.BATCH, pretend.FAR.config.num_heads]


def test_a_step_of_the_loop_adds_none(report):
  """Beside those of the models only booleans travel: which branch a batch takes, and whether a row still runs."""
  target = {"all-reduce": 1 + 3 * LAYERS, "all-gather": 1}
  draft = {"all-reduce": (1 + 3) * pretend.GAMMA, "all-gather": pretend.GAMMA}
  far = {"all-reduce": (1 + 1) * pretend.GAMMA, "all-gather": pretend.GAMMA}
  both = lambda one, other: {kind: one[kind] + other[kind] for kind in one}
  loops = {run: programs["loop"] for run, programs in report["programs"].items() if "loop" in programs}
  assert loops.pop("1x8 plain split") == target
  assert loops.pop("1x8 far split") == both(target, far)
  for run, expected in (("2x4 near", target), ("2x4 near split", both(target, draft))):
    found = loops.pop(run)
    assert found.pop("all-reduce of booleans") > 0
    assert found == expected
  assert not loops


def test_a_checkpoint_loads_into_its_shards(report):
  loaded = report["loaded"]
  assert loaded["values"] and loaded["shardings"] and loaded["share"] == 1 / 4
  assert loaded["lengths"] == report["lengths"]  # A greedy draft changes none.


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(data=2, devices=[1, 2, 3]), "data \\* model = 3"),
        (dict(data=0, devices=[1]), "at least 1"),
        (dict(data=1, model=3, devices=[1, 2]), "found 1 \\* 3"),
    ],
)
def test_a_mesh_needs_all_devices(arguments, message):
  with pytest.raises(ValueError, match=message):
    mesh_lib.make_mesh(**arguments)


def test_a_mesh_of_other_axes_is_refused():
  other = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
  with pytest.raises(ValueError, match="expected an axis 'data'"):
    mesh_lib.rules_for(T5Config(16), other)


def test_hosts_are_named_together_or_not_at_all():
  with pytest.raises(ValueError, match="together"):
    mesh_lib.initialize("localhost:1234")
