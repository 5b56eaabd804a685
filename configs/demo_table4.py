"""Table 4 at demo scale: c, v, the expected and the measured speed-up of the shipped English-German pair.

Command: that of configs/demo_table2.py with --grid=configs/demo_table4.py and another --output.
Hardware: 2 CPU cores. Minutes: an estimate. Expected: no published value is of this pair; those of T5-small stand beside.
"""

from configs import demo_table2
from configs import leviathan_table4
from configs import published

GRID = demo_table2.GRID | {
    "name": "demo_table4",
    "title": "Table 4 at demo scale: c, expected and empirical speed-up of the shipped English-German pair",
    "source": f"{published.SOURCE}, Table 4 (A.3), with other models and data",
    "command": demo_table2.GRID["command"].replace("table2", "table4"),
    "minutes": 5,
    "quantities": leviathan_table4.QUANTITIES,
    "cells": [demo_table2.cell(temperature, gamma, (1,)) for temperature in (0.0, 1.0) for gamma in (3, 7)],
}
