"""The launchers: every dry run prints what would run, bad arguments are one line, scripts pass shellcheck."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import types

import pytest

from specdec.benchmark import grid as grid_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
SCRIPTS = [path for path in LAUNCH.glob("*.sh")] + [ROOT / ".ci" / "run"]


def run(*command):
  return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)


def lines_of(printed):
  return [shlex.split(line) for line in printed.splitlines() if line and not line.startswith("#")]


def test_shellcheck():
  tool = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(pathlib.Path(sys.executable).parent))
  if tool is None:
    pytest.skip("needs shellcheck, of the extra `test`")
  found = run(tool, "--external-sources", *SCRIPTS)
  assert found.returncode == 0, found.stdout + found.stderr


def test_local_sweep_dry_run():
  grids = ["configs/demo_table2.py", "configs/demo_lenience.py"]
  found = run(LAUNCH / "local_sweep.sh", "--dry_run", "out/here", *grids, "--", "--gin.INPUT='a b'")
  assert found.returncode == 0, found.stderr
  first, second, report = lines_of(found.stdout)
  assert first[1:] == [
      "-m", "specdec.main", "--mode=sweep", f"--grid={grids[0]}", "--output=out/here/demo_table2", "--gin.INPUT='a b'"
  ]  # fmt: skip
  assert f"--grid={grids[1]}" in second and "--gin.INPUT='a b'" in second
  assert "--input=out/here/demo_table2,out/here/demo_lenience" in report and "--output=out/here/report" in report
  assert not (ROOT / "out").exists()


def test_local_sweep_says_what_it_lacks():
  assert "usage:" in run(LAUNCH / "local_sweep.sh").stderr
  assert "found nothing at gone.py" in run(LAUNCH / "local_sweep.sh", "--dry_run", "out", "gone.py").stderr


TPU = ["--name=box", "--zone=us-central2-b", "--grid=configs/leviathan_table2.py", "--output=gs://bucket/t2", "--dry_run"]


def test_tpu_vm_dry_run_prints_every_line_in_order():
  found = run(LAUNCH / "tpu_vm.sh", *TPU, "--workers=2", "--type=v4-16", "--spot", "--", "--gin.ENDE_XXL='gs://b/x y'")
  assert found.returncode == 0, found.stderr
  lines = lines_of(found.stdout)
  verbs = [line[4] if line[:4] == ["gcloud", "compute", "tpus", "tpu-vm"] else " ".join(line[:3]) for line in lines]
  assert lines[0][1:4] == ["-m", "specdec.main", "--mode=plan"] and lines[0][-2:] == [
      "--gin.TOPOLOGY='v4:2x2x1'", "--gin.MUST_FIT=True",
  ]  # fmt: skip
  lines, verbs = lines[1:], verbs[1:]
  assert verbs == ["create", "scp", "ssh", "ssh", "ssh", "mkdir -p results", "gcloud storage cp", "delete"]
  assert "--accelerator-type=v4-16" in lines[0] and "--spot" in lines[0]
  assert all("--zone=us-central2-b" in line for line in lines if line[2] == "tpus")
  for worker, line in enumerate(lines[3:5]):
    assert f"--worker={worker}" in line
    (command,) = [part.removeprefix("--command=") for part in line if part.startswith("--command=")]
    bash, flag, script = shlex.split(command)
    assert (bash, flag) == ("bash", "-c") and script.startswith("cd specdec && source launch/environment.sh")
    arguments = shlex.split(script.split("-m specdec.main ")[1])
    assert arguments == [
        "--mode=sweep", "--grid=configs/leviathan_table2.py", "--output=gs://bucket/t2", f"--host={worker}", "--hosts=2",
        "--gin.ENDE_XXL='gs://b/x y'",
    ]  # fmt: skip
  assert lines[-1][5:7] == ["box", "--quiet"]


def test_tpu_vm_that_stays():
  assert "delete" not in run(LAUNCH / "tpu_vm.sh", *TPU, "--keep").stdout
  existing = run(LAUNCH / "tpu_vm.sh", *TPU, "--existing").stdout
  assert " create " not in existing and " delete " not in existing and " ssh " in existing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected --name, --zone, --grid and --output"),
        ([*TPU, "--output=here"], "expected a gs:// folder"),
        ([*TPU, "--grid=gone.py"], "found nothing at gone.py"),
        ([*TPU, "--workers=none"], "expected a number, found none"),
        ([*TPU, "--plan=gone.gin"], "found nothing at gone.gin"),
        ([*TPU, "--type=v9-4"], "no host is known for v9-4"),
        ([*TPU, "--size=3"], "unknown argument --size=3"),
    ],
)
def test_tpu_vm_says_what_is_wrong(arguments, message):
  found = run(LAUNCH / "tpu_vm.sh", *arguments)
  assert found.returncode == 1 and message in found.stderr and "gcloud" not in found.stdout


def test_tpu_vm_without_a_plan():
  assert "--mode=plan" not in run(LAUNCH / "tpu_vm.sh", *TPU, "--plan=none").stdout


def load_xm_launch():
  """The functions of launch/xm_launch.py without its flags, which would collide with those of specdec.main."""
  source = (LAUNCH / "xm_launch.py").read_text(encoding="utf-8")
  names = {"__name__": "xm_launch", "__file__": str(LAUNCH / "xm_launch.py")}
  source = re.sub(r"^_[A-Z_]+ = flags\.DEFINE_\w+\(.*\)$", "", source, flags=re.MULTILINE)
  exec(compile(source, str(LAUNCH / "xm_launch.py"), "exec"), names)
  return types.SimpleNamespace(**names)


def test_xm_dry_run_has_a_trial_a_cell():
  grid = "configs/leviathan_table2.py"
  found = run(
      sys.executable, LAUNCH / "xm_launch.py", f"--grid={grid}", "--output=gs://b/t2", "--dry_run", "--", "--gin.ENDE_XXL='x'"
  )
  assert found.returncode == 0, found.stderr
  names = [cell["name"] for cell in grid_lib.load(str(ROOT / grid))["cells"]]
  assert re.findall(r"^# (\S+): kubernetes, tpu_v4=2x2x1$", found.stdout, flags=re.MULTILINE) == names
  for name, line in zip(names, lines_of(found.stdout), strict=True):
    cells = next(part.removeprefix("--cells=") for part in line if part.startswith("--cells="))
    assert [n for n in names if re.fullmatch(cells, n)] == [name]
    assert "--output=gs://b/t2" in line and line[-1] == "--gin.ENDE_XXL='x'"


def test_xm_arguments():
  launch = load_xm_launch()
  trials = launch.trials("configs/demo_table2.py", "t0-.*", "out", ())
  assert [trial.name for trial in trials] == [f"t0-{rest}" for rest in ("g1", "g3", "g3-batches", "g5", "g7")]
  with pytest.raises(ValueError, match="no cell's name matches 'z'"):
    launch.trials("configs/demo_table2.py", "z", "out", ())


def test_xm_experiment_on_xmanager_itself():
  """XManager's own mock experiment takes the work units."""
  xm = pytest.importorskip("xmanager.xm")
  xm_mock = pytest.importorskip("xmanager.xm_mock")
  launch = load_xm_launch()
  trials = launch.trials("configs/demo_table2.py", "t1-.*", "out", ("--gin.A=1",))
  container = launch.container(xm, "python:3.12-slim")
  assert isinstance(container, xm.PythonContainer)
  needs = launch.requirements(xm, "v4", "2x2x1")
  assert needs.accelerator == xm.ResourceType.TPU_V4 and needs.topology.chip_count == 4
  with pytest.raises(ValueError, match="expected a generation"):
    launch.requirements(xm, "v99", "2x2x1")
  with xm_mock.MockExperiment() as experiment:
    launch.add_trials(xm, experiment, xm_mock.MockExecutable(), xm_mock.MockExecutor(), trials)
  assert len(experiment.launched_jobs) == len(trials)
  for job, trial in zip(experiment.launched_jobs, trials, strict=True):
    assert job.name == trial.name and [shlex.split(a)[0] for a in job.args.to_list()] == list(trial.arguments)
