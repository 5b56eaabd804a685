"""Appendix A.5: alpha of drafts for T5-XXL on English-German by lenience, on the same text of the target.

Command: that of configs/leviathan_table3.py with --grid=configs/leviathan_lenience.py and another --output; only the
ENDE_ names are needed.
Hardware: one TPU v4 host (4 chips). Minutes: an estimate, 5 cells. Expected: `configs/published.py`, LENIENCE_ALPHAS.
"""

from configs import leviathan_table3
from configs import published

GRID = leviathan_table3.GRID | {
    "name": "leviathan_lenience",
    "title": "Appendix A.5: alpha by lenience, T5-XXL on English-German",
    "source": f"{published.SOURCE}, appendix A.5",
    "command": leviathan_table3.GRID["command"].replace("table3", "lenience"),
    "minutes": 60,
    "bindings": [f"measure_alpha.measure_alpha.leniences = {published.LENIENCES}"],
    "cells": [
        {
            "name": f"ende-{row.drafter}-t{row.temperature:g}",
            "labels": {"draft": row.drafter, "temperature": row.temperature},
            "gin_files": leviathan_table3.gin_files(row.drafter),
            "bindings": [
                *leviathan_table3.bindings("ende", row.drafter),
                f"measure_alpha.measure_alpha.temperatures = ({row.temperature},)",
            ],
            "published": [
                {"when": {"lenience": lenience}, "alpha": alpha}
                for lenience, alpha in zip(published.LENIENCES, row.alphas)
            ],
        }
        for row in published.LENIENCE_ALPHAS
    ],
}
