"""Spliced sentences: each is the head of one line and the tail of another, joined where both have the joint."""

import pytest

from specdec.data import splice

LINES = ["A dog runs in the snow.", "Two men sit in a boat.", "In a field, a child plays with a ball.", "Nothing here fits", "A girl with a cat sits in a house."]


def test_halves_are_as_they_were_written():
  made = splice.splice(LINES, 4, joints=("in", "with"))
  assert len(set(made)) == 4 and not set(made) & set(LINES)
  for sentence in made:
    words = sentence.split()
    assert any(
        any(line.split()[:at] == words[:at] for line in LINES) and any(line.split()[-len(words[at:]) :] == words[at:] for line in LINES)
        for at, word in enumerate(words)
        if word in ("in", "with")
    ), sentence


def test_the_seed_decides():
  assert splice.splice(LINES, 2) == splice.splice(LINES, 2)
  assert len({tuple(splice.splice(LINES, 2, seed=seed)) for seed in range(20)}) > 1


def test_too_many():
  with pytest.raises(ValueError, match="expected enough to splice 5 new sentences, found 2; ask for fewer"):
    splice.splice(LINES[:2], 5)
  with pytest.raises(ValueError, match="found 0"):
    splice.splice([], 1)
