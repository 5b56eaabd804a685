"""Real programs compiled for TPU slices ahead of time: what fits, aliases, moves and is sent.

Needs libtpu (the extra `tpu_plan`); nothing runs. Most cases have T5-XXL's
widths and two of its layers, so that they take seconds; the heavy ones are
T5-XXL itself.
"""

import dataclasses

import pytest

from specdec import models
from specdec.networks.t5 import T5, T5Config
from specdec.sharding import analysis
from specdec.sharding import chips
from specdec.sharding import programs
from specdec.sharding.programs import Workload

pytest.importorskip("libtpu", reason="ahead-of-time TPU compilation needs libtpu (extra tpu_plan)")

HOST = "v4:2x2x1"
COMMON = dict(vocab_size=32128, dtype="bfloat16", float32_attention_logits=True)
XXL = T5Config(emb_dim=4096, num_heads=64, num_encoder_layers=24, num_decoder_layers=24, mlp_dim=10240, **COMMON)
SMALL = T5Config(emb_dim=512, num_heads=6, num_encoder_layers=8, num_decoder_layers=8, mlp_dim=1024, **COMMON)
SHALLOW = dataclasses.replace(XXL, num_encoder_layers=1, num_decoder_layers=2)
SHALLOW_DRAFT = dataclasses.replace(SMALL, num_encoder_layers=1, num_decoder_layers=1)
WORK = Workload(pieces=32100)
GAMMA = 7


def on_host(config, split=True, work=WORK, topology=HOST):
  return programs.sized_model(T5(config), chips.slice_mesh(topology), work, split)


def compiled(program, topology=HOST):
  return analysis.analyse(program, topology, with_schedule=False)


def assert_scoring_is_lean(sized, layers, count=GAMMA + 1):
  """The bounds of a scoring program: what it sends, what it copies, what it reads."""
  found = compiled(programs.score(sized, WORK, count))
  piece = found.sampled
  assert piece.collectives == {"all-gather": 1, "all-reduce": 1 + 3 * layers}
  caches = sum(
      programs.bytes_on_a_chip(part) for part in (lambda c: (c.keys, c.values))(
          programs.open_state(sized, WORK, 1 + WORK.max_new_tokens + count).cache
      )
  )
  assert found.aliased >= caches  # The donated caches are written in place.
  assert piece.copied == 0  # No weight is laid out anew.
  once = programs.read_once(sized, WORK, count)
  assert once <= piece.hbm <= 1.05 * once
  return found


def test_scoring_eight_tokens_reads_weights_and_caches_once():
  sized = on_host(SHALLOW)
  eight = assert_scoring_is_lean(sized, 2)
  assert eight.temporaries < 8e6
  one = compiled(programs.score(sized, WORK, 1))
  assert eight.sampled.roofline < 1.05 * one.sampled.roofline  # v, by the bound.


def test_the_speculative_loop_compiles_for_a_host():
  found = compiled(programs.decode(on_host(SHALLOW), on_host(SHALLOW_DRAFT, split=False), GAMMA, WORK))
  assert found.sampled.collectives == {"all-gather": 1, "all-reduce": 1 + 3 * 2}
  assert found.sampled.copied == 0
  assert found.temporaries < 0.1 * found.arguments


def test_a_draft_is_whole_or_split():
  whole, split = (compiled(programs.draw_token(on_host(SHALLOW_DRAFT, way), WORK)) for way in (False, True))
  assert whole.sampled.collectives == {}
  # Its 6 heads stay whole: the embedding, the mlp, and the logits of one token, which the compiler gathers by a sum.
  assert split.sampled.collectives == {"all-reduce": 1 + 1 + 1}
  assert split.sampled.hbm < whole.sampled.hbm


def test_the_shipped_pair_compiles_for_a_host():
  target, draft = (dataclasses.replace(config, dtype="float32") for config in models.SHIPPED["ende"].values())
  work = Workload(encoder_length=64, max_new_tokens=64, dtype="float32")
  found = compiled(programs.decode(on_host(target, False, work), on_host(draft, False, work), GAMMA, work))
  assert found.sampled.collectives == {} and found.memory < chips.chip_of(HOST).hbm


@pytest.mark.parametrize("topology", ["v4:1x1x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_other_slices(topology):
  tiny = dataclasses.replace(SHALLOW_DRAFT, num_heads=8)
  found = compiled(programs.score(on_host(tiny, topology=topology), WORK, 8), topology)
  assert found.memory < chips.chip_of(topology).hbm
  assert bool(found.sampled.collectives) == (topology != "v4:1x1x1")


def test_what_does_not_fit_is_refused():
  """T5-XXL's decoder and 64 rows of caches on one v5e chip; with 8 rows they are 13.8 of its 16.9 GB."""
  found = compiled(programs.score(on_host(XXL, topology="v5e:1x1"), dataclasses.replace(WORK, batch=64), 1), "v5e:1x1")
  assert found.refused and found.sampled is None


def test_two_hosts_by_the_same_rules():
  sized = programs.sized_model(T5(SHALLOW), chips.slice_mesh("v4:2x2x2", data=2), dataclasses.replace(WORK, batch=2))
  assert sized.mesh.shape == {"data": 2, "model": 4}
  found = compiled(programs.score(sized, dataclasses.replace(WORK, batch=2), 8), "v4:2x2x2")
  assert found.sampled.collectives == {"all-gather": 1, "all-reduce": 1 + 3 * 2}


@pytest.mark.parametrize("topology", ["v4", "v9:2x2", "v4:2x", "2x2", "v4:0x2x1"])
def test_a_strange_topology_is_refused_by_us(topology):
  with pytest.raises(ValueError, match="expected a chip of v4, v5e, v5p, v6e"):
    chips.slice_devices(topology)


def test_a_strange_shape_is_refused_by_the_compiler():
  with pytest.raises(ValueError, match="expected one that the compiler knows"):
    chips.slice_devices("v4:7x3x1")


@pytest.mark.heavy
def test_xxl_scores_eight_tokens_in_1_05_times_its_bytes():
  assert_scoring_is_lean(on_host(XXL), 24)


@pytest.mark.heavy
def test_the_loop_of_xxl_and_small_compiles_and_fits_a_host():
  found = compiled(programs.decode(on_host(XXL), on_host(SMALL, split=False), GAMMA, WORK))
  assert found.memory < chips.chip_of(HOST).hbm
  assert found.sampled.collectives == {"all-gather": 1, "all-reduce": 1 + 3 * 24}
  assert found.sampled.copied == 0
  assert found.temporaries < 0.05 * found.arguments
