"""`--mode=plan`: what a target and its drafts would do on a TPU slice, by the compiler alone."""

from collections.abc import Mapping, Sequence
from importlib import metadata
import os
import sys
from typing import Any

from absl import logging
import tqdm

from specdec.benchmark import report
from specdec.networks.t5 import T5
from specdec.sharding import chips
from specdec.sharding import lowering
from specdec.sharding import plan as plan_lib
from specdec.sharding import plan_report
from specdec.sharding import schedule
from specdec.sharding.programs import Workload

TITLE = "A plan for {chips} TPU {chip} chips ({topology})"
LEAD = (
    "Compiled ahead of time with jax {jax} and libtpu {libtpu}; nothing ran on a TPU and nothing was measured. Each column "
    "says where its figures come from: `compiled` is printed by the compiler or counted in the program it made, `modelled` is "
    "a bound of time or follows from one, `by hand` comes from shapes or is an assumption, `published` is the paper's.",
    "Batch {batch}, encoder length {encoder_length}, {max_new_tokens} new tokens, weights in {dtype}; softmax, logits and "
    "acceptance in float32. {chip}: {tera:g} TFLOP/s, {giga:g} GB/s ({source}).",
)


def plan(
    target: T5,
    drafts: Mapping[str, T5],
    output: str,
    topology: str = "v4:2x2x1",
    data: int = 1,
    gammas: Sequence[int] = (1, 3, 5, 7, 8, 15),
    published: Sequence[Any] = (),
    alphas: Mapping[str, float] | None = None,
    splits: Sequence[bool] = (False, True),
    collective_microseconds: Sequence[float] = (0.0, 1.0, 5.0),
    batch_size: int = 1,
    encoder_length: int = 512,
    max_new_tokens: int = 128,
    pieces: int | None = 32100,
    dtype: str = "bfloat16",
    schedules: bool = True,
    store: str = "runs/plan",
    notes: Sequence[str] = (),
    must_fit: bool = False,
) -> list[plan_report.Table]:
  """Compiles the real programs for a slice and writes what they need, move and promise.

  Args:
    target: the target's network.
    drafts: the drafts' by name.
    output: the Markdown file; JSON and HTML go beside it. '-' prints the Markdown.
    topology: chip and shape of the slice: 'v4:2x2x1' is one v4 host, 'v5e:2x2', 'v5p:2x2x1', 'v6e:2x2', …
    data: chips along the data axis; the others share a model.
    gammas: for which v is compiled, and the best is sought.
    published: rows of a paper with task, drafter, temperature, gamma, alpha, c,
      expected and measured, such as those of `configs.published`; their programs
      are compiled whole.
    alphas: your own acceptance by draft, to predict every one of `gammas` with.
    splits: the ways that drafts are placed: False is whole on every chip, True
      is split over them.
    collective_microseconds: assumed of each collective; the first is that of
      the main tables.
    batch_size: requests at once.
    encoder_length: tokens of the source.
    max_new_tokens: longest output.
    pieces: of the vocabulary; None keeps all logits.
    dtype: of the weights.
    schedules: also read the final schedules, for a tighter bound of time.
    store: folder of analyses by content; a plan that was stopped goes on from
      there. '' keeps none.
    notes: paragraphs to put before the tables.
    must_fit: raise where a program does not fit a chip, once the pages are written.

  Returns:
    The tables.

  Raises:
    ValueError: an argument is out of its range; with must_fit, a program does not
      fit, or libtpu is missing and nobody can tell.
  """
  workload = Workload(batch_size, encoder_length, max_new_tokens, pieces, dtype)
  cases = _cases(published, alphas or {}, gammas)
  unknown = sorted({case.drafter for case in cases} - drafts.keys())
  if unknown:
    raise ValueError(f"drafter: expected one of {', '.join(sorted(drafts)) or 'no drafts'}, found {unknown[0]!r}.")
  chip = chips.chip_of(topology)
  if not chips.compiler_is_installed():
    if must_fit:
      raise ValueError("must_fit: expected libtpu, which says what fits, found none. pip install 'specdec[tpu_plan]'.")
    text = lowering.report(target, drafts, sorted(set(gammas)), workload)
    report.write_text(output, text)
    logging.warning("libtpu is not installed: checked only that everything lowers for TPU. pip install 'specdec[tpu_plan]'.")
    return []
  if schedules and chip.clock is not None:
    schedule.ask()
  decodes = {name: sorted({row.gamma for row in published if row.drafter == name}) for name in drafts}
  with tqdm.tqdm(unit="program", disable=not sys.stderr.isatty()) as bar:

    def progress(text: str) -> None:
      bar.set_postfix_str(text)
      bar.update()
      if bar.disable:
        logging.info("compiling: %s.", text)

    found = plan_lib.compile_plan(
        target, drafts, topology, gammas, decodes, workload, splits, data, store or None,
        schedules and chip.clock is not None, progress,
    )  # fmt: skip
  tables = plan_report.tables(found, cases, [one * 1e-6 for one in collective_microseconds])
  write(output, found, tables, notes)
  for who, one in found.refused():
    logging.warning("%s, %s: does not fit a chip. %s", who, one.name, one.refused)
  if must_fit and found.refused():
    names = "; ".join(f"{who}, {one.name}" for who, one in found.refused())
    raise ValueError(f"must_fit: expected programs that fit a chip of {topology}, found that these do not: {names}.")
  return tables


def write(output: str, found: plan_lib.Plan, tables: Sequence[plan_report.Table], notes: Sequence[str] = ()) -> None:
  """Writes Markdown, JSON and HTML."""
  chip, work = found.chip, found.workload
  facts = dict(
      chips=found.chips, chip=chip.name, topology=found.topology, jax=metadata.version("jax"),
      libtpu=metadata.version("libtpu"), batch=work.batch, encoder_length=work.encoder_length,
      max_new_tokens=work.max_new_tokens, dtype=work.dtype, tera=chip.flops / 1e12, giga=chip.hbm_bandwidth / 1e9,
      source=chip.source,
  )  # fmt: skip
  title, lead = TITLE.format(**facts), [*(line.format(**facts) for line in LEAD), *notes]
  report.write_text(output, plan_report.to_markdown(title, lead, tables))
  if output != "-":
    stem = os.path.splitext(output)[0]
    report.write_text(stem + ".json", plan_report.to_json(title, lead, tables, found))
    report.write_text(stem + ".html", plan_report.to_html(title, lead, tables))


def _cases(published: Sequence[Any], alphas: Mapping[str, float], gammas: Sequence[int]) -> list[plan_lib.Case]:
  names = plan_lib.Case._fields
  cases = [plan_lib.Case(**{name: getattr(row, name) for name in names}) for row in published]
  for drafter, alpha in alphas.items():
    if not 0 <= alpha <= 1:
      raise ValueError(f"alphas: expected a number in [0, 1] for {drafter}, found {alpha}.")
    cases += [plan_lib.Case("own", drafter, 1.0, gamma, alpha) for gamma in gammas]
  return cases
