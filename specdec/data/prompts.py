"""Requests from plain text and JSONL, and their arrays.

No TensorFlow: a seqio task's examples come through `data.tasks`.
"""

from collections.abc import Iterable, Sequence
import json
from typing import Any, NamedTuple

from absl import logging
import numpy as np

from specdec.data import text
from specdec.data.vocabularies import EOS_ID, PAD_ID, Vocabulary


class Request(NamedTuple):
  """One thing to decode.

  Attributes:
    inputs: the source text; None when ids were given.
    input_ids: encoder tokens, EOS included.
    prefix_ids: forced first tokens of the output.
    line: its number in the file, counted from 1.
  """

  inputs: str | None
  input_ids: tuple[int, ...]
  prefix_ids: tuple[int, ...] = ()
  line: int = 0


def read_requests(path: str, vocabulary: Vocabulary, jsonl: bool | None = None) -> list[Request]:
  """Reads every request of a file and checks each before anything is decoded.

  Args:
    path: plain text, one source a line; or JSONL, one object a line with
      `inputs` (text) or `input_ids` (encoder tokens; EOS is added if missing),
      and optionally `prefix` (text) or `prefix_ids` (forced first tokens).
      '-' is standard input; a name that ends in `.gz` is unpacked.
    vocabulary: of the models.
    jsonl: None decides by the ending `.jsonl` or `.jsonl.gz`.

  Raises:
    ValueError: no such file, not UTF-8, an empty line, an object with neither
      or both of two such fields, an id outside of the vocabulary. The message
      names the line.
  """
  if jsonl is None:
    jsonl = path.endswith((".jsonl", ".jsonl.gz"))
  lines = text.read_lines(path)
  if not lines:
    raise ValueError(f"input: expected at least one line in {path}, found none.")
  make = _from_json if jsonl else _from_text
  return [make(line, number, path, vocabulary) for number, line in enumerate(lines, start=1)]


def _fail(path: str, number: int, expected: str, found: str) -> ValueError:
  return ValueError(f"input: line {number} of {path}: expected {expected}, found {found}.")


def _from_text(line: str, number: int, path: str, vocabulary: Vocabulary) -> Request:
  if not line.strip():
    raise _fail(path, number, "a sentence", "an empty line; remove it or give JSONL with input_ids")
  return Request(line, (*vocabulary.encode(line), EOS_ID), (), number)


def _text(value: Any, name: str, number: int, path: str) -> str:
  if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
    raise _fail(path, number, f"{name} to be text", ascii(value)[:60])
  return value


def _ids(value: Any, name: str, number: int, path: str, vocabulary: Vocabulary) -> tuple[int, ...]:
  if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
    raise _fail(path, number, f"{name} to be a list of integers", repr(value)[:60])
  for token in value:
    if not 0 <= token < vocabulary.size:
      raise _fail(path, number, f"{name} in [0, {vocabulary.size})", str(token))
  return tuple(value)


def _from_json(line: str, number: int, path: str, vocabulary: Vocabulary) -> Request:
  try:
    record = json.loads(line)
  except (ValueError, RecursionError) as error:  # Too many digits and too many brackets have no error of json's own.
    raise _fail(path, number, "a JSON object", f"{line[:60]!r} ({getattr(error, 'msg', error)})") from error
  if not isinstance(record, dict) or ("inputs" in record) == ("input_ids" in record):
    raise _fail(path, number, "an object with either 'inputs' or 'input_ids'", line[:60])
  if "prefix" in record and "prefix_ids" in record:
    raise _fail(path, number, "at most one of 'prefix' and 'prefix_ids'", line[:60])
  prefix = ()
  if "prefix" in record:
    prefix = tuple(vocabulary.encode(_text(record["prefix"], "prefix", number, path)))
  if "prefix_ids" in record:
    prefix = _ids(record["prefix_ids"], "prefix_ids", number, path, vocabulary)
  if "inputs" in record:
    source = _text(record["inputs"], "inputs", number, path)
    return _from_text(source, number, path, vocabulary)._replace(prefix_ids=prefix)
  ids = _ids(record["input_ids"], "input_ids", number, path, vocabulary)
  if not ids or ids == (EOS_ID,):
    raise _fail(path, number, "at least one token", "empty input_ids")
  return Request(None, ids if ids[-1] == EOS_ID else (*ids, EOS_ID), prefix, number)


def fit_length(request: Request, length: int, on_long: str = "truncate") -> Request:
  """Cuts a request to `length` encoder tokens, EOS kept, with a warning; or refuses it.

  Args:
    request: any.
    length: longest encoder input.
    on_long: 'truncate' or 'error'.

  Raises:
    ValueError: it is longer and `on_long` is 'error'.
  """
  if len(request.input_ids) <= length:
    return request
  found = f"line {request.line} has {len(request.input_ids)} tokens and the encoder takes {length}"
  if on_long == "error":
    raise ValueError(f"input: {found}. Shorten it, raise the encoder length, or pass on_long='truncate'.")
  logging.warning("%s: cut, the rest is not translated.", found)
  return request._replace(input_ids=(*request.input_ids[: length - 1], EOS_ID))


class PromptArrays(NamedTuple):
  """The fields of `interfaces.Prompt` as NumPy arrays."""

  tokens: np.ndarray  # [B, S] int32
  mask: np.ndarray  # [B, S] bool
  prefix: np.ndarray  # [B, P] int32
  prefix_length: np.ndarray  # [B] int32


def to_arrays(requests: Sequence[Request], batch: int, length: int, prefix_width: int = 1) -> PromptArrays:
  """Stacks requests into `batch` rows; missing rows repeat the last request.

  Args:
    requests: 1 to `batch` of them, none longer than `length`.
    batch: B.
    length: S.
    prefix_width: P, at least 1 (BOS) + the longest prefix.
  """
  rows = [*requests, *[requests[-1]] * (batch - len(requests))]
  tokens = np.full((batch, length), PAD_ID, np.int32)
  mask = np.zeros((batch, length), bool)
  prefix = np.zeros((batch, prefix_width), np.int32)
  prefix_length = np.ones((batch,), np.int32)
  for i, row in enumerate(rows):
    tokens[i, : len(row.input_ids)] = row.input_ids
    mask[i, : len(row.input_ids)] = True
    prefix[i, 1 : 1 + len(row.prefix_ids)] = row.prefix_ids
    prefix_length[i] = 1 + len(row.prefix_ids)
  return PromptArrays(tokens, mask, prefix, prefix_length)


def bucket(length: int, boundaries: Sequence[int]) -> int:
  """The first of the rising `boundaries` that holds `length`."""
  for boundary in boundaries:
    if length <= boundary:
      return boundary
  raise ValueError(f"length: expected at most {boundaries[-1]}, found {length}.")


def batches(requests: Sequence[Request], size: int) -> Iterable[Sequence[Request]]:
  """Consecutive groups of at most `size`."""
  for start in range(0, len(requests), size):
    yield requests[start : start + size]
