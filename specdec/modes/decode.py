"""`--mode=decode`: a file of requests in, a file of JSONL records out."""

from collections.abc import Callable, Sequence
import contextlib
import fcntl
import hashlib
import json
import os
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from specdec import loop
from specdec import models
from specdec import recipes
from specdec.benchmark import calls
from specdec.benchmark import report
from specdec.benchmark import timing
from specdec.data import prompts
from specdec.interfaces import LanguageModel, Params, Prompt, Step, StopCode
from specdec.probability import transforms

Array = jax.Array

PREFIX_LENGTHS = (8, 16, 32, 64, 128, 256, 512)


def row_record(
    request: prompts.Request, row: int, output: loop.Output, vocabulary, seconds: float, tree: bool = False
) -> dict[str, Any]:
  """The JSONL record of row `row` of an `Output` whose arrays are on the host; of a tree, positions are depths."""
  s = output.statistics
  ids = output.tokens[row, : output.lengths[row]].tolist()
  visited = s.visited[row]
  at_least = np.flip(np.cumsum(np.flip(s.histogram[row])))  # steps that accepted i tokens or more
  accepted_at, tried = at_least[1:], at_least[:-1] if tree else visited
  return {
      "inputs": request.inputs if request.inputs is not None else vocabulary.decode(request.input_ids),
      "prediction": vocabulary.decode([*request.prefix_ids, *ids]),
      "output_ids": ids,
      "log_prob": float(s.log_prob[row]),
      "steps": int(s.steps[row]),
      "drafted": int(s.drafted[row]),
      "accepted": int(s.accepted[row]),
      "committed": int(s.committed[row]),
      "reached": int(visited.sum()),
      "acceptance_histogram": s.histogram[row].tolist(),
      "acceptance_per_position": [round(float(a / v), 6) if v else None for a, v in zip(accepted_at, tried)],
      "alpha": round(float(s.acceptance[row].sum() / visited.sum()), 6) if visited.sum() else None,
      "stop": StopCode(int(output.stop[row])).name,
      "seconds": round(seconds, 6),
  }


class Decoder:
  """A step with its parameters and settings, called on requests.

  Args:
    step: from `recipes`.
    params: of target and drafter.
    settings: keyword arguments of `probability.transforms.sampling`.
    batch_size: rows of a call; missing rows repeat the last request.
    input_lengths: rising encoder lengths; each is compiled once.
    max_new_tokens: longest output.
    seed: the key of a request is this folded with its line number, so that
      neither batching nor resuming changes its tokens.
    trace: also return every step.
  """

  def __init__(
      self,
      step: Step,
      params: Params,
      settings: dict[str, Any],
      batch_size: int = 1,
      input_lengths: Sequence[int] = (32, 64, 128),
      max_new_tokens: int = 64,
      seed: int = 0,
      trace: bool = False,
  ):
    if batch_size < 1:
      raise ValueError(f"batch_size: expected at least 1, found {batch_size}.")
    if max_new_tokens < 1:
      raise ValueError(f"max_new_tokens: expected at least 1, found {max_new_tokens}.")
    self.step, self.params, self.batch_size = step, params, batch_size
    self.input_lengths, self.max_new_tokens, self.trace = input_lengths, max_new_tokens, trace
    self._sampling = transforms.sampling(batch_size, **settings)
    self._key = jax.random.key(seed)
    self._fold = jax.jit(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))

  def arguments(self, requests: Sequence[prompts.Request]) -> tuple:
    """The device arguments of `loop.generate` for at most `batch_size` requests."""
    length = prompts.bucket(max(len(r.input_ids) for r in requests), self.input_lengths)
    longest = max(len(r.prefix_ids) for r in requests)
    width = 1 if longest == 0 else 1 + prompts.bucket(longest, PREFIX_LENGTHS)
    arrays = prompts.to_arrays(requests, self.batch_size, length, width)
    lines = [r.line for r in requests] + [0] * (self.batch_size - len(requests))
    keys = self._fold(self._key, jnp.asarray(lines, jnp.uint32))
    prompt = Prompt(*jax.device_put(tuple(arrays)))
    return self.step, keys, self.params, prompt, self._sampling, self.max_new_tokens, None, self.trace

  def __call__(self, requests: Sequence[prompts.Request]) -> tuple[loop.Output, float]:
    """Decodes at most `batch_size` requests: the output on the host, and the seconds it took."""
    arguments = self.arguments(requests)
    started = time.perf_counter()
    output = jax.block_until_ready(self.run(*arguments))
    seconds = time.perf_counter() - started
    return jax.device_get(output), seconds

  def run(self, *arguments) -> loop.Output:
    """The jitted program on `arguments`."""
    return loop.generate(*arguments)

  def compile(self, requests: Sequence[prompts.Request]) -> None:
    """Compiles every encoder length that `requests` will need, so that no timing holds a compilation."""
    done = set()
    for group in prompts.batches(requests, self.batch_size):
      arguments = self.arguments(group)
      shape = (arguments[3].tokens.shape, arguments[3].prefix.shape)
      if shape not in done:
        done.add(shape)
        jax.block_until_ready(self.run(*arguments))


