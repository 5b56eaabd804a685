"""Costs counted in programs written by hand, whose bytes, products and collectives are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.sharding import hlo
from specdec.sharding import hlo_cost

# A loop of 3 runs: it reads one of four weights [8, 128], multiplies, and sums over chips; a cache is written in place.
PROGRAM = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}

%fused_dot (p0: f32[4,128,128], p1: s32[], p2: f32[8,128]) -> f32[8,128] {
  %p0 = f32[4,128,128]{2,1,0:T(8,128)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  %p2 = f32[8,128]{1,0:T(8,128)S(3)} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  %one = f32[1,128,128]{2,1,0:T(8,128)} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,128,128}
  %flat = f32[128,128]{1,0:T(8,128)} bitcast(%one)
  ROOT %dot = f32[8,128]{1,0:T(8,128)} convolution(%p2, %flat), dim_labels=bf_io->bf
}

%fused_write (c0: f32[64,128], c1: f32[8,128], c2: s32[]) -> f32[64,128] {
  %c0 = f32[64,128]{1,0:T(8,128)} parameter(0)
  %c1 = f32[8,128]{1,0:T(8,128)} parameter(1)
  %c2 = s32[]{:T(128)} parameter(2)
  %z = s32[]{:T(128)} constant(0)
  ROOT %put = f32[64,128]{1,0:T(8,128)} dynamic-update-slice(%c0, %c1, %c2, %z)
}

%body (arg: (s32[], f32[4,128,128], f32[64,128])) -> (s32[], f32[4,128,128], f32[64,128]) {
  %arg = (s32[]{:T(128)}, f32[4,128,128]{2,1,0:T(8,128)}, f32[64,128]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %w = f32[4,128,128]{2,1,0:T(8,128)} get-tuple-element(%arg), index=1
  %cache = f32[64,128]{1,0:T(8,128)} get-tuple-element(%arg), index=2
  %x = f32[8,128]{1,0:T(8,128)S(3)} custom-call(), custom_call_target="AllocateBuffer"
  %y = f32[8,128]{1,0:T(8,128)} fusion(%w, %i, %x), kind=kOutput, calls=%fused_dot
  %all-reduce-start.1 = f32[8,128]{1,0:T(8,128)} all-reduce-start(%y), channel_id=1, to_apply=%add
  %all-reduce-done.1 = f32[8,128]{1,0:T(8,128)} all-reduce-done(%all-reduce-start.1)
  %new = f32[64,128]{1,0:T(8,128)} fusion(%cache, %all-reduce-done.1, %i), kind=kLoop, calls=%fused_write
  %step = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%i, %step)
  ROOT %out = (s32[]{:T(128)}, f32[4,128,128]{2,1,0:T(8,128)}, f32[64,128]{1,0:T(8,128)}) tuple(%next, %w, %new)
}

%condition (arg.1: (s32[], f32[4,128,128], f32[64,128])) -> pred[] {
  %arg.1 = (s32[]{:T(128)}, f32[4,128,128]{2,1,0:T(8,128)}, f32[64,128]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  %limit = s32[]{:T(128)} constant(3)
  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit), direction=LT
}

ENTRY %main (weights: f32[4,128,128], buffer: f32[64,128]) -> f32[64,128] {
  %weights = f32[4,128,128]{2,1,0:T(8,128)} parameter(0)
  %buffer = f32[64,128]{1,0:T(8,128)} parameter(1)
  %begin = s32[]{:T(128)} constant(0)
  %tuple = (s32[]{:T(128)}, f32[4,128,128]{2,1,0:T(8,128)}, f32[64,128]{1,0:T(8,128)}) tuple(%begin, %weights, %buffer)
  %while.1 = (s32[]{:T(128)}, f32[4,128,128]{2,1,0:T(8,128)}, f32[64,128]{1,0:T(8,128)}) while(%tuple), condition=%condition, body=%body
  %copy.1 = f32[4,128,128]{1,2,0:T(8,128)} copy(%weights)
  ROOT %result = f32[64,128]{1,0:T(8,128)} get-tuple-element(%while.1), index=2
}
"""
TILE = 8 * 128 * 4  # Bytes of an activation.
MATRIX = 128 * 128 * 4
SCALAR = 4


