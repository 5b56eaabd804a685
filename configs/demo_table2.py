"""Table 2 at demo scale: the shipped English-German pair by temperature and gamma, and by batch size at gamma 3.

Command, with one's own test sentences (without the two --gin the ten shipped sentences are used, without BLEU):

  python -m specdec.main --mode=sweep --grid=configs/demo_table2.py --output=results/demo_table2 \
    --gin.INPUT="'test_2016_flickr.en.gz'" --gin.REFERENCES="'test_2016_flickr.de.gz'"

Hardware: 2 CPU cores. Minutes: an estimate for 60 sentences a cell. Expected: no published value is of this pair; those
of T5-small drafting for T5-XXL stand beside.
"""

from configs import published

SMALL = {row.temperature: row for row in published.TABLES_2_AND_4 if (row.task, row.drafter) == ("ende", "t5-small")}
BATCHES = {gamma: ((1,),) for gamma in (1, 3, 5, 7)} | {3: ((1,), (2, 4, 8))}


def cell(temperature: float, gamma: int, batch_sizes: tuple[int, ...]) -> dict:
  row = SMALL[temperature]
  batch = "" if batch_sizes == (1,) else "-batches"
  return {
      "name": f"t{temperature:g}-g{gamma}{batch}",
      "labels": {"draft": "shipped", "temperature": temperature, "gamma": gamma},
      "bindings": [
          f"benchmark.benchmark.gammas = ({gamma},)",
          f"benchmark.benchmark.temperatures = ({temperature},)",
          f"benchmark.benchmark.batch_sizes = {batch_sizes}",
      ],
      "published": [
          {
              "when": {"batch_size": 1, "gamma": row.gamma}, "alpha": row.alpha, "speed": row.measured, "c": row.c,
              "expected": row.expected,
          }
      ],
  }  # fmt: skip


GRID = {
    "name": "demo_table2",
    "title": "Table 2 at demo scale: speed-up of the shipped English-German pair",
    "source": f"{published.SOURCE}, Table 2, with other models and data",
    "command": "python -m specdec.main --mode=sweep --grid=configs/demo_table2.py --output=results/demo_table2",
    "hardware": "2 CPU cores",
    "minutes": 15,
    "comparable": False,
    "mode": "benchmark",
    "gin_files": ["gin/runs/benchmark.gin"],
    "bindings": ["benchmark.benchmark.sentences = 60", "benchmark.benchmark.input_lengths = (32, 64)"],
    "timed": True,
    "quantities": [
        {"name": "alpha", "measured": "alpha", "error": "alpha_standard_error", "published": "alpha"},
        {"name": "tokens per call", "measured": "tokens_per_call"},
        {
            "name": "speed-up", "measured": "ratio", "low": "low", "high": "high", "predicted": "predicted",
            "published": "speed", "digits": 1,
        },
    ],
    "cells": [
        cell(temperature, gamma, batch_sizes)
        for temperature in (0.0, 1.0)
        for gamma, batches in BATCHES.items()
        for batch_sizes in batches
    ],
}  # fmt: skip
