"""`data.tasks`: one's own files through seqio, as token ids and as texts. Imports TensorFlow."""

import gzip
import json

import numpy as np
import pytest
import seqio

from specdec.data import tasks
from specdec.data import vocabularies

PAIRS = [
    ("Ein Hund läuft.", "A dog runs."),
    ("Zwei Kinder\u2028spielen.", "Two children\x0c play."),  # Only \n ends a line.
    ("Ein Buch", "A book"),
    ("Ein Mann und eine Frau lesen ein Buch.", "A man and a woman read a book."),
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
  path = str(tmp_path_factory.mktemp("vocabulary") / "pair.model")
  vocabularies.train_sentencepiece(path, [text for pair in PAIRS for text in pair], 45)
  return vocabularies.SentencePieceVocabulary(path)


@pytest.fixture
def folder(tmp_path):
  text = lambda side, rows: "".join(pair[side] + "\n" for pair in rows).encode()
  (tmp_path / "a.de").write_bytes(text(0, PAIRS[:3]))
  (tmp_path / "a.en").write_bytes(text(1, PAIRS[:3]))
  (tmp_path / "b.de.gz").write_bytes(gzip.compress(text(0, PAIRS[3:])))
  (tmp_path / "b.en.gz").write_bytes(gzip.compress(text(1, PAIRS[3:])))
  return tmp_path


@pytest.fixture
def task(folder, vocabulary):
  return tasks.parallel_text(
      "pairs",
      vocabulary,
      inputs={"train": ["a.de", "b.de.gz"], "validation": "b.de.gz"},
      targets={"train": ["a.en", "b.en.gz"], "validation": "b.en.gz"},
      folder=str(folder),
  )


def test_parallel_text_is_the_files_line_by_line(task, vocabulary):
  found = tasks.examples(task, "train", 64, 64)
  assert len(found.inputs) == len(found.targets) == len(PAIRS)
  for source, target, (german, english) in zip(found.inputs, found.targets, PAIRS):
    assert source.dtype == np.int32
    assert source.tolist() == [*vocabulary.encode(german), vocabularies.EOS_ID]
    assert target.tolist() == [*vocabulary.encode(english), vocabularies.EOS_ID]


def test_by_name_several_and_cut_to_length(task, vocabulary):
  whole = tasks.examples("pairs", "validation", 64, 64)
  cut = tasks.examples([task, "pairs"], "validation", 5, 7)
  assert len(cut.inputs) == 2 * len(whole.inputs) == 2
  for row in cut.inputs:
    assert row.tolist() == [*whole.inputs[0][:4], vocabularies.EOS_ID]
  assert cut.targets[1].tolist() == [*whole.targets[0][:6], vocabularies.EOS_ID]


def test_texts_stand_as_in_the_files(task, vocabulary):
  found = tasks.texts(task, "train", 3)
  assert list(zip(found.inputs, found.targets)) == PAIRS[:3]
  assert found.vocabulary.pieces() == vocabulary.pieces()
  assert len(tasks.texts("pairs", "train", 100).inputs) == len(PAIRS)


def test_a_seqio_mixture_reads_too(task):
  seqio.MixtureRegistry.remove("both")
  seqio.MixtureRegistry.add("both", [("pairs", 1)])
  assert len(tasks.examples(seqio.get_mixture_or_task("both"), "validation", 64, 64).inputs) == 1


def test_jsonl_reads_what_decode_writes(folder, vocabulary):
  records = [{"inputs": de, "prediction": en, "output_ids": [5, 1], "steps": 1} for de, en in PAIRS]
  lines = "".join(json.dumps(r, ensure_ascii=i % 2 == 0) + "\n" for i, r in enumerate(records))
  (folder / "out.jsonl").write_text(lines, encoding="utf-8")
  task = tasks.jsonl(
      "distilled", vocabulary, {"train": ["out.jsonl", "out.jsonl"]}, str(folder), targets_field="prediction"
  )
  found = tasks.examples(task, "train", 64, 64)
  assert len(found.inputs) == 2 * len(PAIRS)
  for i, (german, english) in enumerate(PAIRS * 2):
    assert found.inputs[i].tolist() == [*vocabulary.encode(german), vocabularies.EOS_ID]
    assert found.targets[i].tolist() == [*vocabulary.encode(english), vocabularies.EOS_ID]


@pytest.mark.parametrize("line", ["{", "3", '{"inputs": "a"}', '{"inputs": "a", "targets": 3}', ""])
def test_bad_jsonl_names_its_line(folder, vocabulary, line):
  (folder / "bad.jsonl").write_text('{"inputs": "a", "targets": "b"}\n' + line + "\n", encoding="utf-8")
  task = tasks.jsonl("bad", vocabulary, {"train": "bad.jsonl"}, str(folder))
  with pytest.raises(ValueError, match="task bad: line 2: expected an object with texts 'inputs' and 'targets'"):
    tasks.examples(task, "train", 64, 64)


def test_missing_file(folder, vocabulary):
  task = tasks.parallel_text("gone", vocabulary, {"train": "a.de"}, {"train": ["a.en", "gone.en"]}, str(folder))
  with pytest.raises(ValueError, match=r"task: expected these files to exist: \['.*gone.en'\]"):
    tasks.examples(task, "train", 64, 64)


def test_splits_that_differ(vocabulary):
  message = r"expected the same splits on both sides, found \['train'\] and \['test', 'train'\]"
  with pytest.raises(ValueError, match=message):
    tasks.parallel_text("split", vocabulary, {"train": "a"}, {"train": "a", "test": "b"})


def test_unknown_split(task):
  for read in (lambda: tasks.examples(task, "test", 64, 64), lambda: tasks.texts("pairs", "test", 3)):
    with pytest.raises(ValueError, match=r"task pairs: expected a split among \['train', 'validation'\], found 'test'"):
      read()


def test_sides_of_different_length(folder, vocabulary):
  task = tasks.parallel_text("shift", vocabulary, {"train": "a.de"}, {"train": "b.en.gz"}, str(folder))
  with pytest.raises(ValueError, match="task shift: split 'train' has 3 lines of inputs and 1 of targets"):
    tasks.examples(task, "train", 64, 64)


def test_registering_again_replaces(folder, vocabulary):
  for side in ("a", "b"):
    files = {"train": f"{side}.de" + ".gz" * (side == "b")}, {"train": f"{side}.en" + ".gz" * (side == "b")}
    tasks.parallel_text("again", vocabulary, *files, folder=str(folder))
    assert len(tasks.examples("again", "train", 64, 64).inputs) == (3 if side == "a" else 1)
