// A step with a loop in a loop, for tests of plans: three times x becomes x w w, and its products
// with itself are added up, as gradients are.
#pragma once

#include "minka/ir/hlo_proto.h"
#include "minka/ir/module.h"

namespace minka {

inline Module NestedLoops() {
  return *ParseHloText(R"(HloModule loops

inner_body {
  i = s32[] parameter(0)
  a = f32[16,16] parameter(1)
  w = f32[16,16] parameter(2)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  dot = f32[16,16] dot(a, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT carried = (s32[], f32[16,16], f32[16,16]) tuple(next, dot, w)
}

inner_condition {
  i = s32[] parameter(0)
  a = f32[16,16] parameter(1)
  w = f32[16,16] parameter(2)
  two = s32[] constant(2)
  ROOT less = pred[] compare(i, two), direction=LT
}

outer_body {
  j = s32[] parameter(0)
  x = f32[16,16] parameter(1)
  w = f32[16,16] parameter(2)
  g = f32[16,16] parameter(3)
  one = s32[] constant(1)
  next = s32[] add(j, one)
  zero = s32[] constant(0)
  begin = (s32[], f32[16,16], f32[16,16]) tuple(zero, x, w)
  inner = (s32[], f32[16,16], f32[16,16]) while(begin), condition=inner_condition, body=inner_body
  y = f32[16,16] get-tuple-element(inner), index=1
  product = f32[16,16] dot(y, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  sum = f32[16,16] add(g, product)
  ROOT carried = (s32[], f32[16,16], f32[16,16], f32[16,16]) tuple(next, y, w, sum)
}

outer_condition {
  j = s32[] parameter(0)
  x = f32[16,16] parameter(1)
  w = f32[16,16] parameter(2)
  g = f32[16,16] parameter(3)
  three = s32[] constant(3)
  ROOT less = pred[] compare(j, three), direction=LT
}

ENTRY main {
  x = f32[16,16] parameter(0)
  w = f32[16,16] parameter(1)
  g = f32[16,16] parameter(2)
  zero = s32[] constant(0)
  begin = (s32[], f32[16,16], f32[16,16], f32[16,16]) tuple(zero, x, w, g)
  outer = (s32[], f32[16,16], f32[16,16], f32[16,16]) while(begin), condition=outer_condition, body=outer_body
  y = f32[16,16] get-tuple-element(outer), index=1
  sum = f32[16,16] get-tuple-element(outer), index=3
  ROOT results = (f32[16,16], f32[16,16]) tuple(y, sum)
}
)");
}

}  // namespace minka
