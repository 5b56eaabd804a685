"""`checkpoints.from_orbax`: our own checkpoints and those of training runs, whole and damaged."""

import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
from orbax.checkpoint.path import atomicity
import pytest
import tensorstore as ts

from specdec.checkpoints import from_orbax
from specdec.checkpoints import names
from specdec.training import checkpoints as train_checkpoints
from specdec.training import train

# Orbax closes its event loop on the first damaged array, and the others then complain into the void.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def random_params(seed=0, width=24):
  rng = np.random.default_rng(seed)
  return {
      "decoder": {
          "layers_0": {"mlp": {"wi": {"kernel": rng.normal(size=(width, 40)).astype(np.float32)}}},
          "norm": {"scale": np.zeros(width, ml_dtypes.bfloat16)},  # All zeros: an array that a reader could make up.
      },
      "buckets": np.arange(7, dtype=np.int32),
  }


def assert_same(found, expected):
  found, expected = names.flatten(found), names.flatten(expected)
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    assert isinstance(found[name], np.ndarray) and found[name].dtype == array.dtype, name
    np.testing.assert_array_equal(found[name], array, err_msg=name)


def write_run(directory, steps, params):
  """A training run's directory; the params of step n are `params` plus n."""
  checkpoints = train_checkpoints.TrainCheckpoints(str(directory / "checkpoints"), keep=5)
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
  for step in steps:
    shifted = jax.tree.map(lambda x: jnp.asarray(x + step), params)
    checkpoints.save(step, train.TrainState(jnp.int32(step), shifted, optimizer.init(shifted)))
  checkpoints.close()


def bytes_read():
  """Bytes that TensorStore has read from files in this process."""
  metrics = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
  return sum(value["value"] for metric in metrics for value in metric["values"])


@pytest.mark.parametrize("as_jax", [False, True])
def test_round_trip(tmp_path, as_jax):
  params = random_params()
  from_orbax.save(tmp_path / "new" / "folder", jax.tree.map(jnp.asarray, params) if as_jax else params)
  assert_same(from_orbax.load(tmp_path / "new" / "folder"), params)
  assert_same(from_orbax.load(str(tmp_path / "new" / "folder"), expected={"params": params}), params)


def test_relative_path_and_layout_of_other_tools(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  from_orbax.save("params", random_params())
  assert_same(from_orbax.load("params"), random_params())
  # Plain Orbax reads ours, and we read plain Orbax's: a tree, or the variables of a Flax module.
  assert_same(ocp.PyTreeCheckpointer().restore(tmp_path / "params"), random_params())
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / "variables", {"params": random_params(), "stats": {"x": np.ones(3)}})
    checkpointer.save(tmp_path / "tree", random_params())
  assert_same(from_orbax.load("variables"), random_params())
  assert_same(from_orbax.load("tree"), random_params())


def test_dtype_casts_floating_point_only(tmp_path):
  params = random_params()
  cast = lambda dtype: jax.tree.map(lambda x: x if x.dtype == np.int32 else x.astype(dtype), params)
  from_orbax.save(tmp_path / "half", params, dtype="bfloat16")
  from_orbax.save(tmp_path / "full", params)
  assert_same(from_orbax.load(tmp_path / "half"), cast(ml_dtypes.bfloat16))
  assert_same(from_orbax.load(tmp_path / "full", dtype=jnp.bfloat16), cast(ml_dtypes.bfloat16))
  assert_same(from_orbax.load(tmp_path / "full", dtype="float32"), cast(np.float32))
  for call in (lambda: from_orbax.load(tmp_path / "full", "int8"), lambda: from_orbax.save("x", params, "int8")):
    with pytest.raises(ValueError, match="dtype: expected a floating-point type"):
      call()


