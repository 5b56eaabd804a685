"""Vocabularies: text to token ids and back, without TensorFlow.

T5's conventions hold: pad (and BOS) is 0, EOS is 1, unknown is 2.
"""

import functools
import io
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from etils import epath

from specdec.data import text

PAD_ID = 0
EOS_ID = 1


class Vocabulary(Protocol):
  """What decoding needs of a vocabulary.

  Attributes:
    size: number of pieces. A model may have more logits (T5: 32100 pieces,
      32128 logits); the ids from `size` on are never emitted.
  """

  @property
  def size(self) -> int: ...

  def encode(self, text: str) -> list[int]: ...

  def decode(self, ids: Sequence[int]) -> str: ...

  def pieces(self) -> list[str]: ...


class SentencePieceVocabulary:
  """A SentencePiece model, as T5's own vocabularies.

  Args:
    path: the `.model` file; any path that `etils.epath` opens.
    extra_ids: sentinels `<extra_id_N>` added after the pieces, counted down
      from the end as in T5 (100 for the public vocabulary).

  Raises:
    ValueError: the file is missing, is not a SentencePiece model or has other
      special ids than T5's.
  """

  def __init__(self, path: str, extra_ids: int = 0):
    if extra_ids < 0:
      raise ValueError(f"extra_ids: expected at least 0, found {extra_ids}.")
    self.path = os.fspath(path)
    self.extra_ids = extra_ids
    self._model  # noqa: B018  (a bad file must fail here, not at the first sentence)

  @functools.cached_property
  def _model(self):
    import sentencepiece  # Kept here: not needed by users of token ids.

    path = epath.Path(self.path)
    if not path.exists():
      raise ValueError(f"vocabulary: expected a SentencePiece model at {self.path}, found nothing there.")
    model = sentencepiece.SentencePieceProcessor()
    try:
      model.LoadFromSerializedProto(path.read_bytes())  # Unlike the constructor it does not pass over an empty file.
    except (RuntimeError, OSError) as error:
      raise ValueError(f"vocabulary: {self.path} is not a SentencePiece model ({error}).") from error
    found = (model.pad_id(), model.eos_id())
    if found != (PAD_ID, EOS_ID):  # SentencePiece's own default is pad -1, EOS 2.
      raise ValueError(
          f"vocabulary: expected pad {PAD_ID} and EOS {EOS_ID} in {self.path}, found {found[0]} and {found[1]}; "
          f"train it with --pad_id={PAD_ID} --eos_id={EOS_ID} --unk_id=2 --bos_id=-1."
      )
    return model

  @property
  def size(self) -> int:
    """Number of pieces, sentinels included."""
    return self._model.get_piece_size() + self.extra_ids

  def encode(self, text: str) -> list[int]:
    """Token ids of `text`, without EOS."""
    return list(self._model.encode(text))

  def decode(self, ids: Sequence[int]) -> str:
    """Text of `ids` up to the first EOS; pads and ids beyond the pieces are left out."""
    kept = []
    for token in ids:
      if token == EOS_ID:
        break
      if token != PAD_ID and 0 <= token < self._model.get_piece_size():
        kept.append(int(token))
    return self._model.decode(kept)

  def pieces(self) -> list[str]:
    """The text of every id, in order."""
    known = [self._model.id_to_piece(i) for i in range(self._model.get_piece_size())]
    return known + [f"<extra_id_{i}>" for i in reversed(range(self.extra_ids))]


