"""The plan's arithmetic and its pages, from compiled figures that are made up here and known."""

import dataclasses
import html.parser
import json
import re
import types

import jax
import pytest

from specdec.sharding import analysis
from specdec.sharding import plan as plan_lib
from specdec.sharding import plan_report
from specdec.sharding import schedule
from specdec.sharding.analysis import Analysis, Piece
from specdec.sharding.plan import Case, Placement, Plan
from specdec.sharding.programs import Workload
from specdec.theory import speedup
from specdec.theory import tokens

CASE = Case("ende", "small", 0.0, 7, 0.75, expected=3.2, measured=3.4, c=0.02)


def piece(seconds, serial=None, reduces=0, hbm=1e6):
  collectives = {"all-reduce": reduces} if reduces else {}
  return Piece(1e9, hbm, 0.0, collectives, 4096.0, 10, 0.0, seconds, seconds, serial or seconds)


def analysed(name, seconds, reduces=0, serial=None, sampled=1.0, **sizes):
  """A program of so many seconds; sampling takes `sampled` times as long."""
  greedy, other = (piece(seconds * f, serial and serial * f, reduces) for f in (1.0, sampled))
  return Analysis(name, arguments=3_000_000_000, aliased=10, results=12, greedy=greedy, sampled=other, **sizes)


def step(name, seconds, sampled=1.0):
  """Of a loop; in line it takes twice as long."""
  return dataclasses.replace(analysed(name, seconds, serial=2 * seconds, sampled=sampled), is_step=True)


def placement(split, call, decode=None, reduces=0):
  decode = {7: step("decode speculatively, gamma 7", decode, sampled=3.0)} if decode else {}
  calls = (analysed("draft a token", call, reduces=reduces), analysed("draft a token, as products", 2 * call, reduces=reduces))
  return Placement("small", split, analysed("encode", 0.1), calls, decode, 100, 10)


def made_up(*placements, scores=((2, 1.0), (8, 1.1), (9, 1.5))):
  return Plan(
      "v4:2x2x1", 4, Workload(), analysed("encode", 0.1), (analysed("score 1", 2.0), analysed("score 1, as products", 1.0)),
      {count: analysed(f"score {count}", seconds) for count, seconds in scores},
      (step("decode", 1.6), step("decode, as products", 1.0)),
      {1: 900_000, **{count: 900_000 for count, _ in scores}}, 2000, 20, tuple(placements),
  )  # fmt: skip


def test_a_prediction_is_the_papers_theorem_with_the_fastest_baseline():
  plan = made_up(placement(False, 0.05, decode=1.5))
  found = plan_lib.predict(plan, plan.placements[0], CASE)
  assert found.c == pytest.approx(0.05) and found.v == pytest.approx(1.1)
  assert found.theorem == pytest.approx(speedup.walltime_factor(0.75, 7, 0.05, 1.1))
  assert found.whole == pytest.approx(tokens.expected_tokens(0.75, 7) / 1.5)
  serial = plan_lib.predict(plan, plan.placements[0], CASE, "serial")
  assert serial.whole == pytest.approx(tokens.expected_tokens(0.75, 7) * 2.0 / 3.0)  # Both steps twice as long.
  sampled = plan_lib.predict(plan, plan.placements[0], CASE._replace(temperature=1.0))
  assert sampled.whole == pytest.approx(found.whole / 3.0) and sampled.theorem == found.theorem


def test_collectives_cost_what_the_reader_assumes():
  split, whole = placement(True, 0.02, reduces=9), placement(False, 0.05)
  plan = made_up(split, whole)
  even = plan_lib.break_even(plan, "small", 0.0)
  assert even == pytest.approx((0.05 - 0.02) / 9)
  for each, better in ((0.5 * even, split), (2 * even, whole)):
    factor = lambda p, each=each: plan_lib.predict(plan, p, CASE, each=each).theorem
    assert max(plan.placements, key=factor) is better
  assert plan_lib.break_even(made_up(whole), "small", 0.0) is None


def test_the_best_gamma_stays_within_a_tile_unless_it_must_not():
  draft = placement(False, 0.01)
  best = plan_lib.best_gamma(made_up(draft), draft, CASE._replace(alpha=0.9))
  assert best.gamma == 7 and best.in_tile == 7
  free = plan_lib.best_gamma(made_up(draft, scores=((2, 1.0), (8, 1.1), (9, 1.1))), draft, CASE._replace(alpha=0.95))
  assert free.gamma == 8 and free.in_tile == 7  # One more token for nothing.
  assert plan_lib.best_gamma(made_up(draft), draft, CASE._replace(alpha=0.0)) == (0, 1.0, 0)


def test_what_does_not_fit_is_said():
  refused = Analysis("draft a token", refused="exceeds available HBM")
  plan = made_up(dataclasses.replace(placement(False, 0.05), calls=(refused, refused)))
  assert [who for who, _ in plan.refused()] == ["small, whole", "small, whole"]
  assert plan_lib.predict(plan, plan.placements[0], CASE) is None
  page = plan_report.to_markdown("t", [], plan_report.tables(plan, [CASE]))
  assert "refused: exceeds available HBM" in page
  big = made_up(placement(False, 0.05))
  big = dataclasses.replace(big, encode=dataclasses.replace(big.encode, temporaries=40 * 2**30))
  assert [one.name for _, one in big.refused()] == ["encode"]