class Records:
  """An output file written line by line under another name and renamed when whole.

  An interrupted run leaves `PATH.partial` and its settings beside it; the next
  run with the same settings goes on after its last whole line. A run holds a
  lock on `PATH.partial`, so that a second one cannot write into it.
  """

  def __init__(self, path: str, settings: dict[str, Any]):
    self.done: list[dict[str, Any]] = []
    self._is_stdout, self._is_stream = path == "-", report.is_stream(path)
    if self._is_stdout and sys.stdout is None:  # What Python makes of a closed one.
      raise ValueError("output: expected standard output, found it closed; name a file.")
    if self._is_stream:
      self._file = sys.stdout if self._is_stdout else open(path, "w", encoding="utf-8")
      return
    path = os.path.realpath(path)  # A link stays, and the file that it names is replaced.
    self._path, self._partial, self._settings = path, path + ".partial", path + ".partial.settings"
    try:
      os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
      self._file = self._open(json.dumps(settings, sort_keys=True, default=str))
    except OSError as error:
      raise ValueError(f"output: cannot write {path} ({error.strerror}); name another file.") from error

  def _open(self, settings: str):
    if os.path.isdir(self._path):
      raise ValueError(f"output: expected a file name, found the folder {self._path}.")
    with contextlib.ExitStack() as on_error:
      file = on_error.enter_context(open(self._partial, "a", encoding="utf-8"))
      self._lock(file)
      with open(self._partial, "rb") as partial:
        whole = partial.read()
      whole = whole[: whole.rfind(b"\n") + 1]  # The last line may have been cut by the interruption.
      if whole:
        self._check_settings(settings)
      else:  # Nothing is lost by beginning anew.
        with open(self._settings, "w", encoding="utf-8") as partial:
          partial.write(settings)
      self.done = [json.loads(line) for line in whole.splitlines()]
      file.truncate(len(whole))
      on_error.pop_all()
    return file

  def _lock(self, file) -> None:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      ours = os.path.samestat(os.fstat(file.fileno()), os.stat(self._partial))
    except (BlockingIOError, FileNotFoundError):  # Held by another run, or renamed by it since it was opened.
      ours = False
    except OSError:  # A file system without locks.
      ours = True
    if not ours:
      raise ValueError(f"output: another run is writing {self._partial}; wait for it, or name another file.")

  def _check_settings(self, settings: str) -> None:
    begun = None
    if os.path.exists(self._settings):
      with open(self._settings, encoding="utf-8") as file:
        begun = file.read()
    if begun != settings:
      raise ValueError(
          f"output: {self._partial} was begun with other settings or inputs; finish it with those, or remove it."
      )

  def write(self, record: dict[str, Any]) -> None:
    self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
    self._file.flush()

  def finish(self) -> None:
    if not self._is_stream:
      os.replace(self._partial, self._path)  # Still locked: every line was flushed.
      os.remove(self._settings)
    self.close()

  def close(self) -> None:
    if not self._is_stdout:
      self._file.close()


def check_finite(stops: Sequence[int]) -> None:
  """Raises a `ValueError` if one of the stop codes says that the model's output was not finite."""
  stopped = sum(int(stop) == StopCode.NOT_FINITE for stop in stops)
  if stopped:
    raise ValueError(f"model: its output is not finite in {stopped} of {len(stops)} requests; check its weights.")


def mean_alpha(records: Sequence[dict[str, Any]]) -> float:
  """The paper's alpha over records: the mean of sum min(p, q) over the drafted places that were reached."""
  records = [r for r in records if r["alpha"] is not None]
  reached = sum(r["reached"] for r in records)
  return sum(r["alpha"] * r["reached"] for r in records) / reached if reached else float("nan")


