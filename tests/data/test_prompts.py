"""`data.prompts`: every kind of input file, and an error that names the line for every bad one."""

import gzip
import io
import json
import types

from absl import logging
import numpy as np
import pytest

from specdec.data import prompts
from specdec.data import vocabularies


class Letters:
  """A vocabulary of characters: 'a' is 3, and so on; 29 pieces."""

  size = 29

  def encode(self, text):
    return [ord(c) - ord("a") + 3 if "a" <= c <= "z" else 2 for c in text]

  def decode(self, ids):
    return "".join(chr(i - 3 + ord("a")) for i in ids)

  def pieces(self):
    return ["<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture
def read(tmp_path):
  def read(content, name="in.txt", **arguments):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return prompts.read_requests(str(path), Letters(), **arguments)

  return read


def test_plain_text(read):
  assert read("ab\nc\n") == [prompts.Request("ab", (3, 4, 1), (), 1), prompts.Request("c", (5, 1), (), 2)]


@pytest.mark.parametrize(
    "content",
    [b"ab\nc", b"ab\r\nc\r\n", b"\xef\xbb\xbfab\nc\n"],
    ids=["no newline at the end", "CRLF", "byte order mark"],
)
def test_ways_to_write_the_same_lines(read, content):
  assert read(content) == read(b"ab\nc\n")


def test_only_a_newline_ends_a_line(read):
  (request,) = read("a\u2028b\x0cc\x85d\n")
  assert request.inputs == "a\u2028b\x0cc\x85d"


def test_spaces_of_a_line_stay(read):
  assert read(" a b \n")[0].inputs == " a b "


def test_gzip(read, tmp_path):
  assert read(gzip.compress(b"ab\nc\n"), "in.txt.gz") == read(b"ab\nc\n")
  record = json.dumps({"inputs": "ab"}).encode()
  assert read(gzip.compress(record), "in.jsonl.gz") == read(record, "in.jsonl")
  with pytest.raises(ValueError, match="input: expected a file that can be read"):
    read(b"not gzip", "bad.gz")
  with pytest.raises(ValueError, match="input: expected a file that can be read"):
    read(gzip.compress(b"ab\nc\n" * 50)[:-9], "cut.gz")


def test_standard_input(monkeypatch):
  stdin = lambda content: types.SimpleNamespace(buffer=io.BytesIO(content))
  monkeypatch.setattr("sys.stdin", stdin(b"ab\nc\n"))
  assert [r.inputs for r in prompts.read_requests("-", Letters())] == ["ab", "c"]
  monkeypatch.setattr("sys.stdin", stdin(b'{"input_ids": [3]}\n'))
  assert prompts.read_requests("-", Letters(), jsonl=True)[0].input_ids == (3, 1)
  monkeypatch.setattr("sys.stdin", stdin(b"ab\n\xff\n"))
  with pytest.raises(ValueError, match="byte 0xff in line 2 of -"):
    prompts.read_requests("-", Letters())


def test_jsonl(read):
  records = [
      {"inputs": "ab"},
      {"input_ids": [3, 4]},
      {"input_ids": [3, 4, 1], "prefix": "c"},
      {"inputs": "ab", "prefix_ids": [5, 6], "other": 1},
  ]
  content = "\n".join(json.dumps(r) for r in records)
  assert read(content, "in.jsonl") == [
      prompts.Request("ab", (3, 4, 1), (), 1),
      prompts.Request(None, (3, 4, 1), (), 2),
      prompts.Request(None, (3, 4, 1), (5,), 3),
      prompts.Request("ab", (3, 4, 1), (5, 6), 4),
  ]
  assert read(content, "in.txt", jsonl=True) == read(content, "in.jsonl")
  assert read(content, "in.jsonl", jsonl=False)[0].inputs == json.dumps(records[0])


def test_non_ascii_text(read):
  assert read("süß ß\n")[0].inputs == "süß ß"
  assert read('{"inputs": "s\\u00fc\\u00df"}\n', "in.jsonl")[0].inputs == "süß"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected at least one line"),
        ("ab\n\nc\n", "line 2 of .*: expected a sentence, found an empty line"),
        ("ab\n \t\nc\n", "line 2 of .*: expected a sentence, found an empty line"),
        ("ab\n\n", "line 2 of .*: expected a sentence, found an empty line"),
        (b"ab\nc\nd\xe4h\n", "expected UTF-8 text, found byte 0xe4 in line 3"),
        ("a\n".encode("utf-16"), "expected UTF-8 text, found byte 0xff in line 1"),
    ],
)
def test_bad_text(read, content, message):
  with pytest.raises(ValueError, match="input: " + message):
    read(content)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected a JSON object"),
        ("{'inputs': 'a'}", "expected a JSON object"),
        ("[1]", "either 'inputs' or 'input_ids'"),
        ("{}", "either 'inputs' or 'input_ids'"),
        ('{"inputs": "a", "input_ids": [3]}', "either 'inputs' or 'input_ids'"),
        ('{"inputs": 3}', "inputs to be text, found 3"),
        ('{"inputs": null}', "inputs to be text, found None"),
        ('{"inputs": ""}', "expected a sentence"),
        ('{"inputs": "a\\ud800"}', "inputs to be text"),
        ('{"input_ids": "abc"}', "input_ids to be a list of integers, found 'abc'"),
        ('{"input_ids": [3.0]}', "input_ids to be a list of integers"),
        ('{"input_ids": [true]}', "input_ids to be a list of integers"),
        ('{"input_ids": []}', "expected at least one token"),
        ('{"input_ids": [1]}', "expected at least one token"),
        ('{"input_ids": [3, 29]}', r"expected input_ids in \[0, 29\), found 29"),
        ('{"input_ids": [-1]}', r"expected input_ids in \[0, 29\), found -1"),
        ('{"inputs": "a", "prefix_ids": [29]}', r"expected prefix_ids in \[0, 29\), found 29"),
        ('{"inputs": "a", "prefix": 3}', "prefix to be text, found 3"),
        ('{"inputs": "a", "prefix": "b", "prefix_ids": [3]}', "at most one of 'prefix' and 'prefix_ids'"),
    ],
)
def test_bad_json_names_its_line(read, line, message):
  with pytest.raises(ValueError, match="input: line 2 of .*" + message):
    read('{"inputs": "a"}\n' + line + '\n{"inputs": "a"}\n', "in.jsonl")


