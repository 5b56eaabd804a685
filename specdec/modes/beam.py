"""`--mode=beam`: a file of requests in, the n best outputs of each by beam search out."""

from collections.abc import Sequence
import contextlib
import hashlib
import sys
from typing import Any

import tqdm

from specdec import beam_search
from specdec import models
from specdec import recipes
from specdec.data import prompts
from specdec.interfaces import LanguageModel, Params, StopCode
from specdec.modes import decode


class BeamDecoder(decode.Decoder):
  """A beam search that is called on requests, as `decode.Decoder` is.

  Args:
    target: the model.
    params: of the target, in `Params`.
    beams: hypotheses of a row.
    alpha: exponent of the brevity penalty.
    settings: bans, minimum length and repetition penalty count.
    **shape: see `decode.Decoder`.
  """

  def __init__(
      self,
      target: LanguageModel,
      params: Params,
      beams: int = 4,
      alpha: float = 0.6,
      settings: dict[str, Any] | None = None,
      **shape,
  ):
    if not alpha >= 0:
      raise ValueError(f"alpha: expected at least 0, found {alpha}.")
    self._method, self._alpha = recipes.beam_search(target, beams), alpha
    super().__init__(recipes.autoregressive(target), params, {"temperature": 0.0} | (settings or {}), **shape)

  def run(self, step, keys, params, prompt, sampling, max_new_tokens, limit, trace) -> beam_search.BeamOutput:
    return beam_search.search(self._method, params.target, prompt, sampling, max_new_tokens, self._alpha, limit)


def best(output: beam_search.BeamOutput) -> beam_search.BeamOutput:
  """The best hypothesis of each row: arrays [B, L], [B] and [B]."""
  return output._replace(tokens=output.tokens[:, -1], lengths=output.lengths[:, -1], scores=output.scores[:, -1])


def row_record(request: prompts.Request, row: int, output: beam_search.BeamOutput, vocabulary, seconds: float) -> dict[str, Any]:
  """The JSONL record of a row whose arrays are on the host; hypotheses stand best first."""
  hypotheses = []
  for tokens, length, score in zip(output.tokens[row], output.lengths[row], output.scores[row]):
    if length or score > beam_search.UNLIKELY / 2:  # Other places were never filled.
      ids = tokens[:length].tolist()
      prediction = vocabulary.decode([*request.prefix_ids, *ids])
      hypotheses.append({"prediction": prediction, "output_ids": ids, "score": float(score)})
  hypotheses.reverse()
  return {
      "inputs": request.inputs if request.inputs is not None else vocabulary.decode(request.input_ids),
      "prediction": hypotheses[0]["prediction"],
      "hypotheses": hypotheses,
      "steps": int(output.steps[row]),
      "stop": StopCode(int(output.stop[row])).name,
      "seconds": round(seconds, 6),
  }


def beam(
    target: models.Model,
    input: str = "-",
    output: str = "-",
    jsonl: bool | None = None,
    beams: int = 4,
    alpha: float = 0.6,
    batch_size: int = 1,
    input_lengths: Sequence[int] = (32, 64, 128),
    max_new_tokens: int = 64,
    on_long: str = "truncate",
    min_length: int | None = None,
) -> list[dict[str, Any]]:
  """Decodes a file by beam search.

  Args:
    target: the model.
    input: plain text or JSONL, see `data.prompts.read_requests`; '-' is stdin.
    output: JSONL; '-' is stdout. Written as it comes, renamed when whole; an
      interrupted run goes on.
    jsonl: None decides by the ending of `input`.
    beams: hypotheses of a request; all that end are written.
    alpha: exponent of the brevity penalty, T5X's 0.6; 0 sorts by log-probability.
    batch_size: requests of a call; `seconds` of a record is then its batch's.
    input_lengths: encoder lengths; longer inputs are cut or refused.
    max_new_tokens: longest output.
    on_long: 'truncate' (with a warning) or 'error'.
    min_length: tokens before EOS is possible.

  Returns:
    The records, in the order of the input.

  Raises:
    ValueError: bad input, output or settings; or, after all records are written,
      the model's output was not finite.
  """
  requests = prompts.read_requests(models.resolve(input), target.vocabulary, jsonl)
  requests = [prompts.fit_length(r, input_lengths[-1], on_long) for r in requests]
  params = Params(target.params)
  shape = dict(batch_size=batch_size, input_lengths=tuple(input_lengths), max_new_tokens=max_new_tokens)
  decoder = BeamDecoder(target.model, params, beams, alpha, {"min_length": min_length}, **shape)
  settings = shape | dict(
      beams=beams,
      alpha=alpha,
      min_length=min_length,
      inputs=hashlib.sha256(repr([r[1:] for r in requests]).encode()).hexdigest(),
      weights=decode.fingerprint(params),
  )
  records = decode.Records(output, settings)
  results = list(records.done)
  rest = requests[len(results) :]
  decoder.compile(rest)
  progress = tqdm.tqdm(total=len(requests), initial=len(results), unit="line", disable=not sys.stderr.isatty())
  with progress, contextlib.redirect_stdout(sys.stderr):
    for group in prompts.batches(rest, batch_size):
      result, seconds = decoder(group)
      for row, request in enumerate(group):
        record = row_record(request, row, result, target.vocabulary, seconds)
        records.write(record)
        results.append(record)
        progress.update()
  records.finish()
  decode.check_finite([StopCode[r["stop"]] for r in results])
  return results