def test_shapes_have_their_padding():
  (shape,) = hlo.parse_shapes("bf16[3,5]{1,0:T(8,128)(2,1)S(3)}")
  assert (shape.dtype, shape.dims, shape.space, shape.bytes) == ("bf16", (3, 5), 3, 8 * 128 * 2)
  (shape,) = hlo.parse_shapes("f32[3,5]{0,1:T(8,128)}")  # The first axis is the fast one.
  assert shape.bytes == 128 * 8 * 4
  assert [s.bytes for s in hlo.parse_shapes("(f32[2,3]{1,0}, s32[], pred[7]{0}, token[])")] == [24, 4, 7]


def test_a_loop_counts_as_often_as_it_runs():
  cost = hlo_cost.count(hlo.parse(PROGRAM))
  assert cost.flops == 3 * 2 * 8 * 128 * 128
  assert cost.collectives == {"all-reduce": 3}
  assert cost.sent == 3 * TILE
  assert cost.loops == {"while.1": 3}


def test_bytes_of_one_run_of_the_body():
  """A weight's slice and not the stack, a row block of the cache and not the cache, nothing for what is on the chip."""
  module = hlo.parse(PROGRAM)
  by_name = {one.name: one for one in hlo_cost.count(module, "body").each}
  assert by_name["y"].hbm == MATRIX + SCALAR + TILE  # Slice, index, result.
  assert by_name["new"].hbm == TILE + SCALAR + TILE  # New rows, index, rows written.
  assert by_name["all-reduce-start.1"].hbm == 2 * TILE
  assert "x" not in by_name and "all-reduce-done.1" not in by_name


def test_what_is_only_copied_is_found():
  assert hlo_cost.copies(hlo.parse(PROGRAM)) == [("copy.1", 4 * 128 * 128, 4 * MATRIX)]
  assert not hlo_cost.copies(hlo.parse(PROGRAM), "body")


def test_an_open_loop_is_found_and_counts_once():
  open_ = PROGRAM.replace("%limit = s32[]{:T(128)} constant(3)", "%limit = s32[]{:T(128)} get-tuple-element(%arg.1), index=0")
  module = hlo.parse(open_)
  assert hlo_cost.open_loop(module) == "body" and hlo_cost.open_loop(hlo.parse(PROGRAM)) is None
  assert hlo_cost.count(module).collectives == {"all-reduce": 1}
  assert hlo_cost.count(module, trips={"while.1": 5}).collectives == {"all-reduce": 5}


def test_one_branch_counts():
  branches = PROGRAM.replace(
      "  %copy.1 = f32[4,128,128]{1,2,0:T(8,128)} copy(%weights)",
      "  %which = s32[]{:T(128)} constant(1)\n"
      "  %choice = f32[64,128]{1,0:T(8,128)} conditional(%which, %buffer, %buffer), "
      "branch_computations={%cheap, %dear}",
  ).replace(
      "ENTRY",
      "%cheap (q: f32[64,128]) -> f32[64,128] {\n  ROOT %q = f32[64,128]{1,0:T(8,128)} parameter(0)\n}\n\n"
      "%dear (r: f32[64,128]) -> f32[64,128] {\n  %r = f32[64,128]{1,0:T(8,128)} parameter(0)\n"
      "  ROOT %n = f32[64,128]{1,0:T(8,128)} negate(%r)\n}\n\nENTRY",
  )
  names = lambda kind: {one.name: one for one in hlo_cost.count(hlo.parse(branches), branches=kind).each}
  assert names("dearest")["n"].hbm == names("sampled")["n"].hbm == 2 * 64 * 128 * 4
  assert "n" not in names("greedy")


def test_a_real_program_of_this_machine():
  """XLA's own text, from a scan of five products on the CPU."""
  weights = jnp.ones((5, 16, 16))
  run = jax.jit(lambda w, x: jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, w)[0])
  text = run.lower(weights, jnp.ones((4, 16))).compile().as_text()
  module = hlo.parse(text)
  cost = hlo_cost.count(module)
  assert set(cost.loops.values()) == {5}
  assert cost.flops == 5 * 2 * 4 * 16 * 16
  assert cost.hbm_read >= 5 * 16 * 16 * 4  # Every weight.
  assert np.isfinite(cost.hbm) and not cost.collectives


def test_what_is_no_module_is_refused():
  with pytest.raises(ValueError, match="expected the text of a compiled module"):
    hlo.parse("nothing of the kind")
