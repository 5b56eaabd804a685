"""`--mode=trees`: accepted tokens a step of every tree at equal budgets, and what they cost."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import json
import os
import sys
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

from specdec import models
from specdec import recipes
from specdec.acceptance import multi_round
from specdec.benchmark import calls
from specdec.benchmark import report
from specdec.benchmark import tree_pages
from specdec.benchmark import trees as measure
from specdec.data import prompts
from specdec.interfaces import Params, Prompt, Step
from specdec.modes.decode import check_finite, Decoder
from specdec.trees import dyspec
from specdec.trees import sequoia
from specdec.trees import specinfer
from specdec.trees import static
from specdec.trees import topology
from specdec.trees.growth import Growth

METHODS = ("chain", "specinfer", "sequoia", "dyspec", "dyspec_threshold")
_TIMED = 4  # Calls whose texts proposals are timed on.
_CALLS = 8  # Of a timed loop of one model.
_LAYER = 8  # Tokens of a timed call of the draft, about a layer of a tree.


class _Shape(NamedTuple):
  """What every decode of a run shares."""

  batch_size: int
  input_lengths: Sequence[int]
  max_new_tokens: int
  seed: int


def trees(
    target: models.Model,
    draft: models.Model,
    input: str,
    output: str,
    table: str | None = None,
    plot: str | None = None,
    time_plot: str | None = None,
    premise_plot: str | None = None,
    methods: Sequence[str] = METHODS,
    sizes: Sequence[int] = (8, 16, 32, 64),
    temperatures: Sequence[float] = (0.0, 0.6, 1.0),
    expansions: Mapping[int, Sequence[int]] | None = None,
    sentences: int = 200,
    batch_size: int = 1,
    probe_children: int = 16,
    width: int = 8,
    max_depth: int = 16,
    input_lengths: Sequence[int] = (64,),
    max_new_tokens: int = 64,
    seed: int = 0,
) -> list[dict[str, Any]]:
  """Decodes the same sentences with every method, size and temperature.

  First it measures, by temperature, acceptance by child rank (for Sequoia),
  acceptance by draft probability (DySpec's premise), and the models' calls. A run
  that was stopped goes on after the last whole record of `output`.

  Args:
    target: the target.
    draft: the draft.
    input: sources, see `data.prompts.read_requests`.
    output: JSONL, a record a cell is added as it is measured.
    table: a Markdown file for the tables, or None.
    plot: an SVG file for tokens a step against size, or None.
    time_plot: an SVG file for the time of a step against size, or None.
    premise_plot: an SVG file for acceptance against draft probability, or None.
    methods: of `METHODS`.
    sizes: drafted nodes, the same for all methods; a chain drafts so many tokens.
    temperatures: each is measured.
    expansions: SpecInfer's configuration for each size; None is several chains
      from the root, at least as long as there are of them.
    sentences: how many of the sources are decoded.
    batch_size: rows of a call; times are of whole calls.
    probe_children: children whose acceptance is measured.
    width: nodes a call of the draft scores, for DySpec.
    max_depth: of Sequoia's and DySpec's trees.
    input_lengths: encoder lengths; longer inputs are cut.
    max_new_tokens: longest output.
    seed: of all draws.

  Returns:
    The records of `output`: of kind 'rank', 'premise' and 'calls' (seconds of the
    target's calls by block size, and of the draft's) by temperature, 'cell'
    (accepted tokens a step with its standard error over sentences, and times; see
    `tree_pages.page`), and 'budget' by temperature (the best size for Sequoia as
    its cost model has it, and as measured).

  Raises:
    ValueError: bad input, an unknown method, or `output` of other settings.
  """
  models.pair(target, draft)
  unknown = sorted(set(methods) - set(METHODS))
  if unknown:
    raise ValueError(f"methods: expected some of {', '.join(METHODS)}, found {unknown[0]}.")
  requests = prompts.read_requests(models.resolve(input), target.vocabulary)[:sentences]
  requests = [prompts.fit_length(r, input_lengths[-1]) for r in requests]
  shape = _Shape(batch_size, tuple(input_lengths), max_new_tokens, seed)
  settings = dict(sentences=len(requests), width=width, max_depth=max_depth, probe_children=probe_children, **shape._asdict())
  log = _Log(output, json.loads(json.dumps(settings)), report.environment())
  run = _Run(target, draft, requests, shape, log)
  for temperature in temperatures:
    run.probe(temperature, probe_children)
    run.calls(temperature, sizes)
  cells = [(t, n, m) for n in sizes for m in methods for t in temperatures]
  for temperature, size, method in tqdm.tqdm(cells, unit="cell", disable=not sys.stderr.isatty()):
    if log.find("cell", temperature=temperature, size=size, method=method):
      continue
    acceptance = log.find("rank", temperature=temperature)["acceptance"]
    expansion = (expansions or {}).get(size) or _several_chains(size)
    growth = _growth(method, size, acceptance, expansion, width, max_depth)
    run.cell(temperature, size, method, growth)
  for temperature in temperatures:
    run.budget(temperature, max_depth)
  print(tree_pages.cells(log.records, methods), file=sys.stderr)
  pages = {
      table: lambda: tree_pages.page(log.records, methods),
      plot: lambda: tree_pages.tokens_plot(log.records, methods),
      time_plot: lambda: tree_pages.time_plot(log.records, methods),
      premise_plot: lambda: tree_pages.premise_plot(log.records),
  }
  for path, text in pages.items():
    if path:
      report.write_text(path, text())
  return log.records


def _several_chains(size: int) -> tuple[int, ...]:
  """k chains of equal length d >= k from the root, k d = size with k as large as that allows."""
  count = next(k for k in range(int(size**0.5), 0, -1) if size % k == 0)
  return (count,) + (1,) * (size // count - 1)


def _growth(method: str, size: int, acceptance, expansion, width: int, max_depth: int) -> Growth:
  """The construction of a method; a chain is the tree of width one."""
  if method == "chain":
    return static.static_growth(list(range(-1, size)))
  if method == "specinfer":
    return specinfer.specinfer_growth(expansion)
  if method == "sequoia":
    return sequoia.sequoia_growth(acceptance, size, min(max_depth, size))
  if method == "dyspec":
    return dyspec.dyspec_growth(size, width, max_depth)
  return dyspec.dyspec_threshold_growth(size, 1 / size, width, max_depth)


def _logits(model: models.Model, prompt: Prompt) -> int:
  """How many logits a model has: of random weights more than its vocabulary."""

  def score(params, prompt):
    state = model.model.init(params, prompt, prompt.prefix.shape[1] + 1)
    return model.model.score(params, state, prompt.prefix[:, :1], topology.chain(1))[0].logits

  return jax.eval_shape(score, model.params, prompt).shape[-1]


class _Log:
  """The records of a run, in memory and in their file."""

  def __init__(self, path: str, settings: dict[str, Any], environment: dict[str, Any]):
    self._path, self._settings, self._environment = path, settings, environment
    self.records: list[dict[str, Any]] = []
    if path != "-" and os.path.exists(path):
      with open(path, encoding="utf-8") as file:
        text = file.read()
      whole = text[: text.rfind("\n") + 1]  # The last line may have been cut by an interruption.
      self.records = [json.loads(line) for line in whole.splitlines()]
      if any(r.get("settings") != settings for r in self.records):
        raise ValueError(f"output: {path} holds records of other settings; name another file, or remove it.")
      if whole != text:
        report.write_text(path, whole)

  def add(self, kind: str, **values) -> None:
    record = {"kind": kind, **values, "settings": self._settings, **self._environment}
    report.append_record(self._path, record)
    self.records.append(record)

  def find(self, kind: str, **values) -> dict[str, Any] | None:
    fits = lambda r: r["kind"] == kind and all(r[name] == value for name, value in values.items())
    return next((r for r in self.records if fits(r)), None)


class _Run:
  """The parts of a measurement."""

  def __init__(self, target: models.Model, draft: models.Model, requests, shape: _Shape, log: _Log):
    self._target, self._draft, self._requests, self._shape, self._log = target, draft, requests, shape, log
    self._params = Params(target.params, draft.params)
    self._transform = recipes.sampling_transform()
    self._made: dict[Any, Any] = {}  # Steps and timed loops: compiled once for all temperatures.
    self._logits = _logits(target, self._decoder(recipes.autoregressive(target.model), 0.0).arguments(requests[:1])[3])

  def _decoder(self, step: Step, temperature: float) -> Decoder:
    return Decoder(step, self._params, dict(temperature=temperature), **self._shape._asdict())

  def _decode(self, step: Step, temperature: float) -> Iterator[tuple[Any, list, float, tuple]]:
    decoder = self._decoder(step, temperature)
    decoder.compile(self._requests)
    for group in prompts.batches(self._requests, self._shape.batch_size):
      result, seconds = decoder(group)
      check_finite(result.stop[: len(group)])
      yield result, group, seconds, decoder.arguments(group)

  def _once(self, key: Any, make: Callable[[], Any]) -> Any:
    if key not in self._made:
      self._made[key] = make()
    return self._made[key]

  def _tree(self, growth: Growth, method: str) -> tuple[Step, Callable[..., float], Callable[..., float]]:
    """The step of a construction, and what times its proposals, with the draft and with a free one."""
    shape = tuple(growth.topology.parents.tolist()) if growth.topology is not None else None
    rule = multi_round.with_replacement if growth.replacement else multi_round.without_replacement
    target, draft = self._target.model, self._draft.model

    def make():
      free = measure.free_model(self._logits)
      timers = [measure.proposal_timer(model, growth, self._transform) for model in (draft, free)]
      if method == "chain":
        return recipes.leviathan(target, draft, growth.size), *timers
      return recipes.tree(target, draft, growth, rule), *timers

    return self._once((method, growth.size, shape), make)

  def probe(self, temperature: float, children: int) -> None:
    """Acceptance by child rank, on a tree of one layer, and by draft probability, on the text that came out."""
    if self._log.find("premise", temperature=temperature):
      return
    growth = static.static_growth([-1] + [0] * children)
    visited, accepted, premise = [], [], None
    for result, group, _, arguments in self._decode(self._tree(growth, "probe")[0], temperature):
      visited.append(result.statistics.visited[: len(group)])
      accepted.append(result.statistics.acceptance[: len(group)])
      lengths = np.where(np.arange(len(result.lengths)) < len(group), result.lengths, 0)
      _, _, params, prompt, sampling, *_ = arguments
      found = measure.premise_on_text(
          self._target.model, self._draft.model, self._transform, params, prompt, sampling, result.tokens, lengths
      )
      premise = found if premise is None else jax.tree.map(np.add, premise, found)
    rates = sequoia.acceptance_by_rank([-1] + [0] * children, np.concatenate(visited), np.concatenate(accepted))
    self._log.add("rank", temperature=temperature, acceptance=rates.tolist())
    self._log.add("premise", temperature=temperature, **{k: np.asarray(v).tolist() for k, v in premise._asdict().items()})

  def cell(self, temperature: float, size: int, method: str, growth: Growth) -> None:
    """Decodes all sentences with one method."""
    totals: dict[str, list] = {"committed": [], "steps": [], "drafted": []}
    seconds, texts = 0.0, []
    step, propose, build = self._tree(growth, method)
    for result, group, taken, arguments in self._decode(step, temperature):
      seconds += taken
      for name, values in totals.items():
        values += getattr(result.statistics, name)[: len(group)].tolist()
      _, _, _, prompt, sampling, *_ = arguments
      if len(texts) < _TIMED:
        texts.append(measure.Text(prompt, result.tokens, result.lengths))
    mean, error = measure.ratio(totals["committed"], totals["steps"])
    steps, tokens = sum(totals["steps"]), sum(totals["committed"])
    step_seconds = seconds / steps * self._shape.batch_size
    known = self._known_calls(temperature)["target_seconds"]
    build_seconds = build(None, texts, sampling)
    self._log.add(
        "cell", temperature=temperature, size=size, method=method, tokens_per_step=mean, standard_error=error,
        drafted_per_step=sum(totals["drafted"]) / steps, steps=steps, committed=tokens, ms_per_token=1e3 * seconds / tokens,
        ms_per_step=1e3 * step_seconds, target_ms=1e3 * known[str(size + 1)],
        propose_ms=1e3 * propose(self._params.draft, texts, sampling), build_ms=1e3 * build_seconds,
        build_share=build_seconds / step_seconds,
        parents=None if growth.topology is None else growth.topology.parents.tolist(),
    )  # fmt: skip

  def _known_calls(self, temperature: float) -> dict[str, Any] | None:
    found = [r for r in self._log.records if (r["kind"], r.get("temperature")) == ("calls", temperature)]
    return found[-1] if found else None  # Sizes may have been added.

  def calls(self, temperature: float, sizes: Sequence[int]) -> None:
    """Times the target's calls for each block, and the draft's."""
    known = self._known_calls(temperature)
    if known and all(str(size + 1) in known["target_seconds"] for size in sizes):
      return
    decoder = self._decoder(self._once("plain", lambda: recipes.autoregressive(self._target.model)), temperature)
    _, _, params, prompt, sampling, *_ = decoder.arguments(self._requests[: self._shape.batch_size])
    blocks = [1, *(size + 1 for size in sizes)]
    loop = lambda model, n: calls.call_loop(model, n, _CALLS, self._transform)
    opened = lambda model, own: (own, calls.open_request(model, own, prompt, _CALLS + max(blocks)), sampling)
    target, draft = opened(self._target.model, params.target), opened(self._draft.model, params.draft)
    loops = {str(n): (self._once(("call", n), lambda: loop(self._target.model, n)), target) for n in blocks}
    loops["draft"] = (self._once("draft", lambda: loop(self._draft.model, _LAYER)), draft)
    seconds = calls.in_turns({name: functools.partial(f, *arguments) for name, (f, arguments) in loops.items()}, 5)
    median = {name: float(np.median(s)) / _CALLS for name, s in seconds.items()}
    self._log.add("calls", temperature=temperature, draft_seconds=median.pop("draft"), target_seconds=median)

  def budget(self, temperature: float, max_depth: int) -> None:
    """The best size for a fixed tree as the cost model has it, beside the measured one."""
    measured = [r for r in self._log.records if r["kind"] == "cell" and r["method"] == "sequoia"]
    measured = [r for r in measured if r["temperature"] == temperature]
    if not measured or self._log.find("budget", temperature=temperature):
      return
    acceptance = self._log.find("rank", temperature=temperature)["acceptance"]
    known = self._known_calls(temperature)
    times = {int(block) - 1: seconds for block, seconds in known["target_seconds"].items()}
    shape, speed = sequoia.best_size(acceptance, times, known["draft_seconds"], max_depth)
    best = min(measured, key=lambda r: r["ms_per_token"])
    self._log.add(
        "budget", temperature=temperature, predicted_size=len(shape.parents) - 1, predicted_speed=speed,
        measured_size=best["size"], measured_ms_per_token=best["ms_per_token"],
    )  # fmt: skip
