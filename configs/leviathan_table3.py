"""Table 3: alpha of every draft for T5-XXL, n-grams included, on 10,000 tokens that the target writes.

Command, after --mode=fit_ngram has counted the training targets of each task:

  python -m specdec.main --mode=sweep --grid=configs/leviathan_table3.py --output=gs://BUCKET/table3 \
    --gin.VOCABULARY_PATH=… --gin.ENDE_XXL=… --gin.ENDE_SMALL=… --gin.ENDE_BASE=… --gin.ENDE_LARGE=… \
    --gin.ENDE_INPUT=… --gin.ENDE_NGRAM="'gs://BUCKET/ende/ngram.npz'"        (and the same with CNNDM_)

Hardware: one TPU v4 host (4 chips). Minutes: an estimate, 10 cells. Expected: `configs/published.py`, TABLE_3. Its rows
of LaMDA and of the GPT-like pair are left out: those models are not public.
"""

from configs import published

NGRAMS = {"unigram": 1, "bigram": 2}


def bindings(task: str, drafter: str) -> list[str]:
  """Names of the checkpoints and texts that the command gives, and the draft."""
  own = "ngram" if drafter in NGRAMS else drafter.removeprefix("t5-")
  given = {"TARGET_CHECKPOINT": f"{task}_xxl", "INPUT": f"{task}_input"}
  given["NGRAM_PATH" if drafter in NGRAMS else "DRAFT_CHECKPOINT"] = f"{task}_{own}"
  lines = [f"{name.upper()} = %gin.REQUIRED" for name in given.values()]
  lines += [f"{name} = %{value.upper()}" for name, value in given.items()]
  if drafter in NGRAMS:  # No checkpoint of a draft is read.
    return [*lines, "DRAFT_CHECKPOINT = None", "DRAFT = @models.load_ngram()", f"NGRAM_ORDER = {NGRAMS[drafter]}"]
  return [*lines, f"DRAFT = @{own}/models.load_model()"]


def gin_files(drafter: str) -> list[str]:
  return ["gin/drafters/ngram.gin"] if drafter in NGRAMS else []


ROWS = [row for row in published.TABLE_3 if row.target == "t5-xxl"]

GRID = {
    "name": "leviathan_table3",
    "title": "Table 3: alpha of drafts for T5-XXL",
    "source": f"{published.SOURCE}, Table 3",
    "command": "python -m specdec.main --mode=sweep --grid=configs/leviathan_table3.py --output=gs://BUCKET/table3 --gin.…",
    "hardware": "one TPU v4 host (4 chips)",
    "minutes": 100,
    "comparable": True,
    "mode": "measure_alpha",
    "gin_files": ["gin/runs/leviathan_alpha.gin"],
    "timed": False,
    "quantities": [
        {"name": "alpha", "measured": "alpha", "error": "standard_error", "published": "alpha"},
        {"name": "counted", "measured": "counted"},
    ],
    "cells": [
        {
            "name": f"{row.task}-{row.drafter}",
            "labels": {"task": row.task, "draft": row.drafter},
            "gin_files": gin_files(row.drafter),
            "bindings": bindings(row.task, row.drafter),
            "published": [
                {"when": {"temperature": 0.0}, "alpha": row.t0},
                {"when": {"temperature": 1.0}, "alpha": row.t1},
            ],
        }
        for row in ROWS
    ],
}
