"""`--mode=measure_alpha`: how well a draft fits a target, before anything is timed."""

from collections.abc import Iterator, Sequence
import json
import sys
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from specdec import models
from specdec import recipes
from specdec.benchmark import acceptance
from specdec.benchmark import report
from specdec.data import prompts
from specdec.interfaces import Params
from specdec.modes import configuration
from specdec.modes.decode import check_finite, Decoder


def measure_alpha(
    target: models.Model,
    draft: models.Model,
    input: str,
    output: str = "-",
    tokens: int = 10_000,
    gamma: int = 7,
    temperatures: Sequence[float] = (0.0, 1.0),
    leniences: Sequence[float] = (1.0,),
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
    draft: the draft; one without a model of its own (`Model.model` is None) is
      asked for a proposal before every token of the text.
    input: sources, see `data.prompts.read_requests`.
    output: one JSON record a temperature and lenience; '-' is stdout.
    tokens: stop when the target has written this many (or the input ends, with
      a warning).
    gamma: of the run that counts acceptances.
    temperatures: each is measured.
    leniences: each is measured, on the same text of the target: `sum min(p / l, q)`.
    top_k: 0 is off.
    top_p: 0 is off.
    batch_size: rows of a call.
    input_lengths: encoder lengths; longer inputs are cut.
    max_new_tokens: longest output.
    seed: of all draws.

  Returns:
    A record a temperature and lenience: `alpha`, `standard_error` (sentences as
    units), `tokens`, `sentences`; `counted` (accepted over reached drafted tokens
    of a speculative run on the same inputs) and its two numbers by position; the
    settings, the environment, and gin's configuration.
  """
  models.pair(target, draft)
  report.check_output(output, models.resolve(input))
  requests = prompts.read_requests(models.resolve(input), target.vocabulary)
  requests = [prompts.fit_length(r, input_lengths[-1]) for r in requests]
  params = Params(target.params, draft.params)
  shape = dict(batch_size=batch_size, input_lengths=input_lengths, max_new_tokens=max_new_tokens, seed=seed)
  draft_step = draft.drafts_for(target, gamma)
  betas = _betas_on_text if draft.model is not None else _betas_observed
  provenance, records = configuration.provenance(), []
  for temperature in temperatures:
    settings = dict(temperature=temperature, top_k=top_k, top_p=top_p)
    decoders = [Decoder(draft_step, params, settings | {"lenience": l}, **shape) for l in leniences]
    counts, sums = [], []  # Of each sentence: its tokens, and its betas summed at each lenience.
    accepted, reached = np.zeros((2, len(leniences), draft_step.size), int)
    with tqdm.tqdm(total=tokens, unit="token", disable=not sys.stderr.isatty()) as progress:
      groups = list(prompts.batches(requests, batch_size))
      for group, (lengths, beta) in zip(groups, betas(target, draft, params, settings, shape, groups, leniences)):
        counts += lengths
        sums += beta
        for i, decoder in enumerate(decoders):
          one = acceptance.by_position(decoder(group)[0].statistics, len(group))
          accepted[i], reached[i] = accepted[i] + one[0], reached[i] + one[1]
        progress.update(min(sum(counts), tokens) - progress.n)
        if sum(counts) >= tokens:
          break
    if sum(counts) < tokens:
      logging.warning("The target wrote %d tokens on all of %s, of the %d asked for.", sum(counts), input, tokens)
    for i, lenience in enumerate(leniences):
      estimate = acceptance.estimate_from_sums([s[i] for s in sums], counts)
      counted = float(accepted[i].sum() / max(1, reached[i].sum()))
      records.append({
          "temperature": temperature,
          "lenience": lenience,
          "gamma": gamma,
          "top_k": top_k,
          "top_p": top_p,
          **estimate._asdict(),
          "counted": counted,
          "accepted_by_position": accepted[i].tolist(),
          "reached_by_position": reached[i].tolist(),
          "input": input,
          "max_new_tokens": max_new_tokens,
          "seed": seed,
          **provenance,
      })
      print(
          f"T {temperature:g}, lenience {lenience:g}: alpha {estimate.alpha:.4f} +- {estimate.standard_error:.4f} on "
          f"{estimate.tokens} tokens of {estimate.sentences} sentences; counted {counted:.4f}",
          file=sys.stderr,
      )
  report.write_text(output, "".join(json.dumps(r) + "\n" for r in records))
  return records


def _betas_on_text(
    target, draft, params, settings, shape, groups, leniences
) -> Iterator[tuple[list[int], list[list[float]]]]:
  """For each group the lengths of its texts and the sums of their betas at each lenience; both models score whole texts."""
  plain = Decoder(recipes.autoregressive(target.model), params, settings, **shape)
  transform, levels = recipes.sampling_transform(), jnp.asarray(leniences, jnp.float32)
  for group in groups:
    text, _ = plain(group)
    check_finite(text.stop[: len(group)])
    _, _, _, prompt, sampling, *_ = plain.arguments(group)
    beta = jax.device_get(
        acceptance.beta_on_text(target.model, draft.model, transform, params, prompt, sampling, text.tokens, levels)
    )
    lengths = text.lengths[: len(group)].tolist()
    yield lengths, [beta[:, row, :n].sum(-1).tolist() for row, n in enumerate(lengths)]


def _betas_observed(
    target, draft, params, settings, shape, groups, leniences
) -> Iterator[tuple[list[int], list[list[float]]]]:
  """The same for a drafter that is no model: it proposes before every token."""
  transform = recipes.sampling_transform()
  step = acceptance.observing_step(target.model, draft.drafter(1, transform), transform, recipes.EOS_ID)
  decoders = [Decoder(step, params, settings | {"lenience": l}, **shape) for l in leniences]
  for group in groups:
    outputs = [decoder(group)[0] for decoder in decoders]  # The same text each time: lenience does not touch it.
    check_finite(outputs[0].stop[: len(group)])
    sums = np.stack([output.statistics.acceptance[: len(group), 0] for output in outputs], axis=1)
    yield outputs[0].statistics.visited[: len(group), 0].tolist(), sums.tolist()
