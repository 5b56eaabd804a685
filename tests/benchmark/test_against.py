"""The arithmetic of `benchmark.against`; `tests/modes/test_benchmark.py` runs it, and `tests/t5x/test_benchmark.py` with T5X."""

import numpy as np
import pytest

from specdec.benchmark import against
from tests import fakes


def test_records_of_made_up_timings():
  theirs = [np.array([[5, 6, 1, 0], [7, 7, 7, 7]]), np.array([[4, 1, 0, 0]])]
  ours = [theirs[0], np.array([[4, 4, 1, 0]])]
  timings = {
      "t5x": against.Timing(0.06, 0.02, 6, theirs),
      "plain": against.Timing(0.02, 0.01, 7, ours),
  }
  first, second = against.records(timings, greedy=True)
  assert [first[k] for k in ("decoder", "call_ratio", "loop_ratio", "equal", "rows")] == ["t5x", 1, 1, 3, 3]
  assert first["call_ms_per_token"] == pytest.approx(10) and first["loop_ms_per_token"] == pytest.approx(10)
  assert second["call_ms_per_token"] == pytest.approx(20 / 7) and second["loop_ms_per_token"] == pytest.approx(2)
  assert second["call_ratio"] == pytest.approx(3.5) and second["loop_ratio"] == pytest.approx(5)
  assert second["equal"] == 2
  assert against.records(timings, greedy=False)[1]["equal"] is None


@pytest.mark.parametrize("name", sorted(against.YARDSTICKS))
def test_another_network_is_refused(name):
  if name == "t5x":
    pytest.importorskip("t5x", reason="T5X is not on PYTHONPATH (README.md, 'Where T5X comes in')")
  model = type("Model", (), {"module": None, "params": fakes.standard_pair().target_params})()
  with pytest.raises(ValueError, match="expected a T5 as the target"):
    against.yardstick(name, model, 4, 0.0)


def test_what_a_yardstick_does_not_know():
  with pytest.raises(ValueError, match="'flax' decodes greedily, expected temperature 0 alone, found 0.5"):
    against.yardstick("flax", None, 4, 0.5)
  with pytest.raises(ValueError, match=r"expected one of \['flax', 't5x'\], found 'torch'"):
    against.yardstick("torch", None, 4, 0.0)
