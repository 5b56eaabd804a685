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
# # Quickstart
# A small English-German pair travels with `specdec`. Its target decides every token; its draft proposes several at a time,
# and the target checks them in one call.

# %%
import jax
from IPython.display import HTML, display

import specdec
from specdec import recipes
from specdec.benchmark import trace as trace_lib

target, draft = specdec.pretrained("ende")
GAMMA = 4
step = specdec.leviathan(target.model, draft.model, gamma=GAMMA)
params = specdec.Params(target.params, draft.params)
SENTENCES = [
    "A brown dog is running along the beach.",
    "Two children are playing with a red ball in the garden.",
    "A man in a blue shirt is riding a bicycle down the street.",
]
prompt = target.prompt(SENTENCES)

# %% [markdown]
# ## Decode
# `generate` is one jitted program: encoder, loop and caches. Each row is a request of its own.

# %%
greedy = specdec.sampling(batch=len(SENTENCES), temperature=0.0)
output = specdec.generate(step, jax.random.key(0), params, prompt, greedy, max_new_tokens=48, trace=True)
for source, text, steps, length in zip(SENTENCES, target.texts(output), output.statistics.steps, output.lengths):
  print(f"{source}\n  {text}\n  {length} tokens in {steps} target calls")

# %% [markdown]
# ## See the tokens
# One line a target call: accepted drafts are green, a rejected one is red and struck out, the target's own token is blue.

# %%
pieces = target.vocabulary.pieces()
drawn = []
for row, source in enumerate(SENTENCES):
  arrays = [field[row] for field in jax.device_get(output.trace)]
  drawn.append((source, list(trace_lib.calls(*arrays, lambda token: trace_lib.readable(pieces[token])))))
display(HTML(trace_lib.to_html(drawn, title="Three decodes")))

# %% [markdown]
# ## It is what the target says anyway
# Plain decoding gives the same tokens.

# %%
plain = specdec.generate(recipes.autoregressive(target.model), jax.random.key(0), params, prompt, greedy, max_new_tokens=48)
same = bool((plain.tokens == output.tokens).all())
print(f"equal to plain decoding: {same}; target calls: {int(plain.statistics.steps.sum())} without the draft, "
      f"{int(output.statistics.steps.sum())} with it")
assert same

# %% [markdown]
# ## Sampling
# Temperature, top-k, top-p and keys are arrays with a value a row: changing them compiles nothing again.

# %%
warm = specdec.sampling(batch=len(SENTENCES), temperature=[0.0, 0.7, 1.0], top_p=0.9)
for seed in range(2):
  sampled = specdec.generate(step, jax.random.key(seed), params, prompt, warm, max_new_tokens=48, trace=True)
  print(*target.texts(sampled), sep="\n", end="\n\n")
