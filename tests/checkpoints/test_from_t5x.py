"""`checkpoints.from_t5x` on files that T5X wrote, whole and damaged."""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys

from etils import epath
from flax import serialization
import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts

from specdec.checkpoints import formats
from specdec.checkpoints import from_orbax
from specdec.checkpoints import from_t5x
from specdec.checkpoints import huggingface_names
from specdec.checkpoints import names
from specdec.networks.t5 import T5Config

SMALL = pathlib.Path(__file__).parents[1] / "fixtures" / "t5x" / "checkpoint_1000000"
SHARED = pathlib.Path(__file__).parents[3] / "shared" / "t5x_fixtures"
NAMES = (
    "target target_orbax target_scan tied draft draft_bfloat16 draft_inline_norms draft_gcs_specs draft_orbax "
    "trained_target trained_draft"
).split()
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the full set of T5X fixtures is not beside the repository")
# Orbax closes its event loop on the first damaged array, and the others then complain into the void.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def zarr_arrays(step_folder):
  """An independent reader: the zarr folders of a legacy checkpoint, of one chunk each."""
  arrays = {}
  for folder in sorted(step_folder.glob("target.*")):
    meta = json.loads((folder / ".zarray").read_text())
    assert meta["chunks"] == meta["shape"] and meta["order"] == "C" and meta["compressor"]["id"] == "gzip"
    dtype = ml_dtypes.bfloat16 if meta["dtype"] == "bfloat16" else np.dtype(meta["dtype"])
    data = gzip.decompress((folder / ".".join("0" * len(meta["shape"]))).read_bytes())
    name = folder.name.removeprefix("target.").replace(".", "/")
    arrays[name] = np.frombuffer(data, dtype).reshape(meta["shape"])
  return arrays


def assert_same(params, expected):
  flat = names.flatten(params)
  assert flat.keys() == expected.keys()
  for name, array in expected.items():
    assert isinstance(flat[name], np.ndarray) and flat[name].dtype == array.dtype, name
    np.testing.assert_array_equal(flat[name], array, err_msg=name)


def write_index(folder, target, version=3, optimizer=None):
  folder.mkdir(parents=True, exist_ok=True)
  tree = {"version": version, "optimizer": optimizer or {"target": target, "state": {"step": 1}}}
  (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
  return folder


@pytest.fixture
def copy(tmp_path):
  """A checkpoint of T5X that a test may damage."""
  return pathlib.Path(shutil.copytree(SMALL, tmp_path / "model" / "checkpoint_1000000"))


def small_shapes():
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), from_t5x.load(SMALL))


def test_legacy_arrays_equal_an_independent_reading():
  arrays = zarr_arrays(SMALL)
  assert len(arrays) == 29
  assert_same(from_t5x.load(SMALL), arrays)
  assert_same(from_t5x.load(str(SMALL.parent)), arrays)


def test_dtype_casts_and_rounds_to_nearest_even():
  rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in zarr_arrays(SMALL).items()}
  assert_same(from_t5x.load(SMALL, dtype="bfloat16"), rounded)
  with pytest.raises(ValueError, match="floating-point type such as 'bfloat16', found 'int8'"):
    from_t5x.load(SMALL, dtype="int8")


