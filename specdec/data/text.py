"""Text files: plain or gzip, UTF-8, with errors that name the line."""

import gzip
import sys
import zlib

from etils import epath


def read_lines(path: str, name: str = "input") -> list[str]:
  r"""The lines of a text file; only \n ends one, and a \r before it goes too.

  Args:
    path: any path that `etils.epath` opens; '-' is standard input. A name that
      ends in `.gz` is unpacked.
    name: of the argument, for the messages.

  Raises:
    ValueError: there is no such file, it cannot be read, or is not UTF-8.
  """
  if path == "-" and sys.stdin is None:  # What Python makes of a closed one.
    raise ValueError(f"{name}: expected standard input, found it closed; name a file.")
  try:
    data = sys.stdin.buffer.read() if path == "-" else epath.Path(path).read_bytes()
    if path.endswith(".gz"):
      data = gzip.decompress(data)
  except FileNotFoundError as error:
    raise ValueError(f"{name}: expected a file at {path}, found nothing there.") from error
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f"{name}: expected a file that can be read at {path}, found one that cannot ({error}).") from error
  try:
    text = data.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = data[: error.start].count(b"\n") + 1
    raise ValueError(
        f"{name}: expected UTF-8 text, found byte 0x{data[error.start]:02x} in line {line} of {path}. "
        "Convert the file, e.g. with iconv."
    ) from error
  lines = text.split("\n")
  if lines[-1] == "":
    lines.pop()
  return [line.removesuffix("\r") for line in lines]
