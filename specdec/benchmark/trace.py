"""Seeing a decode: a line a target call, as Figure 1 of Leviathan et al. 2023.

Accepted tokens are green, rejected ones red and struck out, the target's own
token (a correction, or the bonus after a full acceptance) blue.
"""

from collections.abc import Callable, Iterator, Sequence
import html
import re
from typing import NamedTuple

ACCEPTED, REJECTED, OWN = "accepted", "rejected", "own"

_TERMINAL = {ACCEPTED: "\033[32m", REJECTED: "\033[31;9m", OWN: "\033[34;1m"}
_RESET = "\033[0m"
_COLOURS = {ACCEPTED: "#1a7f37", REJECTED: "#cf222e", OWN: "#0969da"}


class Piece(NamedTuple):
  """One token of a call: its text and what became of it."""

  text: str
  kind: str


def calls(draft, parents, tokens, accepted, committed, piece: Callable[[int], str]) -> Iterator[list[Piece]]:
  """The pieces of each target call of one row: of a tree the accepted path, each node after its rejected siblings.

  Args:
    draft: [T, G] ints, proposals.
    parents: [T, G] ints, of their nodes, see `interfaces.StepInfo`.
    tokens: [T, G + 1] ints, what was committed.
    accepted: [T] ints.
    committed: [T] ints; a call that committed nothing is left out.
    piece: from a token id to its text.
  """
  for proposal, above, kept, number, count in zip(draft, parents, tokens, accepted, committed):
    if count == 0:
      continue
    path, line = _path(proposal, above, [int(t) for t in kept[:number]], 0), []
    if count > number:  # Else the call ended within its draft, by EOS or the limit.
      path.append(None)
    for parent, child in zip([0, *path], path):
      tried = [n for n in _children(above, parent) if child is None or n < child]
      line += [Piece(piece(int(proposal[n - 1])), REJECTED) for n in tried]
      if child is not None:
        line.append(Piece(piece(int(proposal[child - 1])), ACCEPTED))
    if count > number:
      line.append(Piece(piece(int(kept[number])), OWN))
    yield line


def _children(parents, node: int) -> list[int]:
  return [n for n, parent in enumerate(parents, start=1) if parent == node]


def _path(proposal, parents, kept: Sequence[int], node: int) -> list[int] | None:
  """The first path below `node` that says `kept`; drawn with replacement, siblings may say the same."""
  if not kept:
    return []
  for child in _children(parents, node):
    if proposal[child - 1] == kept[0] and (rest := _path(proposal, parents, kept[1:], child)) is not None:
      return [child, *rest]
  return None


def readable(piece: str) -> str:
  """A SentencePiece piece as text: its word mark becomes a space."""
  return piece.replace("\u2581", " ")


def _escape(text: str) -> str:
  """`text` in HTML and XML, where control characters may not stand."""
  return html.escape(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "\ufffd", text))


def to_terminal(lines: Sequence[Sequence[Piece]], colour: bool = True) -> str:
  """One line a call, with ANSI colours; without colour, [-rejected-] and {own}."""
  plain = {ACCEPTED: "{}", REJECTED: "[-{}-]", OWN: "{{{}}}"}
  show = lambda p: f"{_TERMINAL[p.kind]}{p.text}{_RESET}" if colour else plain[p.kind].format(p.text)
  return "\n".join("".join(show(p) for p in line) for line in lines)


def to_html(
    decodes: Sequence[tuple[str, Sequence[Sequence[Piece]]]], title: str = "Speculative decoding", below: str = ""
) -> str:
  """A self-contained page: for each decode its source, then a line a call; `below` is HTML that follows."""
  style = "".join(f".{kind}{{color:{colour}}}" for kind, colour in _COLOURS.items())
  style += f".{REJECTED}{{text-decoration:line-through}}.{OWN}{{font-weight:bold}}"
  style += "body{font-family:sans-serif;margin:2em}pre{line-height:1.5;font-size:1.05em}"
  parts = [f"<!doctype html><meta charset='utf-8'><title>{html.escape(title)}</title><style>{style}</style>"]
  parts.append(f"<h1>{html.escape(title)}</h1><p>One line a target call: ")
  parts.append(", ".join(f"<span class='{kind}'>{kind}</span>" for kind in (ACCEPTED, REJECTED, OWN)) + ".</p>")
  for source, lines in decodes:
    parts.append(f"<h3>{_escape(source)}</h3><pre>")
    for line in lines:
      parts.append("".join(f"<span class='{p.kind}'>{_escape(p.text)}</span>" for p in line) + "\n")
    parts.append("</pre>")
  return "".join(parts) + below


def to_svg(decodes: Sequence[tuple[str, Sequence[Sequence[Piece]]]], size: int = 15) -> str:
  """A picture of the same, for pages that show images only."""
  width = size * 0.6  # Of a character of a monospaced font.
  rows = []
  for source, lines in decodes:
    rows += [[(source, "source")], *[[(p.text, p.kind) for p in line] for line in lines]]
  longest = max(sum(len(text) for text, _ in row) for row in rows)
  height = 1.6 * size
  style = "".join(f".{kind}{{fill:{colour}}}" for kind, colour in _COLOURS.items())
  style += f".{REJECTED}{{text-decoration:line-through}}.{OWN}{{font-weight:bold}}.source{{fill:#57606a}}"
  parts = [
      f"<svg xmlns='http://www.w3.org/2000/svg' width='{int(width * longest + 2 * size)}' "
      f"height='{int(height * (len(rows) + 0.7))}' font-family='monospace' font-size='{size}'><style>{style}</style>"
      "<rect width='100%' height='100%' fill='white'/>"
  ]
  for number, row in enumerate(rows, start=1):
    column = 0
    for text, kind in row:
      x = size + width * column
      parts.append(
          f"<text x='{x:.1f}' y='{height * number:.1f}' class='{kind}' xml:space='preserve'>{_escape(text)}</text>"
      )
      column += len(text)
  return "".join(parts) + "</svg>\n"