def test_newest_finished_step_is_taken(tmp_path):
  for step in (9, 10):
    write_index(tmp_path / f"checkpoint_{step}", {"norm": {"scale": np.full(2, float(step))}})
  write_index(tmp_path / "checkpoint_11.tmp-123", {"norm": {"scale": np.zeros(2)}})
  (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1000"')
  assert from_t5x.load(tmp_path)["norm"]["scale"].tolist() == [10, 10]
  assert from_t5x.load(tmp_path / "checkpoint_9")["norm"]["scale"].tolist() == [9, 9]


def test_orbax_format(tmp_path):
  arrays = zarr_arrays(SMALL)
  state = {"target": names.unflatten(arrays), "state": {"step": np.int32(5), "param_states": {"v": np.ones(3)}}}
  ocp.PyTreeCheckpointer().save(tmp_path / "checkpoint_5" / "state", state)
  (tmp_path / "checkpoint_6.orbax-checkpoint-tmp-7").mkdir()
  for path in (tmp_path, tmp_path / "checkpoint_5"):
    assert_same(from_t5x.load(path, expected=small_shapes()), arrays)
  with pytest.raises(ValueError, match="checkpoints.from_t5x"):
    from_orbax.load(tmp_path)
  with pytest.raises(ValueError, match="T5X train state; load it with checkpoints.from_t5x"):
    from_orbax.load(tmp_path / "checkpoint_5" / "state")
  manifest = tmp_path / "checkpoint_5" / "state" / "manifest.ocdbt"
  os.truncate(manifest, manifest.stat().st_size // 2)
  with pytest.raises(ValueError, match="expected a whole Orbax checkpoint, found one that cannot be read"):
    from_t5x.load(tmp_path)


@pytest.mark.parametrize(
    "folder, bucket, inside",
    [("gs://b/t5/checkpoint_1", "b", "t5/checkpoint_1/"), ("gs://b-2/checkpoint_1", "b-2", "checkpoint_1/")],
)
def test_bucket_paths_replace_the_dummy(folder, bucket, inside):
  dummy = {"driver": "gcs", "bucket": "t5x-dummy-bucket"}
  for place in (
      {"kvstore": dummy | {"path": "target.x/"}},
      {"kvstore": dummy, "path": "target.x"},  # As TensorStore wrote it before 0.1.14.
      {"kvstore": {"driver": "file", "path": "target.x"}},
  ):
    leaf = {"driver": "zarr", "metadata": {"shape": [2], "chunks": [2]}} | place
    spec = from_t5x._array_spec(epath.Path(folder), "x", leaf)
    assert spec["kvstore"] == {"driver": "gcs", "bucket": bucket, "path": f"{inside}target.x/"}
    spec = from_t5x._array_spec(epath.Path("/a/b"), "x", leaf)
    assert spec["kvstore"] == {"driver": "file", "path": "/a/b/target.x/"}


KERNEL = "decoder/layers_0/mlp/wi_0/kernel"


@pytest.mark.parametrize(
    "damage", ["no chunk", "half a chunk", "empty chunk", "no .zarray", "no folder", "other shape"]
)
def test_damaged_array_is_named(copy, damage):
  array = copy / f"target.{KERNEL.replace('/', '.')}"
  chunk = array / "0.0"
  if damage == "no chunk":
    chunk.unlink()
  elif damage == "half a chunk":
    chunk.write_bytes(chunk.read_bytes()[: chunk.stat().st_size // 2])
  elif damage == "empty chunk":
    chunk.write_bytes(b"")
  elif damage == "no .zarray":
    (array / ".zarray").unlink()
  elif damage == "no folder":
    shutil.rmtree(array)
  else:
    (array / ".zarray").write_text((array / ".zarray").read_text().replace('"shape":[32,64]', '"shape":[64,32]'))
  with pytest.raises(ValueError) as error:
    from_t5x.load(copy)
  for part in (str(copy), KERNEL, "expected the array of", "found none that can be read", "copy the checkpoint again"):
    assert part in str(error.value)


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "found 0 bytes that do not parse"),
        (SMALL.joinpath("checkpoint").read_bytes()[:2000], "found 2000 bytes that do not parse"),
        (b'model_checkpoint_path: "model.ckpt-1"', "found a TensorFlow checkpoint"),
        (b"hello", "expected T5X's msgpack file"),
        (serialization.msgpack_serialize({"params": {"x": np.ones(2)}}), r"version and optimizer, found \['params'\]"),
        (serialization.msgpack_serialize([1, 2]), "found a list"),
        (serialization.msgpack_serialize({"version": 1, "optimizer": {}}), "expected version 2 or later, found 1"),
        (serialization.msgpack_serialize({"version": 3, "optimizer": {"state": {}}}), "optimizer/target, found none"),
    ],
)
def test_damaged_or_foreign_index(tmp_path, data, message):
  (tmp_path / "checkpoint").write_bytes(data)
  with pytest.raises(ValueError, match=message) as error:
    from_t5x.load(tmp_path)
  assert str(tmp_path / "checkpoint") in str(error.value)


def _spec(**changes):
  spec = {"driver": "zarr", "dtype": "float32", "kvstore": {"driver": "file", "path": "x/"}, "metadata": {"shape": [2]}}
  return {"norm": {"scale": spec | changes}}


@pytest.mark.parametrize(
    "target, message",
    [
        (_spec(dtype="uint16"), "expected bfloat16, found uint16 for norm/scale"),
        (_spec(kvstore={"driver": "s3", "path": "x/"}), "found 's3' and 'x/'"),
        (_spec(kvstore={"driver": "file", "path": "/etc/x/"}), "a folder beside the file for norm/scale"),
        (_spec(kvstore={"driver": "file", "path": "../x/"}), "a folder beside the file for norm/scale"),
        (_spec(metadata={}), "expected an array or a zarr spec for norm/scale"),
        ({"norm": {"scale": "text"}}, "expected an array or a zarr spec for norm/scale, found 'text'"),
    ],
)
def test_strange_leaves(tmp_path, target, message):
  with pytest.raises(ValueError, match=message):
    from_t5x.load(write_index(tmp_path / "checkpoint_1", target))


def test_missing_and_foreign_folders(tmp_path):
  with pytest.raises(ValueError, match="nowhere: expected a checkpoint folder, found nothing; check the path"):
    from_t5x.load(tmp_path / "nowhere")
  with pytest.raises(ValueError, match="found a file; give the folder it lies in"):
    from_t5x.load(SMALL / "checkpoint")
  with pytest.raises(ValueError, match="found an empty folder; check the path"):
    from_t5x.load(tmp_path)
  from_orbax.save(tmp_path / "ours", {"scale": np.ones(2)})
  with pytest.raises(ValueError, match="found one of ours; load it with checkpoints.from_orbax"):
    from_t5x.load(tmp_path / "ours")


def test_expected_is_compared_before_arrays_are_read(copy):
  shapes = names.flatten(small_shapes())
  from_t5x.load(copy, expected={"params": names.unflatten(shapes)})
  for folder in copy.glob("target.*"):
    shutil.rmtree(folder)
  shapes["decoder/extra/kernel"] = shapes.pop("decoder/logits_dense/kernel")
  shapes[KERNEL] = jax.ShapeDtypeStruct((3, 4), np.float32)
  with pytest.raises(ValueError) as error:
    from_t5x.load(copy, expected=names.unflatten(shapes))
  assert str(error.value).splitlines() == [
      f"{copy}: 3 of 30 parameters do not fit the model.",
      "  decoder/extra/kernel: expected shape (32, 512), found no such parameter",
      f"  {KERNEL}: expected shape (3, 4), found (32, 64)",
      "  decoder/logits_dense/kernel: expected no such parameter, found shape (32, 512)",
  ]


@pytest.mark.parametrize(
    "name", ["checkpoint_1000000", "formats/draft_inline_norms", "formats/draft_orbax", "formats/target_scan"]
)
def test_each_array_goes_to_its_device_as_it_is_read(name):
  host = from_t5x.load(SMALL.parent / name)
  seen = []
  from_t5x.load(SMALL.parent / name, place=lambda part, array: seen.append((part, array.shape)) or array)
  assert sorted(seen) == sorted((part, array.shape) for part, array in names.flatten(host).items())
  device = jax.devices()[0]
  where = jax.tree.map(lambda _: jax.sharding.SingleDeviceSharding(device), host)
  placed = formats.load(SMALL.parent / name, dtype="bfloat16", shardings=where)
  for part, array in names.flatten(placed).items():
    assert isinstance(array, jax.Array) and array.devices() == {device}, part
    np.testing.assert_array_equal(array, names.flatten(host)[part].astype(ml_dtypes.bfloat16), err_msg=part)


PEAK = """
import sys
sys.path.insert(0, sys.argv[1])
from specdec.checkpoints import from_t5x
import jax
def status(key):
  with open("/proc/self/status") as file:
    return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024
from_t5x.load(sys.argv[4])  # What is imported and started once is not counted.
before = status("VmRSS")
params = from_t5x.load(sys.argv[2], dtype=sys.argv[3])
print((status("VmHWM") - before) / sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
"""


@pytest.fixture(scope="module")
def big(tmp_path_factory):
  """Checkpoints of 133 MB in both of T5X's formats, 12 % of it the embedding."""
  config = T5Config(8000, 512, 8, 64, 4, 4, 1024)
  shapes = names.flatten(huggingface_names.parameter_shapes(config))
  flat = {name: np.full(shape.shape, 0.5, np.float32) for name, shape in shapes.items()}
  folder = tmp_path_factory.mktemp("big")
  state = {"target": names.unflatten(flat), "state": {"step": np.int32(1)}}
  ocp.PyTreeCheckpointer().save(folder / "orbax" / "checkpoint_1" / "state", state)
  specs = {}
  for name, array in flat.items():
    place = f"target.{name.replace('/', '.')}"
    chunk = {"shape": array.shape, "chunks": array.shape, "dtype": "<f4", "compressor": {"id": "gzip"}}
    kvstore = {"driver": "file", "path": str(folder / "legacy" / "checkpoint_1" / place)}
    ts.open({"driver": "zarr", "kvstore": kvstore, "metadata": chunk}, create=True).result().write(array).result()
    specs[name] = {"driver": "zarr", "dtype": "float32", "kvstore": {"driver": "file", "path": place}}
    specs[name]["metadata"] = {"shape": list(array.shape)}
  write_index(folder / "legacy" / "checkpoint_1", names.unflatten(specs))
  return folder


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind,start", [("legacy", SMALL), ("orbax", SMALL.parent / "formats" / "draft_orbax")])
def test_the_host_holds_hardly_more_than_the_weights(big, kind, start, dtype):
  """What the process holds at its peak over the weights that were asked for."""
  command = [sys.executable, "-c", PEAK, pathlib.Path(__file__).parents[2], big / kind, dtype, start]
  assert float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 1.3


@shared
@pytest.mark.parametrize("name", NAMES)
def test_shared_names_and_shapes(name):
  described = json.loads((SHARED / "params" / "fixtures.json").read_text())
  model = {"target_orbax": "target", "target_scan": "target"}.get(name, "draft" if name.startswith("draft") else name)
  flat = names.flatten(from_t5x.load(SHARED / "checkpoints" / name))
  assert {key: list(leaf.shape) for key, leaf in flat.items()} == {
      entry["name"]: entry["shape"] for entry in described[model]["params"]
  }
  assert {leaf.dtype.name for leaf in flat.values()} == {"bfloat16" if name == "draft_bfloat16" else "float32"}


@shared
@pytest.mark.parametrize("name", ["target", "tied", "draft", "draft_bfloat16", "draft_gcs_specs"])
def test_shared_legacy_arrays_equal_an_independent_reading(name):
  (folder,) = (SHARED / "checkpoints" / name).glob("checkpoint_*")
  assert_same(from_t5x.load(folder), zarr_arrays(folder))


@shared
@pytest.mark.parametrize(
    "name, same",
    [("target_orbax", "target"), ("target_scan", "target"), ("draft_orbax", "draft"), ("draft_inline_norms", "draft")],
)
def test_shared_formats_agree(name, same):
  load = lambda which: from_t5x.load(SHARED / "checkpoints" / which)
  assert_same(load(name), names.flatten(load(same)))


@shared
@pytest.mark.parametrize("name", ["draft", "draft_orbax", "draft_inline_norms"])
def test_shared_rounding_equals_t5x(name):
  rounded = from_t5x.load(SHARED / "checkpoints" / "draft_bfloat16")
  assert_same(from_t5x.load(SHARED / "checkpoints" / name, dtype="bfloat16"), names.flatten(rounded))


@shared
def test_shared_optimizer_arrays_are_not_read(tmp_path):
  (folder,) = (SHARED / "checkpoints" / "target").glob("checkpoint_*")
  copy = shutil.copytree(folder, tmp_path / "checkpoint_1", ignore=shutil.ignore_patterns("state.*"))
  assert len(list(folder.glob("state.*"))) > 10 and not list(pathlib.Path(copy).glob("state.*"))
  assert_same(from_t5x.load(copy), zarr_arrays(folder))
