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
# # Why it is exact
# A token x is drawn from the draft's law q and accepted with probability min(1, p(x) / q(x)); after a rejection the token is
# drawn from the residual max(0, p - q), normalised. The output law is then the target's p, whatever q is.

# %%
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np

from specdec.acceptance import rejection
from specdec.interfaces import Draft, Law
from specdec.probability import transforms
from specdec.theory import acceptance
from specdec.trees import topology

p = np.array([0.35, 0.30, 0.20, 0.10, 0.05])
q = np.array([0.10, 0.45, 0.05, 0.10, 0.30])
x = np.arange(len(p))

# %% [markdown]
# ## By picture
# What p and q share is accepted; its area is β, the acceptance probability. What p has above q is exactly what is missing.

# %%
shared, missing, surplus = np.minimum(p, q), np.maximum(p - q, 0), np.maximum(q - p, 0)
figure, axes = plt.subplots(figsize=(6, 3.2))
axes.bar(x, shared, color="#1a7f37", label=f"shared: accepted, β = {shared.sum():.2f}")
axes.bar(x, missing, bottom=shared, color="#0969da", label="only p: the residual")
axes.bar(x, surplus, bottom=shared, color="none", edgecolor="#cf222e", hatch="//", label="only q: rejected")
axes.set_xticks(x, [f"token {i}" for i in x])
axes.legend()
plt.show()

# %% [markdown]
# ## By enumeration
# The probability of each way to emit each token, summed: drafted and accepted, or rejected and drawn from the residual.

# %%
law = np.zeros_like(p)
for drafted in x:
  accept = min(1.0, p[drafted] / q[drafted])
  law[drafted] += q[drafted] * accept
  law += q[drafted] * (1 - accept) * missing / missing.sum()
print("output law:", law.round(6), " target:", p)
np.testing.assert_allclose(law, p, atol=1e-12)

# %% [markdown]
# β is `theory.acceptance.beta`, and 1 - β is the distance of the two laws in total variation.

# %%
beta = float(acceptance.beta(jnp.asarray(p), jnp.asarray(q)))
print(f"beta {beta:.4f} = 1 - |p - q| / 2 = {1 - np.abs(p - q).sum() / 2:.4f}")

# %% [markdown]
# ## By the code that decodes
# `rejection.decide` takes its uniforms as an argument. With one draft it reads two of them: the square of their values is cut
# into a fine grid, and each cell counts by its area.

# %%
SIDE = 400
middle = (np.arange(SIDE) + 0.5) / SIDE
u = np.stack([a.ravel() for a in np.meshgrid(middle, middle, indexing="ij")], axis=-1).astype(np.float32)
rows = len(u)
log = lambda values, places: jnp.broadcast_to(jnp.log(jnp.asarray(values, jnp.float32)), (rows, places, len(p)))
settings = transforms.sampling(rows, temperature=1.0)
decide = jax.jit(rejection.decide)
found = np.zeros(len(p))
for drafted in x:
  tokens = jnp.full((rows, 1), int(drafted), jnp.int32)
  verdict = decide(jnp.asarray(u), Draft(tokens, topology.chain(2), log(q, 1)), Law(log(p, 2), log(p, 2)), settings)
  first = np.where(np.asarray(verdict.count) == 1, drafted, np.asarray(verdict.next_token))
  found += q[drafted] * np.bincount(first, minlength=len(p)) / rows
print("through the real rule:", found.round(3), " target:", p)
np.testing.assert_allclose(found, p, atol=2 / SIDE)

# %% [markdown]
# ## What goes wrong otherwise
# A draft drawn by argmax but scored as if it were drawn from q: the output law is no longer p.

# %%
best = int(np.argmax(q))
accept = min(1.0, p[best] / q[best])
wrong = accept * np.eye(len(p))[best] + (1 - accept) * missing / missing.sum()
figure, axes = plt.subplots(figsize=(6, 3))
axes.bar(x - 0.2, p, 0.4, label="target p", color="#0969da")
axes.bar(x + 0.2, wrong, 0.4, label="argmax drafts scored with q", color="#cf222e")
axes.set_xticks(x, [f"token {i}" for i in x])
axes.legend()
plt.show()
print("A drafter here returns the law that its tokens were drawn from; for argmax that is a point mass, and all is well:")
point = np.eye(len(p))[best]
rest = np.maximum(p - point, 0)
right = min(1.0, p[best]) * point + (1 - p[best]) * rest / rest.sum()
print(right.round(6))
np.testing.assert_allclose(right, p, atol=1e-12)
