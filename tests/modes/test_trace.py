"""`--mode=trace`: what is drawn is what was decoded."""

import functools
import html
import re

import pytest

from specdec import recipes
from specdec.benchmark import calls
from specdec.modes import decode
from specdec.modes import trace
from tests.modes import tiny as lib

COSTS = calls.Costs(10e-3, 14e-3, 2e-3, 20e-3, 5e-3, 8e-3, 12e-3)
SHAPE = dict(gamma=lib.GAMMA, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)


def test_pictures_show_the_decode(tiny, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(calls, "measure_costs", lambda *_: COSTS)  # Tested in tests/benchmark, and slow to compile.
  source, page = str(tiny.folder / "sentences.txt"), tmp_path / "page.html"
  trace.trace(tiny.target, tiny.draft, source, str(page), sentences=3, colour=False, timeline_gammas=[lib.GAMMA, 0], **SHAPE)
  *drawn, timeline = capsys.readouterr().out.strip("\n").split("\n\n")
  records = decode.decode(
      tiny.target, tiny.draft, input=source, output=str(tmp_path / "out.jsonl"), batch_size=4, compare=0, **SHAPE
  )
  pieces = tiny.target.vocabulary.pieces()
  assert len(drawn) == 3
  for text, record in zip(drawn, records):
    first, *drawn = text.split("\n")
    assert first == record["inputs"]
    assert len(drawn) == record["steps"]
    kept = re.sub(r"\{(.*?)\}", r"\1", "\n".join(re.sub(r"\[-.*?-\]", "", call) for call in drawn)).replace("\n", "")
    assert kept == "".join(pieces[i] for i in record["output_ids"]).replace("\u2581", " ")
    own = sum("{" in call for call in drawn)
    assert record["accepted"] == record["committed"] - own
  fast, plain, _ = timeline.split("\n")
  assert fast.strip().startswith("γ = 3 |e") and plain.strip().startswith("no draft |e") and "ms measured" in plain
  bars = page.read_text(encoding="utf-8").split("<h2>Timeline")[1]
  # Of the first sentence: calls of the target with the draft and without it.
  assert bars.count("<title>target") == records[0]["steps"] + len(records[0]["output_ids"])
  assert bars.count("<title>draft") == lib.GAMMA * records[0]["steps"]
  parts = re.findall(r"<h3>(.*?)</h3><pre>(.*?)</pre>", page.read_text(encoding="utf-8"), flags=re.S)
  assert [html.unescape(title) for title, _ in parts] == [r["inputs"] for r in records[:3]]
  assert [body.count("\n") for _, body in parts] == [r["steps"] for r in records[:3]]
  assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "page.html"]


def test_a_tree_is_drawn(tiny, capsys):
  source = str(tiny.folder / "sentences.txt")
  trace.trace(tiny.target, tiny.draft, source, sentences=2, colour=False, **SHAPE)
  chain = capsys.readouterr().out.strip("\n").split("\n\n")
  method = functools.partial(recipes.dyspec, size=5)
  trace.trace(tiny.target, tiny.draft, source, sentences=2, colour=False, method=method, **SHAPE)
  tree = capsys.readouterr().out.strip("\n").split("\n\n")
  said = lambda text: re.sub(r"[{}\n]", "", re.sub(r"\[-.*?-\]", "", text))
  assert [said(text) for text in tree] == [said(text) for text in chain]
  assert any(re.search(r"-\]\[-", text) for text in tree)  # Siblings.


@pytest.mark.parametrize("sentences", [0, -1])
def test_a_number_of_sentences_that_draws_nothing(tiny, tmp_path, sentences):
  source = str(tiny.folder / "sentences.txt")
  with pytest.raises(ValueError, match=f"sentences: expected at least 1, found {sentences}"):
    trace.trace(tiny.target, tiny.draft, source, str(tmp_path / "page.svg"), sentences=sentences, **SHAPE)
