"""What the README shows is what happens: its Python runs, the files and gin files it names exist."""

import pathlib
import re

import pytest

from specdec import models

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.skipif(not pathlib.Path(models.resolve("pretrained:ende/target")).exists(), reason="no shipped weights here")
def test_the_ten_lines_run(capsys):
  (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
  assert len(block.strip().splitlines()) <= 11
  exec(compile(block, "README.md", "exec"), {})
  printed = capsys.readouterr().out
  assert "Hund" in printed and "Strand" in printed


def test_named_paths_exist():
  named = set(re.findall(r"`((?:gin|tests|launch|configs)/[\w/.]*\w)`", README))
  named |= set(re.findall(r"\]\((?!http)([^)#]+)\)", README))
  missing = [name for name in sorted(named) if not (ROOT / name).exists()]
  assert not missing