def test_no_file(tmp_path):
  with pytest.raises(ValueError, match="input: expected a file at .*gone.txt, found nothing there"):
    prompts.read_requests(str(tmp_path / "gone.txt"), Letters())
  with pytest.raises(ValueError, match="input: expected a file that can be read"):
    prompts.read_requests(str(tmp_path), Letters())


def test_long_lines_are_cut_with_a_warning_or_refused(caplog, monkeypatch):
  request = prompts.Request("abcd", (3, 4, 5, 6, 1), (), 7)
  assert prompts.fit_length(request, 5) == request
  warnings = []
  monkeypatch.setattr(logging, "warning", lambda message, *arguments: warnings.append(message % arguments))
  assert prompts.fit_length(request, 3).input_ids == (3, 4, vocabularies.EOS_ID)
  assert len(warnings) == 1 and "line 7 has 5 tokens and the encoder takes 3" in warnings[0]
  with pytest.raises(ValueError, match="input: line 7 has 5 tokens and the encoder takes 3"):
    prompts.fit_length(request, 3, on_long="error")


def test_arrays():
  requests = [prompts.Request(None, (3, 4, 1), (9, 8), 1), prompts.Request(None, (5, 1), (), 2)]
  arrays = prompts.to_arrays(requests, 3, 4, prefix_width=4)
  np.testing.assert_array_equal(arrays.tokens, [[3, 4, 1, 0], [5, 1, 0, 0], [5, 1, 0, 0]])
  np.testing.assert_array_equal(arrays.mask, arrays.tokens > 0)
  np.testing.assert_array_equal(arrays.prefix, [[0, 9, 8, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
  np.testing.assert_array_equal(arrays.prefix_length, [3, 1, 1])
  assert {a.dtype for a in (arrays.tokens, arrays.prefix, arrays.prefix_length)} == {np.dtype(np.int32)}


def test_pad_inside_given_ids_is_a_token_like_others():
  arrays = prompts.to_arrays([prompts.Request(None, (3, 0, 1))], 1, 4)
  np.testing.assert_array_equal(arrays.mask, [[True, True, True, False]])


def test_buckets_and_groups():
  assert [prompts.bucket(n, (4, 8)) for n in (1, 4, 5, 8)] == [4, 4, 8, 8]
  with pytest.raises(ValueError, match="expected at most 8, found 9"):
    prompts.bucket(9, (4, 8))
  assert [list(group) for group in prompts.batches(range(5), 2)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("line", ["[" * 200_000, '{"input_ids": [' + "9" * 5000 + "]}"], ids=["deep", "long number"])
def test_json_beyond_python_s_limits_is_named_by_its_line(tmp_path, line):
  path = tmp_path / "in.jsonl"
  path.write_text('{"input_ids": [5]}\n' + line)
  with pytest.raises(ValueError, match="input: line 2 of .*in.jsonl: expected a JSON object, found"):
    prompts.read_requests(str(path), types.SimpleNamespace(size=10))


def test_closed_standard_input(monkeypatch):
  monkeypatch.setattr("sys.stdin", None)
  with pytest.raises(ValueError, match="input: expected standard input, found it closed; name a file"):
    prompts.read_requests("-", types.SimpleNamespace(size=10))
