"""`benchmark.lines`: well-formed pictures with every point inside; and the published tables they stand beside."""

import re
from xml.etree import ElementTree

import pytest

from configs import dyspec_tables
from specdec.benchmark import lines


def test_points_lie_inside_their_panel():
  plots = [("one <", {"a & b": [(8, 1.0, 0.1), (64, 3.0, 0.2)]}), ("two", {"a & b": [(16, 2.0, 0.0)], "c": [(8, 2.5, 0.1)]})]
  text = lines.panels(plots, "nodes", "tokens", log_x=True)
  root = ElementTree.fromstring(text)
  boxes = [tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in root.findall(".//{*}rect") if r.get("x")]
  circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.findall(".//{*}circle")]
  assert len(boxes) == 2 and len(circles) == 4
  assert all(any(x <= cx <= x + w and y <= cy <= y + h for x, y, w, h in boxes) for cx, cy in circles)
  assert circles[1][1] < circles[0][1]  # More is higher.
  assert "a &amp; b" in text and "one &lt;" in text
  assert not re.search("nan|inf", text)


def test_one_point_is_enough_and_none_is_refused():
  ElementTree.fromstring(lines.panels([("t", {"a": [(0.5, 0.5, 0.0)]})], "x", "y", diagonal=True))
  with pytest.raises(ValueError, match="one point"):
    lines.panels([("t", {})], "x", "y")


def test_published_tables_are_whole():
  rows = dyspec_tables.BUDGET_64
  assert len({(r.data, r.temperature, r.target) for r in rows}) == len(rows) == 5 * 2 * 3
  more = tuple((r.data, r.temperature, r.target) for r in rows if r.sequoia[1] > r.dyspec[1])
  assert more == dyspec_tables.SEQUOIA_ACCEPTS_MORE
  best = max(r.dyspec[0] for r in rows if r.temperature == 0 and r.data == "c4"), max(
      r.dyspec[1] for r in rows if r.temperature == 0 and r.data == "c4"
  )
  assert best == (9.42, 9.10)  # The abstract's 9.4x and 9.1 tokens.