def test_overwrite(tmp_path):
  path = tmp_path / "params"
  from_orbax.save(path, random_params(0))
  with pytest.raises(ValueError, match="params: expected no such file or folder, found one; choose another"):
    from_orbax.save(path, random_params(1))
  assert_same(from_orbax.load(path), random_params(0))
  from_orbax.save(path, random_params(1, width=8), overwrite=True)
  assert_same(from_orbax.load(path), random_params(1, width=8))
  assert os.listdir(tmp_path) == ["params"]
  (tmp_path / "notes").mkdir()
  with pytest.raises(ValueError, match="expected a checkpoint to overwrite, found something else"):
    from_orbax.save(tmp_path / "notes", random_params(), overwrite=True)


@pytest.mark.parametrize("again", [False, True])
def test_files_do_not_name_the_folder_they_were_written_in(tmp_path, again):
  path = tmp_path / "somebodys_home" / "weights"
  for _ in range(1 + again):
    from_orbax.save(path, random_params(), overwrite=True)
  files = [file for file in path.rglob("*") if file.is_file()]
  assert files and not [file.name for file in files if b"somebodys_home" in file.read_bytes()]
  assert from_orbax.load(path)


def test_interrupted_save_leaves_nothing_or_the_old_one(tmp_path, monkeypatch):
  async def interrupted(self, *args, **kwargs):
    raise RuntimeError("killed before the rename")

  old = tmp_path / "old"
  from_orbax.save(old, random_params(0))
  with monkeypatch.context() as patch:
    patch.setattr(atomicity.AtomicRenameTemporaryPath, "finalize", interrupted)
    for path in (tmp_path / "new", old):
      with pytest.raises(RuntimeError, match="killed"):
        from_orbax.save(path, random_params(1), overwrite=True)
  assert len(os.listdir(tmp_path)) == 3  # The old one and what the interrupted writers left.
  with pytest.raises(ValueError, match="new: expected a checkpoint folder, found nothing"):
    from_orbax.load(tmp_path / "new")
  assert_same(from_orbax.load(old), random_params(0))
  for path in (tmp_path / "new", old):
    from_orbax.save(path, random_params(1), overwrite=True)
    assert_same(from_orbax.load(path), random_params(1))


@pytest.mark.parametrize(
    "params, message",
    [
        ({"params": random_params()}, r"save variables\['params'\]"),
        ({}, "expected a tree of arrays, found no array"),
        ({"a": {"b": None, "c": np.ones(2)}, "d": 3.0}, "expected a tree of arrays, found a/b, d"),
    ],
)
def test_save_refuses_what_is_no_tree_of_parameters(tmp_path, params, message):
  with pytest.raises(ValueError, match=message):
    from_orbax.save(tmp_path / "params", params)
  assert not os.listdir(tmp_path)


def test_training_run_gives_params_of_the_newest_step(tmp_path):
  params = random_params()
  write_run(tmp_path, (5, 40, 100), params)
  (tmp_path / "checkpoints" / "200.orbax-checkpoint-tmp-1").mkdir()
  shifted = lambda step: jax.tree.map(lambda x: np.asarray(jnp.asarray(x + step)), params)
  for path in (tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints" / "100"):
    assert_same(from_orbax.load(path, expected=params), shifted(100))
  assert_same(from_orbax.load(tmp_path / "checkpoints" / "5"), shifted(5))
  half = from_orbax.load(tmp_path, dtype="bfloat16")
  assert half["decoder"]["layers_0"]["mlp"]["wi"]["kernel"].dtype == ml_dtypes.bfloat16


def test_optimizer_arrays_are_not_read(tmp_path):
  params = {"kernel": np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)}
  large = {"mu": np.random.default_rng(1).normal(size=(1024, 1024)).astype(np.float32)}
  manager = train_checkpoints.TrainCheckpoints(str(tmp_path))
  manager.save(3, train.TrainState(jnp.int32(3), params, large))
  before = bytes_read()
  manager.restore(train.TrainState(jnp.int32(3), params, large))
  whole = bytes_read() - before
  manager.close()
  before = bytes_read()
  assert_same(from_orbax.load(tmp_path), params)
  assert whole > 3_000_000 and bytes_read() - before < 100_000


