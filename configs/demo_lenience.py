"""Appendix A.5 at demo scale: alpha by lenience, of the shipped draft and of counted n-grams.

Command: that of configs/demo_table3.py with --grid=configs/demo_lenience.py and another --output.
Hardware: 2 CPU cores. Minutes: an estimate. Expected: no published value is of this pair; those of T5-XXL on English-German
stand beside.
"""

from configs import demo_table3
from configs import published

ROWS = {(row.drafter, row.temperature): row for row in published.LENIENCE_ALPHAS}
DRAFTS = (("shipped", 1.0), ("shipped", 0.0), ("unigram", 1.0), ("bigram", 1.0))


def _published(drafter: str, temperature: float) -> list[dict]:
  row = ROWS["t5-small" if drafter == "shipped" else drafter, temperature]
  return [{"when": {"lenience": l}, "alpha": alpha} for l, alpha in zip(published.LENIENCES, row.alphas)]


GRID = demo_table3.GRID | {
    "name": "demo_lenience",
    "title": "Appendix A.5 at demo scale: alpha by lenience for the shipped English-German target",
    "source": f"{published.SOURCE}, appendix A.5, with other models and data",
    "command": demo_table3.GRID["command"].replace("table3", "lenience"),
    "bindings": [*demo_table3.GRID["bindings"], f"measure_alpha.measure_alpha.leniences = {published.LENIENCES}"],
    "cells": [
        {
            "name": f"{drafter}-t{temperature:g}",
            "labels": {"draft": drafter, "temperature": temperature},
            "gin_files": demo_table3.NGRAM_FILES if drafter in demo_table3.NGRAMS else [],
            "bindings": [
                *(demo_table3.ngram_bindings(demo_table3.NGRAMS[drafter]) if drafter in demo_table3.NGRAMS else []),
                f"measure_alpha.measure_alpha.temperatures = ({temperature},)",
            ],
            "published": _published(drafter, temperature),
        }
        for drafter, temperature in DRAFTS
    ],
}
