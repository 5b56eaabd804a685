"""Table 3 at demo scale: alpha of the shipped draft and of counted n-grams for the shipped target.

Command, after counting German text (1,000 test sentences give about 16,000 tokens; 10,000 are used):

  python -m specdec.main --mode=fit_ngram --gin_file=gin/runs/fit_ngram.gin --input=train.de.gz --output=runs/ngram.npz
  python -m specdec.main --mode=sweep --grid=configs/demo_table3.py --output=results/demo_table3 \
    --gin.INPUT="'test_2016_flickr.en.gz'" --gin.NGRAM="'runs/ngram.npz'"

Hardware: 2 CPU cores. Minutes: an estimate. Expected: no published value is of this pair; those of T5-XXL on English-German
stand beside.
"""

from configs import published

ROWS = {row.drafter: row for row in published.TABLE_3 if (row.target, row.task) == ("t5-xxl", "ende")}
NGRAMS = {"unigram": 1, "bigram": 2, "trigram": 3}
NGRAM_FILES = ["gin/drafters/ngram.gin"]


def ngram_bindings(order: int) -> list[str]:
  given = ["NGRAM = %gin.REQUIRED", "NGRAM_PATH = %NGRAM"]
  return [*given, "DRAFT = @models.load_ngram()", f"NGRAM_ORDER = {order}"]


def _published(drafter: str) -> list[dict]:
  row = ROWS.get("t5-small" if drafter == "shipped" else drafter)
  if row is None:
    return []
  return [{"when": {"temperature": 0.0}, "alpha": row.t0}, {"when": {"temperature": 1.0}, "alpha": row.t1}]


GRID = {
    "name": "demo_table3",
    "title": "Table 3 at demo scale: alpha of drafts for the shipped English-German target",
    "source": f"{published.SOURCE}, Table 3, with other models and data",
    "command": (
        "python -m specdec.main --mode=sweep --grid=configs/demo_table3.py --output=results/demo_table3 "
        "--gin.NGRAM=\"'runs/ngram.npz'\""
    ),
    "hardware": "2 CPU cores",
    "minutes": 10,
    "comparable": False,
    "mode": "measure_alpha",
    "gin_files": ["gin/runs/measure_alpha.gin"],
    "bindings": ["measure_alpha.measure_alpha.input_lengths = (32, 64)"],
    "timed": False,
    "quantities": [
        {"name": "alpha", "measured": "alpha", "error": "standard_error", "published": "alpha"},
        {"name": "counted", "measured": "counted"},
    ],
    "cells": [
        {
            "name": drafter,
            "labels": {"draft": drafter},
            "gin_files": NGRAM_FILES if drafter in NGRAMS else [],
            "bindings": ngram_bindings(NGRAMS[drafter]) if drafter in NGRAMS else [],
            "published": _published(drafter),
        }
        for drafter in ("shipped", *NGRAMS)
    ],
}
