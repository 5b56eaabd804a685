"""SpecInfer's token tree: a fixed number of children a node by depth, drawn with replacement."""

from collections.abc import Sequence

from specdec.trees import static
from specdec.trees.growth import Growth

# The configuration of the paper's main runs.
EXPANSION = (1, 1, 3, 1, 1, 1, 1, 1)


def specinfer_growth(expansion: Sequence[int] = EXPANSION) -> Growth:
  """The tree of an expansion configuration <k1, k2, …>: k_i children of every node at depth i - 1.

  Args:
    expansion: children a node by depth.

  Raises:
    ValueError: it is empty, or an entry is below 1.

  Example:
    >>> specinfer_growth((2, 1)).topology.parents.tolist()
    [-1, 0, 0, 1, 2]

  Source: Miao et al. 2024 (SpecInfer), section 3, "expansion-based token tree construction".
  """
  return static.static_growth(static.by_layers(expansion), replacement=True)


def spectr_growth(drafts: int, gamma: int) -> Growth:
  """The tree of SpecTr: `drafts` independent chains of `gamma` tokens from the root.

  Raises:
    ValueError: an argument is below 1.

  Source: Sun et al. 2023 (SpecTr), Algorithm 1.
  """
  if drafts < 1 or gamma < 1:
    raise ValueError(f"spectr: expected drafts and gamma of at least 1, found {drafts} and {gamma}.")
  return static.static_growth(static.by_layers([drafts] + [1] * (gamma - 1)), replacement=True)
