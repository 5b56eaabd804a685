"""`--mode=convert`: a checkpoint from one format into another."""

import dataclasses

from absl import logging
import jax

from specdec.checkpoints import formats
from specdec.checkpoints import from_huggingface
from specdec.checkpoints import from_orbax
from specdec.checkpoints import huggingface_names
from specdec.checkpoints import names
from specdec.networks.t5 import T5, T5Config

WRITTEN = ("specdec", "huggingface")


def convert(
    checkpoint: str,
    path: str,
    to: str,
    module: T5 | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
) -> T5Config:
  """Reads a checkpoint of our own, of T5X or of Hugging Face, and writes it as ours or as Hugging Face's.

  The vocabulary does not travel: copy the tokenizer's files too.

  Args:
    checkpoint: a folder that `checkpoints.formats.load` reads; its format is
      found by its files.
    path: the folder to write.
    to: 'specdec' or 'huggingface'.
    module: the network; None takes the sizes from config.json or from the
      shapes of the arrays, and the activations of T5 1.0 or 1.1 by the number of
      branches.
    dtype: of the written parameters; None keeps what is stored.
    overwrite: whether to replace an older checkpoint at `path`.

  Returns:
    The configuration of the model.

  Raises:
    ValueError: `checkpoint` cannot be read or does not fit `module`, or `path`
      cannot be written.
  """
  if to not in WRITTEN:
    raise ValueError(f"to: expected one of {', '.join(WRITTEN)}, found {to!r}.")
  expected = None if module is None else huggingface_names.parameter_shapes(module.config)
  found = formats.format_of(checkpoint)
  if found == "huggingface":
    params, config = from_huggingface.load_with_config(checkpoint, dtype, expected)
  else:
    params = formats.load(checkpoint, dtype, expected)
    config = huggingface_names.config_of(params, checkpoint)
    names.check(params, huggingface_names.parameter_shapes(config), checkpoint)
  if module is not None:
    if dataclasses.replace(config, mlp_activations=module.config.mlp_activations) != config and found == "huggingface":
      raise ValueError(
          f"{checkpoint}: expected mlp_activations {module.config.mlp_activations} as the module has, found "
          f"{config.mlp_activations} in config.json."
      )
    config = module.config
  if to == "huggingface":
    from_huggingface.save(path, params, config, overwrite=overwrite)
  else:
    from_orbax.save(path, params, overwrite=overwrite)
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  logging.info("%d parameters from %s (%s) to %s (%s).", count, checkpoint, found, path, to)
  logging.info("%s", config)
  return config
