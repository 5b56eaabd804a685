"""Table 2: speed-up of T5-XXL by task, draft, temperature and gamma.

Command, on every host of the TPU VM (launch/tpu_vm.sh does so):

  python -m specdec.main --mode=sweep --grid=configs/leviathan_table2.py --output=gs://BUCKET/table2 \
    --gin.VOCABULARY_PATH="'gs://BUCKET/sentencepiece.model'" \
    --gin.ENDE_XXL="'gs://BUCKET/ende/xxl'" --gin.ENDE_SMALL="'…'" --gin.ENDE_BASE="'…'" --gin.ENDE_LARGE="'…'" \
    --gin.ENDE_INPUT="'wmt14.en'" --gin.ENDE_REFERENCES="'wmt14.de'"        (and the same with CNNDM_)

Hardware: one TPU v4 host (4 chips), batch 1. Minutes: an estimate, 36 cells of loading, compiling and 200 requests.
Expected: `configs/published.py`, TABLES_2_AND_4; the paper prints one gamma a row, the grid adds its neighbours.
"""

from configs import published

TASKS = {"ende": "bleu", "cnndm": "rouge"}
GAMMAS = (3, 5, 7)


def bindings(task: str, draft: str) -> list[str]:
  """Names of the checkpoints and texts that the command gives, e.g. ENDE_XXL."""
  given = {
      "TARGET_CHECKPOINT": f"{task}_xxl", "DRAFT_CHECKPOINT": f"{task}_{draft}",
      "INPUT": f"{task}_input", "REFERENCES": f"{task}_references",
  }  # fmt: skip
  lines = [f"{name.upper()} = %gin.REQUIRED" for name in given.values()]
  return [*lines, *(f"{name} = %{value.upper()}" for name, value in given.items())]


def cells(gammas_of) -> list[dict]:
  """A cell for each row of the table and each gamma that `gammas_of` gives for it."""
  return [
      {
          "name": f"{row.task}-{row.drafter}-t{row.temperature:g}-g{gamma}",
          "labels": {"task": row.task, "draft": row.drafter, "temperature": row.temperature, "gamma": gamma},
          "bindings": [
              *bindings(row.task, row.drafter.removeprefix("t5-")),
              f"DRAFT = @{row.drafter.removeprefix('t5-')}/models.load_model()",
              f"benchmark.benchmark.gammas = ({gamma},)",
              f"benchmark.benchmark.temperatures = ({row.temperature},)",
              f"benchmark.benchmark.metrics = ('{TASKS[row.task]}',)",
          ],
          "published": [
              {"when": {"gamma": row.gamma}, "alpha": row.alpha, "speed": row.measured, "c": row.c, "expected": row.expected}
          ],
      }
      for row in published.TABLES_2_AND_4
      for gamma in gammas_of(row)
  ]


GRID = {
    "name": "leviathan_table2",
    "title": "Table 2: speed-up of T5-XXL on English-German and CNN/DailyMail",
    "source": f"{published.SOURCE}, Table 2",
    "command": "python -m specdec.main --mode=sweep --grid=configs/leviathan_table2.py --output=gs://BUCKET/table2 --gin.…",
    "hardware": "one TPU v4 host (4 chips)",
    "minutes": 360,
    "comparable": True,
    "mode": "benchmark",
    "gin_files": ["gin/runs/leviathan_benchmark.gin"],
    "timed": True,
    "quantities": [
        {"name": "alpha", "measured": "alpha", "error": "alpha_standard_error", "published": "alpha"},
        {
            "name": "speed-up", "measured": "ratio", "low": "low", "high": "high", "predicted": "predicted",
            "published": "speed", "digits": 1,
        },
    ],
    "cells": cells(lambda row: GAMMAS),
}  # fmt: skip
