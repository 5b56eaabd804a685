"""`--mode=trace`: decodes drawn token by token, and as a timeline, in the terminal and as HTML."""

from collections.abc import Callable, Sequence
import sys

from specdec import models
from specdec import recipes
from specdec.benchmark import calls
from specdec.benchmark import report
from specdec.benchmark import timeline
from specdec.benchmark import trace as trace_lib
from specdec.data import prompts
from specdec.interfaces import LanguageModel, Params, Step
from specdec.modes.decode import check_finite, Decoder


def trace(
    target: models.Model,
    draft: models.Model,
    input: str,
    output: str = "-",
    sentences: int = 5,
    gamma: int = 7,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 0.0,
    input_lengths: Sequence[int] = (32, 64, 128),
    max_new_tokens: int = 64,
    seed: int = 0,
    colour: bool | None = None,
    timeline_gammas: Sequence[int] = (),
    method: Callable[[LanguageModel, LanguageModel], Step] | None = None,
) -> None:
  """Draws the first `sentences` of `input`.

  Args:
    target: the target.
    draft: the draft.
    input: sources, see `data.prompts.read_requests`.
    output: '-' draws in the terminal only; a file name also writes HTML there, or
      a picture if it ends in `.svg`.
    sentences: how many are drawn.
    gamma: tokens drafted a step.
    temperature: 0 is argmax.
    top_k: 0 is off.
    top_p: 0 is off.
    input_lengths: encoder lengths; longer inputs are cut.
    max_new_tokens: longest output.
    seed: of all draws.
    colour: None is colour on a terminal and marks elsewhere.
    timeline_gammas: for each, 0 being plain decoding, the first sentence is also
      drawn as a timeline of its calls by their measured times (Figure 5 of
      Leviathan et al. 2023); in a `.svg` there is no room for it.
    method: builds the step from target and draft, such as `recipes.dyspec` with
      its size bound (gin/trees): of a tree the accepted path is drawn, each token
      after its rejected siblings. None drafts chains of gamma.
  """
  models.pair(target, draft)
  if sentences < 1:
    raise ValueError(f"sentences: expected at least 1, found {sentences}.")
  report.check_output(output, models.resolve(input))
  requests = prompts.read_requests(models.resolve(input), target.vocabulary)[:sentences]
  requests = [prompts.fit_length(r, input_lengths[-1]) for r in requests]
  settings = dict(temperature=temperature, top_k=top_k, top_p=top_p)
  params = Params(target.params, draft.params)
  shape = dict(batch_size=1, input_lengths=input_lengths, max_new_tokens=max_new_tokens, seed=seed)
  step = method(target.model, draft.model) if method else draft.drafts_for(target, gamma)
  decoder = Decoder(step, params, settings, **shape, trace=True)
  pieces = target.vocabulary.pieces()
  drawn = []
  for request in requests:
    result, _ = decoder([request])
    check_finite(result.stop)
    lines = list(trace_lib.calls(*(steps[0] for steps in result.trace), lambda token: trace_lib.readable(pieces[token])))
    source = request.inputs if request.inputs is not None else target.vocabulary.decode(request.input_ids)
    drawn.append((source, lines))
    print(f"{source}\n{trace_lib.to_terminal(lines, sys.stdout.isatty() if colour is None else colour)}\n")
  below = ""
  if timeline_gammas:
    lanes = [_lane(target, draft, params, settings, shape, requests[0], g) for g in timeline_gammas]
    print(timeline.to_terminal(lanes))
    below = f"<h2>Timeline of the first</h2>{timeline.to_svg(lanes)}"
  if output != "-":
    report.write_text(output, trace_lib.to_svg(drawn) if output.endswith(".svg") else trace_lib.to_html(drawn, below=below))


def _lane(target, draft, params, settings, shape, request: prompts.Request, gamma: int) -> timeline.Lane:
  """One decode with its calls timed."""
  decoder = Decoder(
      draft.drafts_for(target, gamma) if gamma else recipes.autoregressive(target.model), params, settings, **shape
  )
  decoder.compile([request])
  result, seconds = min((decoder([request]) for _ in range(5)), key=lambda run: run[1])
  prompt, sampling = decoder.arguments([request])[3:5]
  costs = calls.measure_costs(target.model, draft.model, params, prompt, sampling, recipes.sampling_transform(), gamma)
  return timeline.lane(costs, gamma, int(result.statistics.steps[0]), seconds)
