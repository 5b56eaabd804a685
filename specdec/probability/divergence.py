"""How far two laws over the vocabulary are apart.

The acceptance of speculative sampling is a divergence (`overlap`, `d_lk`), and
distillation of a draft minimises one. The first three functions take
probabilities; the Kullback-Leibler family takes log-probabilities, because a
probability that underflows to 0 would make it infinite. All reduce the last
axis, broadcast the axes before it, run under `jit`, `vmap` and `grad`, and
compute in float32 when given less. NaN goes through to the result.
"""

import math

import jax
import jax.numpy as jnp

Array = jax.Array


def aligned(p: Array, q: Array, names: tuple[str, str] = ("p", "q")) -> tuple[Array, Array]:
  """The door: two floating arrays over one vocabulary, brought to one shape and dtype.

  Only shapes and dtypes are checked, so that the answer is the same under `jit`.

  Args:
    p: [.., V], any floating dtype.
    q: [.., V], any floating dtype.
    names: what to call the two in an error.

  Returns:
    Both, of their common shape; float32, or float64 if either is.

  Raises:
    ValueError: different V, shapes that do not broadcast, or not floating.

  Example:
    >>> import jax.numpy as jnp
    >>> [x.shape for x in aligned(jnp.ones([3, 1, 8]), jnp.ones([2, 8], jnp.bfloat16))]
    [(3, 2, 8), (3, 2, 8)]
  """
  p, q = jnp.asarray(p), jnp.asarray(q)
  for name, x in zip(names, (p, q), strict=True):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      raise ValueError(f"{name}: expected a floating dtype, found {x.dtype}.")
    if x.ndim == 0 or x.shape[-1] == 0:
      raise ValueError(f"{name}: expected shape [.., V] with V of at least 1, found {x.shape}.")
  if p.shape[-1] != q.shape[-1]:
    raise ValueError(
        f"{names[1]}: expected the vocabulary of {names[0]}, V = {p.shape[-1]}, found V = {q.shape[-1]}."
    )
  try:
    shape = jnp.broadcast_shapes(p.shape, q.shape)
  except ValueError as error:
    raise ValueError(f"{names[1]}: expected a shape that broadcasts with {p.shape}, found {q.shape}.") from error
  dtype = jnp.float64 if jnp.float64 in (p.dtype, q.dtype) else jnp.float32
  return jnp.broadcast_to(p, shape).astype(dtype), jnp.broadcast_to(q, shape).astype(dtype)


def overlap(p: Array, q: Array) -> Array:
  """The mass that two measures share.

  `sum_x min(p(x), q(x))`, a sum of non-negative terms, so that a tiny overlap
  keeps its relative precision. Neither side has to sum to 1.

  Args:
    p: [.., V], non-negative.
    q: [.., V], non-negative.

  Returns:
    [..], at most the smaller of the two totals (up to rounding of the sum).

  Raises:
    ValueError: different V, shapes that do not broadcast, or not floating.

  Example:
    >>> import jax.numpy as jnp
    >>> overlap(jnp.array([.5, .5, 0.]), jnp.array([.25, .25, .5])).tolist()
    0.5

  Source: Leviathan et al. 2023, Lemma 3.3.
  """
  p, q = aligned(p, q)
  return jnp.sum(jnp.minimum(p, q), axis=-1)


def total_variation(p: Array, q: Array) -> Array:
  """Half the L1 distance: the most that the probability of any event differs.

  `1/2 sum_x |p(x) - q(x)|`. Between laws this is `1 - overlap(p, q)`, but taken
  this way it keeps its relative precision when p and q are close.

  Args:
    p: [.., V], each row sums to 1.
    q: [.., V], each row sums to 1.

  Returns:
    [..] in [0, 1]: 0 for equal laws, 1 for disjoint supports.

  Raises:
    ValueError: different V, shapes that do not broadcast, or not floating.

  Example:
    >>> total_variation(jnp.array([.5, .5, 0.]), jnp.array([.25, .25, .5])).tolist()
    0.5

  Source: Levin, Peres and Wilmer, "Markov chains and mixing times", Prop. 4.2.
  """
  p, q = aligned(p, q)
  return 0.5 * jnp.sum(jnp.abs(p - q), axis=-1)


