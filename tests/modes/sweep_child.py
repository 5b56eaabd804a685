"""A cell of `test_sweep.py`: does what its binding ACT says, and notes that it ran. And a sweep that can be killed.

  python sweep_child.py PARENT --mode=… --gin_bindings=… --output=…
  python -m tests.modes.sweep_child --sweep GRID OUTPUT
"""

import json
import os
import pathlib
import re
import sys
import time

NOTES = pathlib.Path(os.environ.get("SWEEP_NOTES", "."))


def cell(arguments):
  text = "\n".join(arguments)
  acts = re.findall(r"--gin_bindings=ACT = '(\w+)'", text)
  (name,) = re.findall(r"--gin_bindings=NAME = '(.+)'", text)
  (output,) = re.findall(r"--output=(.+)", text)
  with open(NOTES / "ran", "a") as file:
    file.write(name + "\n")
  act = acts[-1]
  if act == "fail" and not (NOTES / "mended").exists():
    print("warming up")
    sys.exit("specdec: it went wrong")
  if act == "hang" and not (NOTES / "mended").exists():
    from specdec.modes.cell import end_with

    end_with(int(arguments[0]), 0.05)
    (NOTES / "hanging").write_text(str(os.getpid()))
    with open(output, "w") as file:
      file.write('{"half a rec')
      file.flush()
      time.sleep(600)
  if act == "meet":  # Ends only while the other one runs.
    (NOTES / f"here-{name}").touch()
    for _ in range(1200):
      if len(list(NOTES.glob("here-*"))) == 2:
        break
      time.sleep(0.05)
    else:
      sys.exit("alone")
  with open(output, "w") as file:
    file.write(json.dumps({"alpha": 0.5, "act": act, "slot": os.environ.get("CUDA_VISIBLE_DEVICES")}) + "\n")


if __name__ == "__main__":
  if sys.argv[1] == "--sweep":
    from specdec.modes import sweep

    sweep._CHILD = (sys.executable, __file__)
    sweep.sweep(sys.argv[2], sys.argv[3])
  else:
    cell(sys.argv[1:])
