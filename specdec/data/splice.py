"""More source sentences than a corpus has: heads and tails of its own, joined at a word that both contain.

A draft distilled from a target needs the target's outputs, not references, so
any plausible source serves: where few sentences are at hand, joining the head
of one to the tail of another at a shared joint ("a man | in | a red shirt")
keeps each half as it was written. The idea is data recombination (Jia and
Liang 2016, arXiv 1606.03622), with words for their grammar's nonterminals.
"""

from collections.abc import Sequence

import numpy as np

ENGLISH_JOINTS = ("in", "on", "with", "at", "near", "while", "and", "of", "is", "are", "to", "by", "as", "through", "for")


def splice(lines: Sequence[str], count: int, joints: Sequence[str] = ENGLISH_JOINTS, seed: int = 0) -> list[str]:
  """Makes `count` sentences, each the head of one line and the tail of another.

  Both lines hold the joint, and the head ends where the tail begins; a sentence
  that is among `lines` or was made before is left out.

  Args:
    lines: sentences, words apart by blanks.
    count: how many to make.
    joints: words where a sentence may be cut, found whatever their case; never
      a line's first word.
    seed: of the choice.

  Returns:
    [count] sentences.

  Raises:
    ValueError: `lines` do not give that many.

  Example:
    >>> splice(["A dog runs in the snow.", "Two men sit in a boat."], 2)
    ['Two men sit in the snow.', 'A dog runs in a boat.']
  """
  words = [line.split() for line in lines]
  cuts = [
      (row, at, word.lower()) for row, line in enumerate(words) for at, word in enumerate(line) if at and word.lower() in joints
  ]
  tails = {joint: [(row, at) for row, at, word in cuts if word == joint] for joint in joints}
  rng, known, made = np.random.default_rng(seed), set(lines), []
  for _ in range(1000 + 20 * count):
    if len(made) == count or not cuts:
      break
    row, at, joint = cuts[rng.integers(len(cuts))]
    other, start = tails[joint][rng.integers(len(tails[joint]))]
    sentence = " ".join(words[row][:at] + words[other][start:])
    if sentence not in known:
      known.add(sentence)
      made.append(sentence)
  if len(made) < count:
    raise ValueError(f"lines: expected enough to splice {count} new sentences, found {len(made)}; ask for fewer.")
  return made

