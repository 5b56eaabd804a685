"""`--mode=measure_alpha`: how well a draft fits a target, before anything is timed."""

from collections.abc import Sequence
import json
import sys
from typing import Any

import jax
import tqdm

from specdec import models
from specdec import recipes
from specdec.benchmark import acceptance
from specdec.benchmark import report
from specdec.data import prompts
from specdec.interfaces import Params
from specdec.modes.decode import check_finite, Decoder


def measure_alpha(
    target: models.Model,
    draft: models.Model,
    input: str,
    output: str = "-",
    tokens: int = 10_000,
    gamma: int = 7,
    temperatures: Sequence[float] = (0.0, 1.0),
    top_k: int = 0,
    top_p: float = 0.0,
    batch_size: int = 16,
    input_lengths: Sequence[int] = (32, 64, 128),
    max_new_tokens: int = 64,
    seed: int = 0,
) -> list[dict[str, Any]]:
  """Estimates alpha by Corollary 3.6 on text the target generates, with the counted acceptance beside it.

  Args:
    target: the target.
    draft: the draft.
    input: sources, see `data.prompts.read_requests`.
    output: one JSON record a temperature; '-' is stdout.
    tokens: stop when the target has written this many (or the input ends).
    gamma: of the run that counts acceptances.
    temperatures: each is measured.
    top_k: 0 is off.
    top_p: 0 is off.
    batch_size: rows of a call.
    input_lengths: encoder lengths; longer inputs are cut.
    max_new_tokens: longest output.
    seed: of all draws.

  Returns:
    A record a temperature: `alpha`, `standard_error` (sentences as units),
    `tokens`, `sentences`, `counted` (accepted over reached drafted tokens of a
    speculative run on the same inputs).
  """
  models.pair(target, draft)
  report.check_output(output, models.resolve(input))
  requests = prompts.read_requests(models.resolve(input), target.vocabulary)
  requests = [prompts.fit_length(r, input_lengths[-1]) for r in requests]
  params = Params(target.params, draft.params)
  transform = recipes.sampling_transform()
  shape = dict(batch_size=batch_size, input_lengths=input_lengths, max_new_tokens=max_new_tokens, seed=seed)
  plain_step = recipes.autoregressive(target.model)
  draft_step = recipes.leviathan(target.model, draft.model, gamma)
  records = []
  for temperature in temperatures:
    settings = dict(temperature=temperature, top_k=top_k, top_p=top_p)
    plain = Decoder(plain_step, params, settings, **shape)
    speculative = Decoder(draft_step, params, settings, **shape)
    betas, accepted, reached = [], 0, 0
    with tqdm.tqdm(total=tokens, unit="token", disable=not sys.stderr.isatty()) as progress:
      for group in prompts.batches(requests, batch_size):
        text, _ = plain(group)
        check_finite(text.stop[: len(group)])
        _, _, _, prompt, sampling, *_ = plain.arguments(group)
        beta = jax.device_get(
            acceptance.beta_on_text(target.model, draft.model, transform, params, prompt, sampling, text.tokens)
        )
        betas += [beta[row, : text.lengths[row]] for row in range(len(group))]
        counted, _ = speculative(group)
        accepted += int(counted.statistics.accepted[: len(group)].sum())
        reached += int(counted.statistics.visited[: len(group)].sum())
        done = sum(len(b) for b in betas)
        progress.update(min(done, tokens) - progress.n)
        if done >= tokens:
          break
    estimate = acceptance.estimate_alpha(betas)
    records.append({"temperature": temperature, "gamma": gamma, **estimate._asdict(), "counted": accepted / reached})
    print(
        f"T {temperature:g}: alpha {estimate.alpha:.4f} +- {estimate.standard_error:.4f} on {estimate.tokens} tokens of "
        f"{estimate.sentences} sentences; counted {accepted / reached:.4f}",
        file=sys.stderr,
    )
  report.write_text(output, "".join(json.dumps(r) + "\n" for r in records))
  return records
