"""`--mode=evaluate`: BLEU with and without speculation; and BLEU while a model trains."""

from collections.abc import Callable, Mapping, Sequence
import sys
from typing import Any

from specdec import models
from specdec import recipes
from specdec.adapters import flax_model
from specdec.beam_search import BeamOutput
from specdec.benchmark.quality import corpus_bleu
from specdec.benchmark import report
from specdec.data import prompts
from specdec.data import text
from specdec.data import vocabularies
from specdec.interfaces import Params
from specdec.modes import configuration
from specdec.modes.beam import BeamDecoder, best
from specdec.modes.decode import check_finite, Decoder
from specdec.networks.t5 import T5


def translate(
    decoder: Decoder, requests: Sequence[prompts.Request], vocabulary: vocabularies.Vocabulary
) -> tuple[list[str], list[int]]:
  """Decodes requests, in calls of like length: the outputs and stop codes in the order of `requests`."""
  outputs, stops = [""] * len(requests), [0] * len(requests)
  order = sorted(range(len(requests)), key=lambda i: len(requests[i].input_ids))
  for group in prompts.batches(order, decoder.batch_size):
    result, _ = decoder([requests[i] for i in group])
    if isinstance(result, BeamOutput):
      result = best(result)
    for row, i in enumerate(group):
      ids = result.tokens[row, : result.lengths[row]].tolist()
      outputs[i] = vocabulary.decode([*requests[i].prefix_ids, *ids])
      stops[i] = int(result.stop[row])
  return outputs, stops


def bleu(
    module: T5,
    vocabulary: vocabularies.Vocabulary,
    inputs: Sequence[str],
    references: Sequence[str],
    input_lengths: Sequence[int] = (16, 24, 32, 48, 64, 128),
    batch_size: int = 32,
    max_new_tokens: int = 64,
) -> Callable[[Mapping[str, Any]], dict[str, float]]:
  """Builds the function that a training run calls on its parameters.

  Args:
    module: the network that trains.
    vocabulary: its vocabulary.
    inputs: source texts.
    references: their translations.
    input_lengths: encoder lengths; longer inputs are cut.
    batch_size: rows of a call.
    max_new_tokens: longest output.

  Returns:
    `params -> {'validation/bleu': …}`: greedy and plain, so that it is the
    model's own figure, and compiled once for all calls.
  """
  requests = [
      prompts.fit_length(prompts.Request(t, (*vocabulary.encode(t), vocabularies.EOS_ID), (), i), input_lengths[-1])
      for i, t in enumerate(inputs, start=1)
  ]
  step = recipes.autoregressive(flax_model.t5_model(module, vocabulary.size))

  def evaluate_params(params: Mapping[str, Any]) -> dict[str, float]:
    laid_out = Params(flax_model.prepare(module, params))
    decoder = Decoder(step, laid_out, {"temperature": 0.0}, batch_size, input_lengths, max_new_tokens)
    outputs, _ = translate(decoder, requests, vocabulary)
    return {"validation/bleu": corpus_bleu(outputs, references)[0]}

  return evaluate_params


def evaluate(
    target: models.Model,
    input: str,
    references: str,
    draft: models.Model | None = None,
    output: str = "-",
    gamma: int = 7,
    beams: int = 0,
    alpha: float = 0.6,
    metric: Callable[[Sequence[str], Sequence[str]], dict[str, float]] | None = None,
    temperature: float = 0.0,
    batch_size: int = 32,
    input_lengths: Sequence[int] = (16, 24, 32, 48, 64, 128),
    max_new_tokens: int = 64,
    seed: int = 0,
) -> dict[str, Any]:
  """Decodes a file plainly and with speculation, and reports BLEU of both.

  Args:
    target: the target.
    input: sources, see `data.prompts.read_requests`.
    references: plain text, one translation a source; `.gz` is unpacked.
    draft: drafts for the target; None decodes plainly only.
    output: a JSON record is added to it; '-' is stdout.
    gamma: tokens drafted a step.
    beams: also decode by beam search with so many; 0 leaves it out.
    alpha: exponent of its brevity penalty.
    metric: `(references, outputs) -> {name: value}`, counted beside BLEU, such as
      `data.metrics.rouge`.
    temperature: 0 is argmax.
    batch_size: rows of a call.
    input_lengths: encoder lengths; longer inputs are cut.
    max_new_tokens: longest output.
    seed: of all draws.

  Returns:
    The record: `plain`, `speculative` and `beam` BLEU (None where one is left
    out), `metrics` of each, `equal` outputs of the first two, `sentences`, sacreBLEU's signature, and the settings.

  Raises:
    ValueError: bad input, or another number of references.
  """
  target, draft = models.pair(target, draft)
  report.check_output(output, models.resolve(input), models.resolve(references))
  requests = prompts.read_requests(models.resolve(input), target.vocabulary)
  requests = [prompts.fit_length(r, input_lengths[-1]) for r in requests]
  right = text.read_lines(models.resolve(references), "references")
  if len(right) != len(requests):
    raise ValueError(f"references: expected {len(requests)} lines, as {input} has, found {len(right)} in {references}.")
  params = Params(target.params, draft.params if draft else None)
  settings = {"temperature": temperature}
  shape = dict(batch_size=batch_size, input_lengths=input_lengths, max_new_tokens=max_new_tokens, seed=seed)
  decoders = {"plain": Decoder(recipes.autoregressive(target.model), params, settings, **shape)}
  if draft is not None:
    decoders["speculative"] = Decoder(draft.drafts_for(target, gamma), params, settings, **shape)
  if beams:
    decoders["beam"] = BeamDecoder(target.model, params, beams, alpha, **shape)
  outputs, scores, metrics, signature = {}, {}, {}, None
  for name, decoder in decoders.items():
    outputs[name], stops = translate(decoder, requests, target.vocabulary)
    check_finite(stops)
    scores[name], signature = corpus_bleu(outputs[name], right)
    if metric is not None:
      metrics[name] = metric(right, outputs[name])
    print(f"BLEU {scores[name]:.2f} {name}, {len(right)} sentences, {signature}", file=sys.stderr)
  equal = None
  if draft is not None:
    equal = sum(a == b for a, b in zip(outputs["plain"], outputs["speculative"]))
    print(f"equal outputs: {equal} of {len(right)}", file=sys.stderr)
  record = {
      "plain": scores["plain"],
      "speculative": scores.get("speculative"),
      "beam": scores.get("beam"),
      "metrics": metrics,
      "equal": equal,
      "sentences": len(right),
      "signature": signature,
      "temperature": temperature,
      "gamma": gamma if draft else 0,
      "beams": beams,
      "seed": seed,
      **configuration.provenance(),
  }
  report.append_record(output, record)
  return record
