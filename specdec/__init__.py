"""specdec: speculative decoding in JAX, exact by construction.

Public names are imported on first use, so that `import specdec` needs only
jax, numpy and chex.
"""

import importlib

_NAMES = {
    "specdec.interfaces": (
        "AcceptanceRule", "DecodeState", "Draft", "Drafter", "LanguageModel", "Params", "Prompt", "Step", "StepInfo",
        "StopCode", "Verdict",
    ),
    "specdec.loop": ("generate", "Output", "Statistics"),
    "specdec.probability.transforms": ("sampling", "Sampling"),
    "specdec.recipes": ("autoregressive", "dyspec", "dyspec_threshold", "leviathan", "sequoia", "specinfer", "spectr"),
    "specdec.models": ("Model", "load_model", "pretrained"),
}  # fmt: skip
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_WHERE)
__version__ = "0.1.0"


def __getattr__(name: str):
  if name not in _WHERE:
    raise AttributeError(f"module 'specdec' has no attribute {name!r}.")
  return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__():
  return sorted([*globals(), *__all__])