@pytest.fixture(scope="module")
def tables():
  plan = made_up(placement(False, 0.05, decode=1.5), placement(True, 0.02, reduces=9, decode=1.4))
  return plan, plan_report.tables(plan, [CASE], [0.0, 1e-6])


def test_every_figure_is_labelled_and_none_is_called_measured(tables):
  for table in tables[1]:
    for place, (heading, label) in enumerate(table.columns):
      assert label != "measured"
      numbers = [row[place] for row in table.rows if isinstance(row[place], float)]
      assert label or not numbers, f"{table.title}: {heading} has figures and no label"
      if heading == "measured":
        assert label == "published"


def test_cases_stand_beside_the_published_numbers(tables):
  plan, found = tables
  (table,) = [t for t in found if t.title == "Speed-ups"]
  heads = [heading for heading, _ in table.columns]
  rows = [dict(zip(heads, row)) for row in table.rows]
  assert [row["placed"] for row in rows] == ["whole", "split"]
  assert {(row["expected"], row["measured"], row["α"]) for row in rows} == {(3.2, 3.4, 0.75)}
  both = [plan_lib.predict(plan, plan.placements[0], CASE, bound) for bound in plan_lib.BOUNDS]
  assert rows[0]["Theorem 3.8"] == " … ".join(dict.fromkeys(f"{f.theorem:.2f}" for f in both))


class Cells(html.parser.HTMLParser):
  """The texts of the cells of a page."""

  def __init__(self):
    super().__init__()
    self.cells, self.tags = [], []

  def handle_starttag(self, tag, attributes):
    self.tags.append(tag)

  def handle_endtag(self, tag):
    while self.tags and self.tags.pop() != tag:
      pass

  def handle_data(self, data):
    if self.tags and self.tags[-1] in ("td", "th"):
      self.cells.append(data)


def test_the_three_forms_hold_the_same(tables):
  plan, found = tables
  markdown = plan_report.to_markdown("A plan", ["Lead."], found)
  lines = [line for line in markdown.splitlines() if line.startswith("|") and not re.fullmatch(r"[|-]+", line)]
  cells = [cell for line in lines for cell in line[2:-2].split(" | ")]
  parser = Cells()
  parser.feed(plan_report.to_html("A plan", ["Lead."], found))
  assert parser.cells == cells
  data = json.loads(plan_report.to_json("A plan", ["Lead."], found, plan))
  assert [t["title"] for t in data["tables"]] == [t.title for t in found]
  assert Analysis.from_data({k: v for k, v in data["programs"][0].items() if k != "model"}) == plan.encode


def test_a_wrong_label_or_row_is_refused():
  with pytest.raises(ValueError, match="expected one of the labels"):
    plan_report.Table("t", [("x", "measured")], [])
  with pytest.raises(ValueError, match="expected 1 cells a row, found 2"):
    plan_report.Table("t", [("x", "")], [[1, 2]])


def test_analyses_are_kept_by_content(tmp_path, monkeypatch):
  """A plan that was stopped goes on; a program that changed is compiled again."""
  compiled = []

  def compile_(program, *rest):
    compiled.append(program.name)
    return step(program.name, 2.0)

  monkeypatch.setattr(analysis, "_compile", compile_)
  monkeypatch.setattr(analysis.metadata, "version", lambda name: "0")
  program = lambda name, factor: types.SimpleNamespace(
      name=name, function=lambda x: factor * x, arguments=(jax.ShapeDtypeStruct((2,), "float32"),), donate=()
  )
  ask = lambda *a, **k: analysis.analyse(program(*a), "v4:2x2x1", str(tmp_path), **k)
  first = ask("a", 2.0)
  again = ask("b", 2.0)
  assert again == dataclasses.replace(first, name="b") and compiled == ["a"]
  ask("c", 3.0), ask("a", 2.0, options={"x": 1}), ask("a", 2.0, with_schedule=False)
  assert compiled == ["a", "c", "a", "a"]
  assert not list(tmp_path.glob("*.partial"))


SCHEDULE = """control target key start
LB: loop body
     0   :  { %1 = one }
   0x1   :  { %2 = two }
   0x2 LB: > { %s1 = iteration index, stage = 1 */ ;; %p = scmp.lt.s32.totalorder %s1, 4 }
   0x3   : > { %3 = three }
   0x4 LB: >> { %4 = four }
   0x5   : >> { %p2 = scmp.ge.s32.totalorder %s2, 10 /* loop exit test */ }
   0x6   : > { %p1 = scmp.ge.s32.totalorder %s3, 6 /* loop exit test */ }
   0x7 LB: > { %5 = a loop of its own, without a number }
   0x8   :  { %6 = six }
"""


def test_bundles_of_nested_and_pipelined_loops():
  """Two before, four real runs of three and of ten times two inside, one run of the unknown loop, one after."""
  assert schedule.bundles(SCHEDULE) == 2 + 4 * (3 + 10 * 2) + 1 + 1
