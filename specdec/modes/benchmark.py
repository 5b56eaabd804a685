"""`--mode=benchmark`: tokens per second with and without speculation, and what the theory says."""

from collections.abc import Sequence
import sys
from typing import Any

import gin

from specdec import models
from specdec import recipes
from specdec.benchmark import acceptance
from specdec.benchmark import against as against_lib
from specdec.benchmark import calls
from specdec.benchmark import quality
from specdec.benchmark import report
from specdec.benchmark import timing
from specdec.data import prompts
from specdec.data import text
from specdec.interfaces import Params
from specdec.modes import configuration
from specdec.modes.decode import check_finite, Decoder, mean_alpha, row_record
from specdec.theory import speedup


def benchmark(
    target: models.Model,
    draft: models.Model,
    input: str,
    output: str = "-",
    gammas: Sequence[int] = (3, 5, 7),
    temperatures: Sequence[float] = (0.0, 1.0),
    batch_sizes: Sequence[int] = (1,),
    sentences: int = 100,
    repeats: int = 3,
    input_lengths: Sequence[int] = (32, 64, 128),
    max_new_tokens: int = 64,
    seed: int = 0,
    references: str | None = None,
    metrics: Sequence[str] = ("bleu",),
    against: str | None = None,
) -> list[dict[str, Any]]:
  """Times plain and speculative decoding in turns, and the calls that c and v are ratios of.

  Args:
    target: the target.
    draft: the draft.
    input: sources, see `data.prompts.read_requests`.
    output: JSONL records are added to it; '-' is stdout.
    gammas: each is measured.
    temperatures: each is measured.
    batch_sizes: each is measured.
    sentences: how many of the sources are decoded.
    repeats: decodes of each call; their median counts.
    input_lengths: encoder lengths; longer inputs are cut.
    max_new_tokens: longest output.
    seed: of all draws.
    references: plain text, one right output a source, for `metrics`; `.gz` is
      unpacked. None leaves quality out.
    metrics: 'bleu', 'rouge': scores of both decoders' outputs.
    against: 'flax' or 't5x' times another decoder of the same weights instead, in
      turns with ours (`benchmark.against`); T5X must be there for its own, and
      'flax' knows temperature 0 only.

  Returns:
    A record a cell: the ratio of tokens per second with its bootstrap interval,
    compile times apart; alpha, c, v; the theory's prediction for these lengths
    (`predicted`) and for long outputs (`theorem_3_8`); accepted and reached
    drafts by position; quality of both decoders; the settings, the environment
    and gin's configuration. Against another decoder a record a decoder, see
    `benchmark.against.records`.

  Raises:
    ValueError: bad input, another number of references, or `against` is unknown.
    ModuleNotFoundError: T5X is asked for and missing.
  """
  if against is not None:
    against_lib.check(against, temperatures)
  models.pair(target, draft)
  if draft.model is None:
    raise ValueError("draft: expected one with a model to time its calls, found a drafter without.")
  if sentences < 1:
    raise ValueError(f"sentences: expected at least 1, found {sentences}.")
  report.check_output(output, models.resolve(input))
  requests = prompts.read_requests(models.resolve(input), target.vocabulary)
  right = None if references is None else text.read_lines(models.resolve(references), "references")
  if right is not None and len(right) != len(requests):
    raise ValueError(f"references: expected {len(requests)} lines, as {input} has, found {len(right)} in {references}.")
  requests = requests[:sentences]
  requests = [prompts.fit_length(r, input_lengths[-1]) for r in requests]
  params = Params(target.params, draft.params)
  transform = recipes.sampling_transform()
  plain_step = recipes.autoregressive(target.model)
  steps = {gamma: draft.drafts_for(target, gamma) for gamma in gammas}
  provenance, records = configuration.provenance(), []
  for batch_size in batch_sizes:
    for temperature in temperatures:
      shape = dict(batch_size=batch_size, input_lengths=input_lengths, max_new_tokens=max_new_tokens, seed=seed)
      settings = dict(temperature=temperature)
      if against is not None:
        cell = _against(against, target, plain_step, steps, params, temperature, shape, requests, repeats)
        for record in cell:
          records.append(dict(batch_size=batch_size, temperature=temperature, **record, seed=seed, **provenance))
          report.append_record(output, records[-1])
        continue
      plain = Decoder(plain_step, params, settings, **shape)
      for gamma in gammas:
        speculative = Decoder(steps[gamma], params, settings, **shape)
        rows, texts, at = [], {"plain": [], "speculative": []}, []

        def keep(name, group, result, rows=rows, texts=texts, at=at):
          check_finite(result.stop[: len(group)])
          found = [row_record(r, i, result, target.vocabulary, 0.0) for i, r in enumerate(group)]
          texts[name] += [record["prediction"] for record in found]
          if name == "speculative":
            rows += found
            at.append(acceptance.by_position(result.statistics, len(group)))

        comparison = timing.compare(plain, speculative, requests, repeats, keep)
        arguments = speculative.arguments(requests[:batch_size])
        costs = calls.measure_costs(target.model, draft.model, params, arguments[3], arguments[4], transform, gamma)
        alpha = mean_alpha(rows)
        totals = {k: sum(r[k] for r in rows) for k in ("steps", "drafted", "accepted", "committed")}
        low, high = comparison.interval()
        records.append({
            "batch_size": batch_size,
            "temperature": temperature,
            "gamma": gamma,
            "input": input,
            "sentences": len(requests),
            "repeats": repeats,
            "max_new_tokens": max_new_tokens,
            "ratio": comparison.ratio,
            "low": low,
            "high": high,
            "predicted": timing.predicted_ratio(costs, alpha, gamma, [r["committed"] for r in rows]),
            "theorem_3_8": float(speedup.walltime_factor(alpha, gamma, costs.c, costs.v)),
            "theorem_3_8_v1": float(speedup.walltime_factor(alpha, gamma, costs.c)),
            "alpha": alpha,
            "alpha_standard_error": acceptance.estimate_from_sums(
                [(r["alpha"] or 0.0) * r["reached"] for r in rows], [r["reached"] for r in rows]
            ).standard_error,
            "tokens_per_call": totals["committed"] / totals["steps"],
            "c": costs.c,
            "v": costs.v,
            "v_score": costs.v_score,
            "plain_tokens_per_second": float(comparison.plain_tokens.sum() / comparison.plain_seconds.sum()),
            "target_call_us": costs.target * 1e6,
            "costs": costs._asdict(),
            "compile_seconds": dict(zip(("plain", "speculative"), comparison.compile_seconds)),
            "accepted_by_position": sum(accepted for accepted, _ in at).tolist(),
            "reached_by_position": sum(reached for _, reached in at).tolist(),
            "quality": None if right is None else {
                name: quality.score(metrics, found, right[: len(found)]) for name, found in texts.items()
            },
            "equal": comparison.equal,
            "rows": comparison.rows,
            "seed": seed,
            **provenance,
        })
        report.append_record(output, records[-1])
        for line in timing.describe(comparison, costs, alpha, gamma, totals, temperature):
          print(f"B {batch_size}, T {temperature:g}, gamma {gamma}: {line}", file=sys.stderr)
  if against is not None:
    columns = ["batch_size", "temperature", "decoder", "call_ms_per_token", "call_ratio", "loop_ms_per_token"]
    print(report.table(records, [*columns, "loop_ratio", "tokens", "equal", "rows"]), file=sys.stderr)
    return records
  columns = ["batch_size", "temperature", "gamma", "ratio", "low", "high", "predicted", "alpha", "tokens_per_call", "c", "v"]
  print(report.table(records, columns), file=sys.stderr)
  return records


def _against(name, target, plain_step, steps, params, temperature, shape, requests, repeats) -> list[dict[str, Any]]:
  """The yardstick, our plain decoder and the speculative ones in turns; a record each."""

  def pair(step):
    short = shape | dict(max_new_tokens=1)
    return tuple(Decoder(step, params, dict(temperature=temperature), **s) for s in (shape, short))

  with gin.unlock_config():  # T5X registers configurables when it is imported, which is only now.
    theirs = [against_lib.yardstick(name, target, d.max_new_tokens, temperature) for d in pair(plain_step)]
  decoders = {name: tuple(zip(pair(plain_step), theirs)), "plain": pair(plain_step)}
  decoders |= {f"gamma {gamma}": pair(step) for gamma, step in steps.items()}
  timings = against_lib.compare(decoders, requests, shape["batch_size"], repeats)
  return against_lib.records(timings, greedy=temperature == 0)
