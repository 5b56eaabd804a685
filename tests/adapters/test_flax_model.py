"""`adapters.flax_model`: rows that share a source."""

import jax
import numpy as np

from specdec.adapters import flax_model
from tests import fakes


def test_copies_of_a_source_are_encoded_once():
  """The second row of each pair has another source, and it is not read: what is read is the first."""
  pair = fakes.standard_pair()
  prompt = fakes.standard_prompt()
  other = prompt._replace(tokens=prompt.tokens.at[1::2].set(3))
  own = prompt._replace(tokens=prompt.tokens.at[1::2].set(prompt.tokens[::2]))
  opened = jax.jit(flax_model.t5_model(pair.module, copies=2).init, static_argnums=2)(pair.target_params, other, 8)
  expected = jax.jit(pair.target.init, static_argnums=2)(pair.target_params, own, 8)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), opened, expected)


def test_take_apart_is_the_inverse_of_prepare():
  pair = fakes.standard_pair()
  jax.tree.map(np.testing.assert_array_equal, flax_model.take_apart(pair.module, pair.target_params), pair.variables)
