"""`--mode=export`: the newest parameters of a run, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.checkpoints import from_orbax
from specdec.checkpoints import names
from specdec.modes import export
from specdec.training import checkpoints
from specdec.training import optimizers
from specdec.training import train
from tests.modes import tiny as lib


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A run's directory with two checkpoints; the newer holds the tiny draft's parameters."""
  directory = tmp_path_factory.mktemp("run")
  params = jax.tree.map(jnp.asarray, lib.fakes_pair().draft_variables)
  opt_state = optimizers.adamw(0.1).init(params)
  store = checkpoints.TrainCheckpoints(str(directory / "checkpoints"))
  store.save(5, train.TrainState(jnp.int32(5), jax.tree.map(jnp.zeros_like, params), opt_state))
  store.save(9, train.TrainState(jnp.int32(9), params, opt_state))
  store.close()
  return directory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip(run, tmp_path, dtype):
  export.export(str(run), str(tmp_path / "small"), dtype)
  found = names.flatten(from_orbax.load(tmp_path / "small"))
  expected = names.flatten(jax.tree.map(lambda x: np.asarray(x, jnp.dtype(dtype)), lib.fakes_pair().draft_variables))
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    assert found[name].dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(found[name], array)
  size = lambda folder: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
  assert size(tmp_path / "small") < size(run / "checkpoints" / "9")


def test_it_replaces_only_when_told(run, tmp_path):
  path = str(tmp_path / "small")
  export.export(str(run), path, "float32")
  with pytest.raises(ValueError, match="found one; choose another path or overwrite"):
    export.export(str(run / "checkpoints" / "5"), path)
  export.export(str(run / "checkpoints" / "5"), path, overwrite=True)
  assert not any(leaf.any() for leaf in jax.tree.leaves(from_orbax.load(path)))
  assert [p.name for p in tmp_path.iterdir()] == ["small"]


def test_through_main(run, tmp_path):
  bindings = [f"--gin.export.export.checkpoint='{run}'", f"--gin.export.export.path='{tmp_path}/small'"]
  gin_file = tmp_path / "export.gin"
  header = "from __gin__ import dynamic_registration\nfrom specdec.modes import export\n"
  gin_file.write_text(header + "export.export.dtype = 'float32'\n")
  assert lib.call_main("--mode=export", f"--gin_file={gin_file}", *bindings) is None
  assert (tmp_path / "small" / "_METADATA").exists()
  message = lib.call_main("--mode=export", f"--gin_file={gin_file}", *bindings)
  assert message.startswith(f"specdec: {tmp_path}/small: expected no such file or folder")
  missing = lib.call_main("--mode=export", f"--gin_file={gin_file}", bindings[0])
  assert missing == "specdec: --mode=export: expected values for path; give a --gin_file, such as those in gin/runs."


def test_mantissa_is_rounded_to_even():
  values = np.random.default_rng(0).normal(size=2000).astype(np.float32)
  values = np.concatenate([values, np.float32([0, -0.0, 1, 1.125, 1.375, -1.125, 3e38, 1e-30])])
  for bits in (2, 5, 7):
    mantissa, exponent = np.frexp(values.astype(np.float64))
    expected = np.ldexp(np.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)  # ties to even
    np.testing.assert_array_equal(export.round_mantissa(values, bits), expected.astype(np.float32))
  import ml_dtypes

  as_bfloat16 = values.astype(ml_dtypes.bfloat16).astype(np.float32)
  np.testing.assert_array_equal(export.round_mantissa(values, 7), as_bfloat16)
  with pytest.raises(ValueError, match="expected float32 and 1 to 22 bits, found float32 and 23"):
    export.round_mantissa(values, 23)


def test_rounded_export(run, tmp_path):
  export.export(str(run), str(tmp_path / "small"), mantissa_bits=5)
  whole, small = from_orbax.load(run), from_orbax.load(tmp_path / "small", dtype="float32")
  for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(small), strict=True):
    np.testing.assert_array_equal(export.round_mantissa(np.asarray(a, np.float32), 5), b)
