"""`data.tasks`: one's own files through seqio, as token ids and as texts. Imports TensorFlow."""

import gzip
import json
import pathlib

import gin
import numpy as np
import pytest
import seqio
import tensorflow_datasets as tfds

from specdec import main
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


def test_tsv(folder, vocabulary):
  rows = [f"x\t{en}\t{de}\n" for de, en in PAIRS]
  (folder / "a.tsv").write_text("n\ttarget\tsource\n" + "".join(rows), encoding="utf-8")
  task = tasks.tsv("tabs", vocabulary, {"train": "a.tsv"}, str(folder), 2, 1, header=True, prefix="de: ")
  found = tasks.examples(task, "train", 64, 64)
  assert len(found.inputs) == len(PAIRS)
  for source, target, (german, english) in zip(found.inputs, found.targets, PAIRS):
    assert source.tolist() == [*vocabulary.encode("de: " + german), vocabularies.EOS_ID]
    assert target.tolist() == [*vocabulary.encode(english), vocabularies.EOS_ID]
  assert tasks.texts(task, "train", 1).inputs == ["de: " + PAIRS[0][0]]
  (folder / "b.tsv").write_text("a\tb\nc\n")
  task = tasks.tsv("short", vocabulary, {"train": "b.tsv"}, str(folder))
  with pytest.raises(ValueError, match="task short: line 2: expected at least 2 columns separated by tabs, found 1: 'c'"):
    tasks.examples(task, "train", 64, 64)


def test_plain_text_in_bytes(folder):
  (folder / "a.txt").write_text("Öl\n\n  \nein Hund\n", encoding="utf-8")
  words = vocabularies.ByteVocabulary()
  task = tasks.plain_text("lines", words, {"train": "a.txt"}, str(folder))
  found = tasks.examples(task, "train", 64, 64)
  assert [row.tolist() for row in found.inputs] == [[vocabularies.EOS_ID]] * 2
  assert [row.tolist() for row in found.targets] == [[*words.encode(t), vocabularies.EOS_ID] for t in ("Öl", "ein Hund")]
  texts = tasks.texts(task, "train", 5)
  assert texts.targets == ["Öl", "ein Hund"] and texts.inputs == ["", ""] and texts.vocabulary.size == 384


def test_byte_vocabulary_is_seqio_s():
  ours, theirs = vocabularies.ByteVocabulary(), seqio.ByteVocabulary(extra_ids=125)
  assert ours.size == theirs.vocab_size == len(ours.pieces()) == len(set(ours.pieces())) == 384
  for text in ("Öl für 3 €", "", "日本 \u2028"):
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == text
  assert ours.decode([198, 153, 300, 2, 0, 111]) == theirs.decode([198, 153, 300, 2, 0, 111]) == "Öl"
  with pytest.raises(ValueError, match="extra_ids: expected at least 0, found -1"):
    vocabularies.ByteVocabulary(-1)


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
  """A data set of TFDS with the features of WMT and CNN/DailyMail, generated on this disk."""
  class TinyTexts(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      features = {name: tfds.features.Text() for name in ("en", "de", "article", "highlights", "id")}
      return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples(), "validation": self._generate_examples()}

    def _generate_examples(self):
      for i, (german, english) in enumerate(PAIRS):
        yield i, {"en": english, "de": german, "article": german, "highlights": english, "id": str(i)}

  folder = str(tmp_path_factory.mktemp("tfds"))
  TinyTexts(data_dir=folder).download_and_prepare()
  return folder


@pytest.mark.parametrize("source,target,prefix", [
    ("en", "de", "translate English to German: "), ("article", "highlights", "summarize: "), (None, "de", ""),
])  # fmt: skip
def test_tensorflow_data_sets(tfds_folder, vocabulary, source, target, prefix):
  task = tasks.tfds_text("public", vocabulary, "tiny_texts:1.0.0", target, source, prefix, data_dir=tfds_folder)
  found = tasks.texts(task, "validation", 10)
  german, english = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]
  sides = {"en": english, "de": german, "article": german, "highlights": english}
  order = [sides[target].index(text) for text in found.targets]
  assert sorted(order) == list(range(len(PAIRS)))
  if source:
    assert found.inputs == [prefix + sides[source][i] for i in order]
  assert len(tasks.examples(task, "train", 64, 64).targets) == len(PAIRS)
  with pytest.raises(ValueError, match="expected a split among .'train', 'validation'., found 'test'"):
    tasks.examples(task, "test", 64, 64)


def test_a_data_set_that_cannot_be_had(tmp_path, vocabulary):
  task = tasks.tfds_text("gone", vocabulary, "no_such_data_set:1.0.0", "text", data_dir=str(tmp_path))
  with pytest.raises(ValueError, match="task gone: expected the data set no_such_data_set:1.0.0, found it neither"):
    tasks.examples(task, "train", 64, 64)
  with pytest.raises(ValueError, match="expected no prefix where there are no inputs"):
    tasks.tfds_text("odd", vocabulary, "lm1b:1.1.0", "text", prefix="a: ")


def test_gin_tasks_are_those_of_the_t5_paper(folder, tmp_path):
  path = str(tmp_path / "words.model")
  vocabularies.train_sentencepiece(path, [text for pair in PAIRS for text in pair], 45)
  expected = {
      "wmt14_ende": ("wmt_t2t_translate/de-en:1.0.0", ["inputs", "targets"], ["bleu"]),
      "cnn_dailymail": ("cnn_dailymail:3.4.0", ["inputs", "targets"], ["rouge"]),
      "lm1b": ("lm1b:1.1.0", ["targets"], []),
  }
  root = pathlib.Path(__file__).resolve().parents[2] / "gin" / "tasks"
  for name, (data_set, features, metrics) in expected.items():
    try:
      main.parse_gin([str(root / f"{name}.gin")], [f"VOCABULARY_PATH = '{path}'"])
      task = gin.get_configurable(tasks.tfds_text)()
    finally:
      gin.clear_config(clear_constants=True)
    assert task.source.tfds_dataset.name == data_set
    assert sorted(task.output_features) == features
    assert [metric.__name__ for metric in task.metric_fns] == metrics
    extra = 0 if name == "lm1b" else 100
    assert task.output_features["targets"].vocabulary.vocab_size == 45 + extra
