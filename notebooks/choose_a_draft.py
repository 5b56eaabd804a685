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
# # Choose a draft
# What decides is α (how often the draft agrees), c (what a draft call costs) and v (what scoring γ + 1 tokens costs), all
# measured on your own pair and machine. Replace the pair and the sentences by your own.

# %%
from IPython.display import Markdown, SVG, display
import jax
import numpy as np

import specdec
from specdec import models
from specdec import recipes
from specdec.benchmark import calls
from specdec.benchmark import plots
from specdec.benchmark import report
from specdec.drafters import ngram
from specdec.drafters import ngram_counts
from specdec.interfaces import Params
from specdec.modes import measure_alpha
from specdec.probability import transforms
from specdec.theory import speedup

target, shipped = specdec.pretrained("ende")
SOURCES = "pretrained:ende/sentences.txt"
SHAPE = dict(input_lengths=(32,), max_new_tokens=32)

# %% [markdown]
# ## Candidates
# The shipped draft, and n-grams counted from what the target itself writes. (Ten sentences are few; use
# `--mode=fit_ngram` on your training targets. And these ten are the ones that α is measured on, so that the α of the n-grams
# is flattered here.)

# %%
texts = specdec.generate(
    recipes.autoregressive(target.model), jax.random.key(0), Params(target.params),
    target.prompt(open(models.resolve(SOURCES)).read().splitlines(), 32), specdec.sampling(10), max_new_tokens=32,
)
counter = ngram_counts.Counter(target.vocabulary.size, 3)
counter.add([tokens[:length] for tokens, length in zip(np.asarray(texts.tokens), np.asarray(texts.lengths))])
tables, as_model = counter.tables(), ngram.language_model()
counted = lambda order: models.Model(as_model, tables.cut(order), target.vocabulary, ngram.ngram_drafter)
drafts = {"shipped": shipped, "unigram": counted(1), "bigram": counted(2), "trigram": counted(3)}

# %% [markdown]
# ## α

# %%
alphas = {}
for name, draft in drafts.items():
  (record,) = measure_alpha.measure_alpha(
      target, draft, SOURCES, os.devnull, gamma=3, temperatures=(0.0,), batch_size=10, tokens=100, **SHAPE
  )
  alphas[name] = record
display(Markdown(report.table([{"draft": n} | r for n, r in alphas.items()], ["draft", "alpha", "standard_error", "counted"])))

# %% [markdown]
# ## c and v
# Times of the compiled calls. v depends on γ, so that each γ is measured.

# %%
prompt = target.prompt(["A man in a blue shirt is riding a bicycle down the street."], 32)
GAMMAS = (1, 3, 7)
rows = []
for name in ("shipped", "bigram"):
  for gamma in GAMMAS:
    draft = drafts[name]
    costs = calls.measure_costs(
        target.model, draft.model, Params(target.params, draft.params), prompt, transforms.sampling(1),
        recipes.sampling_transform(), gamma, repeats=7,
    )
    alpha = alphas[name]["alpha"]
    factor = float(speedup.walltime_factor(alpha, gamma, costs.c, costs.v))
    rows.append(dict(draft=name, gamma=gamma, alpha=alpha, c=costs.c, v=costs.v, predicted=factor))
display(Markdown(report.table(rows, list(rows[0]))))

# %% [markdown]
# ## The choice
# The best of the predictions for long outputs; below 1 everywhere means: decode plainly. On an accelerator with v = 1 the
# same α and c would allow longer drafts.

# %%
best = max(rows, key=lambda r: r["predicted"])
print(f"best here: {best['draft']} with gamma {best['gamma']}, predicted {best['predicted']:.2f}x")
for name in ("shipped", "bigram"):
  c = float(np.median([r["c"] for r in rows if r["draft"] == name]))
  ideal = speedup.best_gamma(alphas[name]["alpha"], c, max_gamma=20)
  print(f"{name}, if v were 1: gamma {ideal.gamma}, {ideal.factor:.2f}x")
winners = [max((r for r in rows if r["draft"] == name), key=lambda r: r["predicted"]) for name in ("shipped", "bigram")]
points = [(r["alpha"], r["gamma"], r["draft"]) for r in winners]
display(SVG(plots.to_svg(plots.best_gamma(points), "best_gamma")))
