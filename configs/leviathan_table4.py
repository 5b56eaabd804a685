"""Table 4 (A.3): c, the speed-up that Theorem 3.8 expects, and the measured one, for every row of Table 2.

Command: that of configs/leviathan_table2.py with --grid=configs/leviathan_table4.py and another --output.
Hardware: one TPU v4 host (4 chips), batch 1. Minutes: an estimate, 12 cells.
Expected: `configs/published.py`, TABLES_2_AND_4. Published c comes from profiler traces, ours from the compiled calls
that decoding makes; "expected" is Theorem 3.8 with v = 1, as the paper takes it.
"""

from configs import leviathan_table2
from configs import published

QUANTITIES = [
    {"name": "c", "measured": "c", "published": "c"},
    {"name": "v", "measured": "v"},
    {"name": "expected", "measured": "theorem_3_8_v1", "published": "expected", "digits": 1},
    {
        "name": "empirical", "measured": "ratio", "low": "low", "high": "high", "predicted": "theorem_3_8",
        "published": "speed", "digits": 1,
    },
]  # fmt: skip

GRID = leviathan_table2.GRID | {
    "name": "leviathan_table4",
    "title": "Table 4: c, expected and empirical speed-up of T5-XXL",
    "source": f"{published.SOURCE}, Table 4 (A.3)",
    "command": leviathan_table2.GRID["command"].replace("table2", "table4"),
    "minutes": 120,
    "quantities": QUANTITIES,
    "cells": leviathan_table2.cells(lambda row: (row.gamma,)),
}