def decode(
    target: models.Model,
    draft: models.Model | None = None,
    gamma: int = 7,
    input: Any = "-",
    output: str = "-",
    jsonl: bool | None = None,
    split: str = "test",
    batch_size: int = 1,
    input_lengths: Sequence[int] = (32, 64, 128),
    max_new_tokens: int = 64,
    on_long: str = "truncate",
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 0.0,
    lenience: float = 1.0,
    min_length: int | None = None,
    repetition_penalty: float | None = None,
    banned_ids: Sequence[int] = (),
    seed: int = 0,
    compare: int = 20,
    method: Callable[[LanguageModel, LanguageModel], Step] | None = None,
) -> list[dict[str, Any]]:
  """Decodes a file and says on stderr how fast it went.

  Args:
    target: the model whose law is kept.
    draft: drafts for it; None decodes plainly.
    gamma: tokens drafted a step.
    method: builds the step from target and draft, such as `recipes.dyspec` with
      its size bound (gin/trees); None is `recipes.leviathan` with gamma.
    input: plain text or JSONL, see `data.prompts.read_requests`; '-' is stdin. Or
      a seqio task, such as `data.tasks.parallel_text` makes, whose inputs are decoded.
    output: JSONL; '-' is stdout. Written as it comes, renamed when whole.
    jsonl: None decides by the ending of `input`.
    split: of a seqio task.
    batch_size: requests of a call; `seconds` of a record is then its batch's.
    input_lengths: encoder lengths; longer inputs are cut or refused.
    max_new_tokens: longest output, at least 1.
    on_long: 'truncate' (with a warning) or 'error', for inputs over the last
      of `input_lengths`.
    temperature: 0 is argmax.
    top_k: 0 is off.
    top_p: 0 is off.
    lenience: below 1 is lossy.
    min_length: tokens before EOS is possible.
    repetition_penalty: see `probability.transforms.Sampling`.
    banned_ids: tokens that are never emitted.
    seed: of all draws.
    compare: requests that are decoded with and without speculation, in turns,
      for the summary; 0 leaves it out.

  Returns:
    The records, in the order of the input.

  Raises:
    ValueError: bad input, output, settings or a draft of another vocabulary; or,
      after all records are written, the model's output was not finite.
  """
  target, draft = models.pair(target, draft)
  if isinstance(input, str):
    source = models.resolve(input)
    report.check_output(output, source)
    requests = prompts.read_requests(source, target.vocabulary, jsonl)
  else:
    from specdec.data import tasks  # Brings TensorFlow.

    requests, input = tasks.requests(input, split, target.vocabulary), f"task {input.name}"
  requests = [prompts.fit_length(r, input_lengths[-1], on_long) for r in requests]
  for request in requests:
    if len(request.prefix_ids) > PREFIX_LENGTHS[-1]:
      raise ValueError(
          f"input: line {request.line} of {input}: expected a prefix of at most {PREFIX_LENGTHS[-1]} tokens, found "
          f"{len(request.prefix_ids)}."
      )
  settings = dict(temperature=temperature, top_k=top_k, top_p=top_p, lenience=lenience)
  settings |= dict(min_length=min_length, repetition_penalty=repetition_penalty)
  if banned_ids:
    if not all(0 <= token < target.vocabulary.size for token in banned_ids):
      raise ValueError(f"banned_ids: expected ids in [0, {target.vocabulary.size}), found {list(banned_ids)}.")
    settings["banned"] = np.isin(np.arange(target.vocabulary.size), banned_ids).tolist()
  shape = dict(batch_size=batch_size, input_lengths=tuple(input_lengths), max_new_tokens=max_new_tokens, seed=seed)
  params = Params(target.params, draft.params if draft else None)
  plain = Decoder(recipes.autoregressive(target.model), params, settings, **shape)
  decoder = plain
  if draft is not None:
    step = method(target.model, draft.model) if method else draft.drafts_for(target, gamma)
    gamma = step.size
    decoder = Decoder(step, params, settings, **shape)
  inputs_hash = hashlib.sha256(repr([r[1:] for r in requests]).encode()).hexdigest()
  weights_hash = fingerprint(params)
  run = {"gamma": gamma if draft else 0, "inputs": inputs_hash, "weights": weights_hash}
  if method:
    run["method"] = getattr(method, "__name__", "given")
  records = Records(output, settings | shape | run)
  results = list(records.done)
  rest = requests[len(results) :]
  progress = tqdm.tqdm(total=len(requests), initial=len(results), unit="line", disable=not sys.stderr.isatty())
  with contextlib.closing(records), progress, contextlib.redirect_stdout(sys.stderr):
    decoder.compile(rest)
    for group in prompts.batches(rest, batch_size):
      result, seconds = decoder(group)
      for row, request in enumerate(group):
        record = row_record(request, row, result, target.vocabulary, seconds, tree=method is not None)
        if record["stop"] == StopCode.NOT_FINITE.name:
          print(f"line {request.line}: stopped, the model's output is not finite.", file=sys.stderr)
        records.write(record)
        results.append(record)
        progress.update()
    records.finish()
  check_finite([StopCode[r["stop"]] for r in results])
  if compare and draft is not None:
    sample = requests[:compare]
    costs = None  # The closed forms are those of a chain.
    if method is None:
      arguments = decoder.arguments(sample[:1])
      costs = calls.measure_costs(
          target.model, draft.model, params, *arguments[3:5], recipes.sampling_transform(), gamma
      )
    totals = {k: sum(r[k] for r in results) for k in ("steps", "drafted", "accepted", "committed")}
    comparison = timing.compare(plain, decoder, sample)
    for line in timing.describe(comparison, costs, mean_alpha(results), gamma, totals, temperature):
      print(line, file=sys.stderr)
  return results


def fingerprint(params: Any) -> str:
  """A cheap hash that tells one set of weights from another."""
  sums = [float(jnp.sum(jnp.abs(leaf.astype(jnp.float32)))) for leaf in jax.tree.leaves(params)]
  return hashlib.sha256(repr(sums).encode()).hexdigest()