def test_expected_is_compared_before_arrays_are_read(tmp_path):
  from_orbax.save(tmp_path / "params", random_params())
  expected = random_params(width=8) | {"extra": np.ones(2)}
  del expected["buckets"]
  before = bytes_read()
  with pytest.raises(ValueError) as error:
    from_orbax.load(tmp_path / "params", expected=expected)
  assert bytes_read() - before < 4000
  assert str(error.value).splitlines() == [
      f"{tmp_path / 'params'}: 4 of 4 parameters do not fit the model.",
      "  buckets: expected no such parameter, found shape (7,)",
      "  decoder/layers_0/mlp/wi/kernel: expected shape (8, 40), found (24, 40)",
      "  decoder/norm/scale: expected shape (8,), found (24,)",
      "  extra: expected shape (2,), found no such parameter",
  ]


def _files(folder):
  return sorted(file.relative_to(folder) for file in pathlib.Path(folder).rglob("*") if file.is_file())


@pytest.mark.parametrize("damage", ["missing", "half", "empty"])
def test_no_damage_loads_half(tmp_path, damage):
  """Each file in turn: either it is not needed and all is right, or there is a ValueError with the path."""
  params = random_params()
  from_orbax.save(tmp_path / "whole", params)
  refused = []
  for file in _files(tmp_path / "whole"):
    shutil.rmtree(tmp_path / "bad", ignore_errors=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "bad")
    bad = tmp_path / "bad" / file
    if damage == "missing":
      bad.unlink()
    else:
      os.truncate(bad, bad.stat().st_size // 2 if damage == "half" else 0)
    try:
      assert_same(from_orbax.load(tmp_path / "bad"), params)
    except ValueError as error:
      refused.append(file.name)
      assert str(tmp_path / "bad") in str(error) and "expected a" in str(error) and "copy it again" in str(error)
  assert {"_METADATA", "manifest.ocdbt"} <= set(refused) and len(refused) >= 3


def test_missing_and_foreign_folders(tmp_path):
  with pytest.raises(ValueError, match="nowhere: expected a checkpoint folder, found nothing"):
    from_orbax.load(tmp_path / "nowhere")
  with pytest.raises(ValueError, match="found an empty folder"):
    from_orbax.load(tmp_path)
  (tmp_path / "file").write_text("x")
  with pytest.raises(ValueError, match="found a file; give the folder"):
    from_orbax.load(tmp_path / "file")
  with pytest.raises(ValueError, match="expected a checkpoint .* found file; if it was copied"):
    from_orbax.load(tmp_path)
  (tmp_path / "checkpoints" / "7" / "default").mkdir(parents=True)
  with pytest.raises(ValueError, match="7: expected a checkpoint .* found default"):
    from_orbax.load(tmp_path)
  (tmp_path / "checkpoints" / "7" / "default" / "_METADATA").write_text("{}")
  with pytest.raises(ValueError, match="found one that cannot be read"):
    from_orbax.load(tmp_path)


@pytest.mark.parametrize(
    "tree, message", [({"params": {}, "step": np.int32(1)}, "empty tree"), ([np.ones(2)], "a list")]
)
def test_trees_without_parameters(tmp_path, tree, message):
  ocp.PyTreeCheckpointer().save(tmp_path / "x", tree)
  with pytest.raises(ValueError, match=message):
    from_orbax.load(tmp_path / "x")


@pytest.mark.parametrize("dtype", ["bf16", "flaot32", 3])
def test_a_misspelt_dtype_is_a_value_error(tmp_path, dtype):
  """A TypeError would reach the user of --mode=export as a traceback."""
  with pytest.raises(ValueError, match="dtype: expected a floating-point type such as 'bfloat16', found"):
    from_orbax.save(tmp_path / "new", {"a": np.ones(2, np.float32)}, dtype=dtype)
  assert not (tmp_path / "new").exists()