def d_lk(p: Array, q: Array) -> Array:
  """The divergence of Leviathan et al.: one minus the acceptance probability.

  `D_LK(p, q) = sum_x |p(x) - M(x)|` with `M = (p + q) / 2`. As
  `p - M = (p - q) / 2`, it is the total variation, and is computed as that.

  Args:
    p: [.., V], each row sums to 1.
    q: [.., V], each row sums to 1.

  Returns:
    [..] in [0, 1], symmetric; 0 iff p = q, 1 iff the supports are disjoint.

  Raises:
    ValueError: different V, shapes that do not broadcast, or not floating.

  Example:
    >>> d_lk(jnp.array([1., 0.]), jnp.array([.75, .25])).tolist()
    0.25

  Source: Leviathan et al. 2023, Definition 3.2, Lemma 3.3, Corollary 3.4.
  """
  return total_variation(p, q)


def forward_kl(log_p: Array, log_q: Array) -> Array:
  """Kullback-Leibler divergence of the draft from the target.

  `KL(p || q) = sum_x p(x) (log p(x) - log q(x))`; a token with p(x) = 0 adds 0.

  Args:
    log_p: [.., V] log-probabilities of the target; -inf is an impossible token.
    log_q: [.., V] log-probabilities of the draft.

  Returns:
    [..] nats, non-negative; inf where p(x) > 0 = q(x) for some x. Gradients
    are finite wherever the value is.

  Raises:
    ValueError: different V, shapes that do not broadcast, or not floating.

  Example:
    >>> forward_kl(jnp.log(jnp.array([1., 0.])), jnp.log(jnp.array([.5, .5]))).round(4).tolist()
    0.6930999755859375

  Source: Kullback and Leibler 1951; as a distillation loss, DistillSpec (Zhou
  et al. 2023).
  """
  log_p, log_q = aligned(log_p, log_q, ("log_p", "log_q"))
  # Not `log_p > -inf`: that is False for NaN, and would hide it. Both `where` are needed: the inner one keeps
  # -inf - (-inf) out of the forward pass, the outer one keeps its 0 out of the gradient.
  possible = log_p != -jnp.inf
  ratio = jnp.where(possible, log_p, 0.0) - jnp.where(possible, log_q, 0.0)
  return jnp.sum(jnp.where(possible, jnp.exp(log_p) * ratio, 0.0), axis=-1)


def reverse_kl(log_p: Array, log_q: Array) -> Array:
  """Kullback-Leibler divergence of the target from the draft: mode seeking.

  `KL(q || p) = sum_x q(x) (log q(x) - log p(x))`, which is `forward_kl` with
  its arguments exchanged.

  Args:
    log_p: [.., V] log-probabilities of the target.
    log_q: [.., V] log-probabilities of the draft; -inf is an impossible token.

  Returns:
    [..] nats, non-negative; inf where q(x) > 0 = p(x) for some x.

  Raises:
    ValueError: different V, shapes that do not broadcast, or not floating.

  Example:
    >>> reverse_kl(jnp.log(jnp.array([.5, .5])), jnp.log(jnp.array([1., 0.]))).round(4).tolist()
    0.6930999755859375

  Source: as `forward_kl`.
  """
  log_p, log_q = aligned(log_p, log_q, ("log_p", "log_q"))
  return forward_kl(log_q, log_p)


def jensen_shannon(log_p: Array, log_q: Array) -> Array:
  """Jensen-Shannon divergence: symmetric and always finite.

  `JSD(p, q) = KL(p || M) / 2 + KL(q || M) / 2` with `M = (p + q) / 2`.

  Args:
    log_p: [.., V] log-probabilities; -inf is an impossible token.
    log_q: [.., V] log-probabilities; -inf is an impossible token.

  Returns:
    [..] nats in [0, log 2]; log 2 iff the supports are disjoint.

  Raises:
    ValueError: different V, shapes that do not broadcast, or not floating.

  Example:
    >>> jensen_shannon(jnp.log(jnp.array([1., 0.])), jnp.log(jnp.array([0., 1.]))).round(4).tolist()
    0.6930999755859375

  Source: Lin 1991, "Divergence measures based on the Shannon entropy"; as a
  distillation loss, DistillSpec (Zhou et al. 2023).
  """
  log_p, log_q = aligned(log_p, log_q, ("log_p", "log_q"))
  # Where both are impossible `forward_kl` does not look at M; logaddexp(-inf, -inf) would have a NaN gradient.
  possible = (log_p != -jnp.inf) | (log_q != -jnp.inf)
  log_m = jnp.logaddexp(jnp.where(possible, log_p, 0.0), jnp.where(possible, log_q, 0.0)) - math.log(2.0)
  return 0.5 * (forward_kl(log_p, log_m) + forward_kl(log_q, log_m))
