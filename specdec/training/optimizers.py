"""The two optimizers of T5 training, as thin compositions of optax."""

import jax.numpy as jnp
import optax


def warmup_linear_decay(peak: float, warmup_steps: int, steps: int) -> optax.Schedule:
  """Linear from 0 to `peak` in `warmup_steps`, then linear to 0 at `steps`."""
  decay = optax.linear_schedule(peak, 0.0, max(1, steps - warmup_steps))
  return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup_steps), decay], [warmup_steps])


def warmup_rsqrt(base: float = 1.0, warmup_steps: int = 10_000) -> optax.Schedule:
  """T5's pre-training schedule: base / sqrt(max(step, warmup_steps))."""
  return lambda step: base / jnp.sqrt(jnp.maximum(step, warmup_steps))


def adamw(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.98,
    weight_decay: float = 0.01,
    clip_norm: float = 1.0,
) -> optax.GradientTransformation:
  """AdamW after clipping by global norm; b2 = 0.98 as in Vaswani et al. 2017."""
  return optax.chain(
      optax.clip_by_global_norm(clip_norm), optax.adamw(learning_rate, b1=b1, b2=b2, weight_decay=weight_decay)
  )


def adafactor(learning_rate: optax.ScalarOrSchedule, decay_rate: float = 0.8) -> optax.GradientTransformation:
  """Adafactor as T5 uses it: relative step sizes, no momentum, updates clipped at 1."""
  return optax.adafactor(learning_rate, decay_rate=decay_rate, multiply_by_parameter_scale=True)
