"""A decode that is killed while it writes a line, for `test_decode_resume.py`.

  python -m tests.modes.killed FOLDER OUTPUT LINES
"""

import os
import pathlib
import signal
import sys

from specdec.modes import decode
from tests.modes import tiny

SETTINGS = dict(
    gamma=tiny.GAMMA, batch_size=4, input_lengths=tiny.LENGTHS, max_new_tokens=tiny.NEW_TOKENS, temperature=1.0, compare=0
)


def main() -> None:
  folder, output, lines = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
  write = decode.Records.write

  def write_or_die(records, record):
    if not lines_left:
      records._file.write('{"inputs": "half a li')
      records._file.flush()
      os.kill(os.getpid(), signal.SIGKILL)
    lines_left.pop()
    write(records, record)

  lines_left = [None] * lines
  decode.Records.write = write_or_die
  pair = tiny.load(folder)
  decode.decode(pair.target, pair.draft, input=str(folder / "sentences.txt"), output=output, **SETTINGS)


if __name__ == "__main__":
  main()
