"""`data.vocabularies`: training, T5's special ids, round trips, and vocabularies that do not fit."""

import gzip
import hashlib
import io

import pytest
import sentencepiece

from specdec.data import vocabularies

TEXTS = (
    "Ein Hund läuft über die Straße.", "Zwei Kinder spielen im Garten.", "Öl, Äpfel und Übermut.",
    "Die Frau liest ein Buch auf der Bank.", "Drei Leute sitzen am Tisch und essen.", "Ein Mann fährt Fahrrad.",
)  # fmt: skip
SIZE = 60


@pytest.fixture(scope="module")
def path(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "new folder" / "german.model"
  vocabularies.train_sentencepiece(str(path), TEXTS, SIZE)
  return path


@pytest.fixture(scope="module")
def german(path):
  return vocabularies.SentencePieceVocabulary(str(path))


def digest(path):
  return hashlib.sha256(path.read_bytes()).hexdigest()


def test_same_texts_give_the_same_file(path, tmp_path):
  vocabularies.train_sentencepiece(str(tmp_path / "again.model"), iter(TEXTS), SIZE)
  assert digest(tmp_path / "again.model") == digest(path)
  vocabularies.train_sentencepiece(str(tmp_path / "less.model"), TEXTS[:-1], SIZE)
  assert digest(tmp_path / "less.model") != digest(path)
  assert [p.name for p in path.parent.iterdir()] == ["german.model"], "nothing half-written stays"


def test_special_ids_are_those_of_t5(german):
  assert german.size == SIZE == len(german.pieces())
  assert german.pieces()[:3] == ["<pad>", "</s>", "<unk>"]
  assert (vocabularies.PAD_ID, vocabularies.EOS_ID) == (0, 1)
  assert german.encode("Ξ")[-1] == 2


@pytest.mark.parametrize("text", [*TEXTS, "Üben läuft", "Äste", ""])
def test_round_trip(german, text):
  ids = german.encode(text)
  assert not {0, 1} & set(ids)
  assert german.decode(ids) == text


def test_decode_ends_at_eos_and_leaves_out_what_is_no_piece(german):
  ids = german.encode("Ein Hund")
  assert german.decode([0, *ids, 0, SIZE, SIZE + 5, -1]) == "Ein Hund"
  assert german.decode([*ids, 1, *ids]) == "Ein Hund"
  assert german.decode([]) == ""


def test_sentinels_count_down_from_the_end(path):
  more = vocabularies.SentencePieceVocabulary(str(path), extra_ids=3)
  assert more.size == SIZE + 3
  assert more.pieces()[-3:] == ["<extra_id_2>", "<extra_id_1>", "<extra_id_0>"]
  assert more.decode([*more.encode("Ein"), SIZE + 2]) == "Ein"


class Pieces:
  """A vocabulary of given pieces."""

  def __init__(self, *pieces):
    self._pieces = list(pieces)

  def pieces(self):
    return self._pieces


def test_check_same_names_the_first_piece_that_differs(german):
  vocabularies.check_same(german, german)
  vocabularies.check_same(Pieces("a", "b"), Pieces("a", "b"))
  with pytest.raises(ValueError, match=r"draft's piece 1 to be the target's 'b', found 'c'"):
    vocabularies.check_same(Pieces("a", "b", "x"), Pieces("a", "c", "y"))
  with pytest.raises(ValueError, match=r"target has 2 pieces and the draft 3; .* is 2, 'z'"):
    vocabularies.check_same(Pieces("a", "b"), Pieces("a", "b", "z"))
  with pytest.raises(ValueError, match=r"target has 3 pieces and the draft 2; .* is 2, 'z'"):
    vocabularies.check_same(Pieces("a", "b", "z"), Pieces("a", "b"))


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 100, "half"])
def test_a_file_that_is_no_model_fails_at_once(tmp_path, path, content):
  wrong = tmp_path / "wrong.model"
  wrong.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content == "half" else content)
  with pytest.raises(ValueError, match=r"vocabulary: .*wrong\.model is not a SentencePiece model"):
    vocabularies.SentencePieceVocabulary(str(wrong))


def test_missing_file_and_folder(tmp_path):
  with pytest.raises(ValueError, match=r"expected a SentencePiece model at .*gone\.model, found nothing there"):
    vocabularies.SentencePieceVocabulary(str(tmp_path / "gone.model"))
  with pytest.raises(ValueError, match="is not a SentencePiece model"):
    vocabularies.SentencePieceVocabulary(str(tmp_path))


def test_size_that_the_texts_do_not_give(tmp_path):
  with pytest.raises(ValueError, match="5000 pieces cannot be made of these texts"):
    vocabularies.train_sentencepiece(str(tmp_path / "big.model"), TEXTS, 5000)
  assert not list(tmp_path.iterdir())


def test_sentencepiece_or_train(tmp_path, path):
  with gzip.open(tmp_path / "a.gz", "wt", encoding="utf-8") as file:
    file.write("\n".join(TEXTS[:4]) + "\n")
  (tmp_path / "b").write_text("\n".join(TEXTS[4:]) + "\n", encoding="utf-8")
  made = str(tmp_path / "made.model")
  vocabularies.sentencepiece_or_train(made, ["a.gz", "b"], SIZE, str(tmp_path))
  assert digest(tmp_path / "made.model") == digest(path)
  assert vocabularies.sentencepiece_or_train(made, ["not read again"], SIZE).size == SIZE
  with pytest.raises(ValueError, match=f"expected 70 pieces in .*made.model, found {SIZE}"):
    vocabularies.sentencepiece_or_train(made, ["not read again"], 70)
  with pytest.raises(ValueError, match="files: expected a file at .*gone"):
    vocabularies.sentencepiece_or_train(str(tmp_path / "other.model"), ["gone"], SIZE, str(tmp_path))


def test_special_ids_that_are_not_t5_s_are_refused(tmp_path):
  """SentencePiece's own default has EOS 2: decoding would go on past it and stop at <s>."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(["a dog runs", "two dogs run"] * 9), model_writer=model, vocab_size=14, minloglevel=2
  )
  path = tmp_path / "default.model"
  path.write_bytes(model.getvalue())
  with pytest.raises(ValueError, match="vocabulary: expected pad 0 and EOS 1 in .*default.model, found -1 and 2"):
    vocabularies.SentencePieceVocabulary(str(path))
