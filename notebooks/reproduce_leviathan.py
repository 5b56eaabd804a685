# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %%
# Colab lacks specdec: install it from the clone that holds this notebook, or from SPECDEC_SOURCE (a path or git+https URL).
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("specdec") is None:
  source = os.environ.get("SPECDEC_SOURCE") or next(path for path in (".", "..") if os.path.exists(f"{path}/setup.py"))
  subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", source], check=True)

# %% [markdown]
# # Leviathan, Kalman and Matias 2023: tables and figures
# The paper's formulas against its printed numbers, and the same measurements at demo scale with the shipped pair. The full
# grids are in `configs/`, each with its command; `--mode=sweep` runs them and `--mode=report` draws what this notebook draws.

# %%
import dataclasses

from IPython.display import Markdown, SVG, display

import specdec
from specdec.benchmark import plots
from specdec.benchmark import report
from specdec.modes import benchmark
from specdec.modes import measure_alpha
from specdec.theory import speedup

sys.path[:0] = [path for path in (".", "..") if os.path.exists(f"{path}/configs/published.py")]
try:
  from configs import published
except ImportError:
  published = None  # An installed package without the checkout: the printed numbers are left out.

# %% [markdown]
# ## Table 1: the formulas
# Theorems 3.8 and 3.11 at c = ĉ = 0.

# %%
if published:
  rows = [
      dict(
          alpha=r.alpha, gamma=r.gamma, operations=speedup.operations_factor(r.alpha, r.gamma, 0.0), printed_operations=r.operations,
          speed=speedup.walltime_factor(r.alpha, r.gamma, 0.0), printed_speed=r.speed,
      )
      for r in published.TABLE_1
  ]
  display(Markdown(report.table(rows, list(rows[0]))))

# %% [markdown]
# ## Table 4: expected speed-ups from the printed α and c

# %%
if published:
  rows = [
      dataclasses.asdict(r) | {"theorem_3_8": float(speedup.walltime_factor(r.alpha, r.gamma, r.c))}
      for r in published.TABLES_2_AND_4
  ]
  columns = ["task", "drafter", "temperature", "gamma", "alpha", "c", "expected", "theorem_3_8", "measured"]
  display(Markdown(report.table(rows, columns)))

# %% [markdown]
# ## Measured at demo scale: α
# Σ min(p, q) on text that the target writes, with its standard error, and the counted acceptance beside it.

# %%
target, draft = specdec.pretrained("ende")
SOURCES = "pretrained:ende/sentences.txt"
SHAPE = dict(input_lengths=(32,), max_new_tokens=32)
alphas = measure_alpha.measure_alpha(
    target, draft, SOURCES, os.devnull, gamma=5, leniences=(1.0, 0.5, 0.1), batch_size=10, tokens=100, **SHAPE
)
display(Markdown(report.table(alphas, ["temperature", "lenience", "alpha", "standard_error", "tokens", "counted"])))

# %% [markdown]
# ## Measured at demo scale: speed
# Plain and speculative decoding in turns; the interval is a bootstrap over calls. On a CPU scoring several tokens costs more
# than scoring one (v above 1), and that is in the prediction.

# %%
records = benchmark.benchmark(
    target, draft, SOURCES, os.devnull, gammas=(2, 5), temperatures=(0.0,), sentences=10, repeats=2, **SHAPE
)
columns = ["gamma", "alpha", "tokens_per_call", "c", "v", "theorem_3_8", "predicted", "ratio", "low", "high"]
display(Markdown(report.table(records, columns)))

# %% [markdown]
# ## Figures 2, 3 and 4, with the measured points

# %%
name = lambda r: f"γ {r['gamma']}"
display(SVG(plots.to_svg(plots.tokens_per_call([(r["alpha"], r["tokens_per_call"], name(r)) for r in records]), "figure2")))
best = max(records, key=lambda r: r["ratio"])
display(SVG(plots.to_svg(plots.best_gamma([(best["alpha"], best["gamma"], "shipped pair, T = 0")]), "figure3")))
display(SVG(plots.to_svg(plots.factors([(r["alpha"], r["ratio"], name(r)) for r in records]), "figure4")))
display(SVG(plots.to_svg(plots.speed_by_gamma({"shipped pair, T = 0": records}), "speed")))

# %% [markdown]
# ## Acceptance by place in the draft, and by lenience

# %%
places = {
    f"T {r['temperature']:g}": [a / n for a, n in zip(r["accepted_by_position"], r["reached_by_position"]) if n]
    for r in alphas
    if r["lenience"] == 1
}
display(SVG(plots.to_svg(plots.acceptance_by_position(places), "places")))
by_lenience = {}
for r in alphas:
  point = {"lenience": r["lenience"], "alpha": r["alpha"], "error": r["standard_error"]}
  by_lenience.setdefault(f"T {r['temperature']:g}", []).append(point)
display(SVG(plots.to_svg(plots.acceptance_by_lenience(by_lenience), "lenience")))
