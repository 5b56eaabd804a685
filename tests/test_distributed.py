"""Several processes as one program, by `--coordinator`: they see each other, and only the first writes."""

import pathlib
import socket
import subprocess
import sys

import pytest

from specdec import main

ROOT = pathlib.Path(__file__).resolve().parents[1]
CODE = """
import sys
from specdec import main
main.start_distributed(sys.argv[1], 2, int(sys.argv[2]))
import jax
from specdec.benchmark import report
report.write_text(sys.argv[3], f"written by {jax.process_index()}")
report.append_record(sys.argv[3] + "l", {"process": jax.process_index()})
print(jax.process_index(), jax.process_count(), jax.device_count(), jax.local_device_count())
"""


def test_two_processes(tmp_path):
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  command = lambda i: [sys.executable, "-c", CODE, address, str(i), str(tmp_path / "out")]
  runs = [
      subprocess.Popen(command(i), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(2)
  ]
  printed = [run.communicate(timeout=280) for run in runs]
  assert [run.returncode for run in runs] == [0, 0], printed
  assert [out.split() for out, _ in printed] == [["0", "2", "2", "1"], ["1", "2", "2", "1"]]
  assert (tmp_path / "out").read_text() == "written by 0" and (tmp_path / "outl").read_text() == '{"process": 0}\n'


@pytest.mark.parametrize("arguments", [("box:1",), ("box:1", 2), (None, 2, 0), ("auto", None, 1)])
def test_half_an_address(arguments):
  with pytest.raises(ValueError, match="--coordinator"):
    main.start_distributed(*arguments)
