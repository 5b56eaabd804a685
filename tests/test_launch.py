"""The launch scripts, with a Python that says how it is called."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_the_demo_s_files_are_relative_to_the_folder_of_its_user(tmp_path):
  """`launch/demo.sh --input=my_sentences.txt` from anywhere: a `cd` would look for it in the checkout."""
  python, user = tmp_path / "venv" / "bin" / "python", tmp_path / "user's folder"
  python.parent.mkdir(parents=True)
  user.mkdir()
  python.write_text(f"""#!/bin/sh
if [ "$1" = -m ]; then pwd; for argument; do echo "$argument"; done; else exec {sys.executable} "$@"; fi
""")
  python.chmod(0o755)
  environment = os.environ | {"SPECDEC_VENV": str(tmp_path / "venv")}
  code = 'source "$0"; fingerprint "$VENV/bin/python" > "$VENV/.specdec-base"'
  subprocess.run(["bash", "-c", code, str(ROOT / "launch" / "environment.sh")], env=environment, check=True)
  run = subprocess.run(
      [ROOT / "launch" / "demo.sh", "--input=my.txt"], env=environment, cwd=user, capture_output=True, text=True, check=True
  )
  folder, *arguments = run.stdout.splitlines()
  assert folder == str(user)
  assert arguments == [
      "-m", "specdec.main", "--mode=decode", f"--gin_file={ROOT}/gin/runs/demo.gin", "--input=my.txt"
  ]  # fmt: skip
