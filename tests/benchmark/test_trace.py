"""`benchmark.trace` on a decode made up by hand."""

import html.parser
import xml.dom.minidom

import numpy as np
import pytest

from specdec.benchmark import trace
from specdec.benchmark.trace import ACCEPTED, OWN, Piece, REJECTED

NAMES = ["<pad>", "</s>", "▁a", "▁b", "c", "<x>&", "▁d", "'e\"", "f", "g"]

# Five steps of gamma 2: one accepted, none, both (with a bonus), EOS within the draft, and one after the end.
DRAFT = np.array([[2, 9], [8, 9], [4, 5], [6, 1], [3, 3]])
CHAIN = np.tile([0, 1], (5, 1))
TOKENS = np.array([[2, 3, 0], [3, 0, 0], [4, 5, 7], [6, 1, 0], [3, 3, 3]])
ACCEPTED_COUNT = np.array([1, 0, 2, 2, 0])
COMMITTED = np.array([2, 1, 3, 2, 0])


@pytest.fixture(scope="module")
def lines():
  return list(trace.calls(DRAFT, CHAIN, TOKENS, ACCEPTED_COUNT, COMMITTED, lambda token: trace.readable(NAMES[token])))


def test_each_token_is_marked_for_what_became_of_it(lines):
  assert lines == [
      [Piece(" a", ACCEPTED), Piece("g", REJECTED), Piece(" b", OWN)],
      [Piece("f", REJECTED), Piece(" b", OWN)],
      [Piece("c", ACCEPTED), Piece("<x>&", ACCEPTED), Piece("'e\"", OWN)],
      [Piece(" d", ACCEPTED), Piece("</s>", ACCEPTED)],
  ]


def test_what_is_not_rejected_is_the_output(lines):
  kept = [p.text for line in lines for p in line if p.kind != REJECTED]
  output = [token for tokens, count in zip(TOKENS, COMMITTED) for token in tokens[:count]]
  assert kept == [trace.readable(NAMES[token]) for token in output]


def test_a_call_that_the_limit_cut_has_no_token_of_the_target():
  (line,) = trace.calls(np.array([[2, 3]]), CHAIN, np.array([[2, 3, 4]]), np.array([1]), np.array([1]), NAMES.__getitem__)
  assert line == [Piece("▁a", ACCEPTED)]


def test_a_tree_shows_its_path_and_the_siblings_that_were_rejected():
  """Children of the root 2, 3; below 3: 6, below which 8, 9; below 2: 6. Numbers 7 and 8 have no node."""
  draft, parents = np.array([[2, 3, 6, 6, 8, 9, 0]]), np.array([[0, 0, 2, 1, 3, 3, -1]])
  show = lambda kept, accepted, committed: "".join(
      trace.to_terminal(list(trace.calls(draft, parents, np.array([kept]), [accepted], [committed], "{}".format)), False)
  )
  assert show([3, 6, 7], 2, 3) == "[-2-]36[-8-][-9-]{7}"
  assert show([3, 6, 9, 4], 3, 4) == "[-2-]36[-8-]9{4}"
  assert show([2, 6, 5], 2, 3) == "26{5}"
  assert show([7], 0, 1) == "[-2-][-3-]{7}"
  assert show([3, 6], 2, 2) == "[-2-]36"  # Cut by the limit.
  # With replacement siblings may say the same: only below the second 2 is there a 6.
  (line,) = trace.calls(np.array([[2, 2, 6]]), np.array([[0, 0, 2]]), np.array([[2, 6, 1]]), [2], [3], "{}".format)
  assert [p.text for p in line if p.kind == ACCEPTED] == ["2", "6"]


def test_terminal(lines):
  assert trace.to_terminal(lines, colour=False) == " a[-g-]{ b}\n[-f-]{ b}\nc<x>&{'e\"}\n d</s>"
  coloured = trace.to_terminal(lines)
  first = coloured.split("\n")[0]
  assert first == "\033[32m a\033[0m\033[31;9mg\033[0m\033[34;1m b\033[0m"


class Page(html.parser.HTMLParser):
  """Tags, and text by the class that it stands in."""

  def __init__(self):
    super().__init__()
    self.tags, self.spans, self._kind = set(), [], None

  def handle_starttag(self, tag, attributes):
    self.tags.add(tag)
    self._kind = dict(attributes).get("class") if tag == "span" else None

  def handle_endtag(self, tag):
    self._kind = None

  def handle_data(self, data):
    if self._kind:
      self.spans.append((data, self._kind))


def test_html_is_escaped_and_says_the_same(lines):
  page = trace.to_html([("<script>alert('source')</script> & more", lines)], title="<b>title</b>")
  parsed = Page()
  parsed.feed(page)
  assert parsed.tags == {"meta", "title", "style", "h1", "p", "span", "h3", "pre"}
  assert "&lt;script&gt;" in page and "&lt;b&gt;title&lt;/b&gt;" in page and "<x>" not in page
  legend = [(kind, kind) for kind in (ACCEPTED, REJECTED, OWN)]
  assert parsed.spans == legend + [(p.text, p.kind) for line in lines for p in line]


def test_svg_is_escaped_and_says_the_same(lines):
  picture = xml.dom.minidom.parseString(trace.to_svg([("<source> & more", lines)]))
  texts = [(node.firstChild.data, node.getAttribute("class")) for node in picture.getElementsByTagName("text")]
  assert texts == [("<source> & more", "source")] + [(p.text, p.kind) for line in lines for p in line]


def test_control_characters_leave_the_pictures_well_formed():
  decodes = [("a\x07 \x00\x1b[31m", [[Piece("\x0b\uffff", OWN)]])]
  found = xml.dom.minidom.parseString(trace.to_svg(decodes)).getElementsByTagName("text")
  assert [node.firstChild.data for node in found] == ["a\ufffd \ufffd\ufffd[31m", "\ufffd\ufffd"]
  assert "\x00" not in trace.to_html(decodes)