class ByteVocabulary:
  """ByT5's: the bytes of UTF-8, after pad, EOS and unknown.

  Args:
    extra_ids: sentinels after the bytes; 125 make the 384 logits of the public
      models.

  Example:
    >>> vocabulary = ByteVocabulary()
    >>> vocabulary.size, vocabulary.encode("Öl"), vocabulary.decode([198, 153, 111, 1, 5])
    (384, [198, 153, 111], 'Öl')

  Source: Xue et al. 2022, "ByT5: towards a token-free future with pre-trained byte-to-byte models".
  """

  _SPECIAL = ("<pad>", "</s>", "<unk>")

  def __init__(self, extra_ids: int = 125):
    if extra_ids < 0:
      raise ValueError(f"extra_ids: expected at least 0, found {extra_ids}.")
    self.extra_ids = extra_ids

  @property
  def size(self) -> int:
    """Number of ids, sentinels included."""
    return len(self._SPECIAL) + 256 + self.extra_ids

  def encode(self, text: str) -> list[int]:
    """Token ids of `text`, without EOS."""
    return [byte + len(self._SPECIAL) for byte in text.encode("utf-8")]

  def decode(self, ids: Sequence[int]) -> str:
    """Text of `ids` up to the first EOS; special ids, sentinels and broken characters are left out."""
    kept = []
    for token in ids:
      if token == EOS_ID:
        break
      if 0 <= token - len(self._SPECIAL) < 256:
        kept.append(int(token) - len(self._SPECIAL))
    return bytes(kept).decode("utf-8", errors="ignore")

  def pieces(self) -> list[str]:
    """The text of every id, in order."""
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(self.extra_ids))]
    return [*self._SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *sentinels]


def check_same(target: Vocabulary, draft: Vocabulary) -> None:
  """Checks that a draft speaks the vocabulary of its target.

  Raises:
    ValueError: they differ; the message names the first piece that does.
  """
  ours, theirs = target.pieces(), draft.pieces()
  for token, (a, b) in enumerate(zip(ours, theirs)):
    if a != b:
      raise ValueError(
          f"vocabulary: expected the draft's piece {token} to be the target's {a!r}, found {b!r}. "
          "A draft must use the vocabulary that its target was trained with."
      )
  if len(ours) != len(theirs):
    longer = ours if len(ours) > len(theirs) else theirs
    token = min(len(ours), len(theirs))
    raise ValueError(
        f"vocabulary: the target has {len(ours)} pieces and the draft {len(theirs)}; the first that only one has "
        f"is {token}, {longer[token]!r}."
    )


def train_sentencepiece(
    path: str,
    texts: Iterable[str],
    size: int,
    character_coverage: float = 1.0,
) -> None:
  """Trains a unigram SentencePiece model on `texts`; the same texts give the same file.

  Args:
    path: where the model goes; written whole or not at all.
    texts: sentences.
    size: number of pieces, the three special ones included.
    character_coverage: share of the characters that get a piece of their own.

  Raises:
    ValueError: no model of that size can be made of these texts.
  """
  import sentencepiece

  model = io.BytesIO()  # Not a file: its name would become part of the model.
  try:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        character_coverage=character_coverage,
        model_type="unigram",
        pad_id=PAD_ID,
        eos_id=EOS_ID,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=1,
    )
  except RuntimeError as error:
    raise ValueError(f"vocabulary: {size} pieces cannot be made of these texts ({error}).") from error
  target = epath.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  partial = target.parent / (target.name + ".partial")
  partial.write_bytes(model.getvalue())
  partial.replace(target)


def sentencepiece_or_train(path: str, files: Sequence[str], size: int, folder: str = "") -> SentencePieceVocabulary:
  """The vocabulary at `path`, trained on the lines of `files` first if there is none.

  Args:
    path: the `.model` file.
    files: plain text, one sentence a line; `.gz` is unpacked.
    size: number of pieces of a new model.
    folder: put before every file name that is not absolute.

  Raises:
    ValueError: the model at `path` has another size than asked, or there is
      none and a file is missing.
  """
  if not epath.Path(path).exists():
    lines = [line for name in files for line in text.read_lines(os.path.join(folder, name), "files")]
    train_sentencepiece(path, lines, size)
  vocabulary = SentencePieceVocabulary(path)
  if vocabulary.size != size:
    raise ValueError(f"vocabulary: expected {size} pieces in {path}, found {vocabulary.size}; name another path or size.")
  return vocabulary
