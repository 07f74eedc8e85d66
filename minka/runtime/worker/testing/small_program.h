// A mesh's program with every kind of instruction, for tests of what workers are sent.
#pragma once

#include "minka/ir/hlo_proto.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/worker/worker.pb.h"

namespace minka {

// Receives x, computes y = x w + number and the new w, which takes the place of the old, and sends
// it on.
inline MeshProgram SmallMeshProgram() {
  MeshProgram program{.mesh = *Mesh::Parse("x=2")};
  const Module forward = *ParseHloText(R"(HloModule forward

ENTRY main {
  x = f32[2,4] parameter(0)
  w = f32[4,4] parameter(1)
  number = s32[] parameter(2)
  dot = f32[2,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  scalar = f32[] convert(number)
  all = f32[2,4] broadcast(scalar), dimensions={}
  ROOT y = f32[2,4] add(dot, all)
}
)");
  const Module apply =
      *ParseHloText(R"(HloModule apply, input_output_alias={ {}: (1, {}, may-alias) }

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  y = f32[2,4] parameter(0)
  w = f32[4,4] parameter(1)
  product = f32[4,4] dot(y, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  sum = f32[4,4] all-reduce(product), replica_groups={{0,1}}, to_apply=add
  ROOT new_w = f32[4,4] add(w, sum)
}
)");
  program.programs = {
      {.stage = 1, .task = {ProgramKind::kForward}, .module = forward},
      {.stage = 1, .task = {ProgramKind::kApply, 2}, .module = apply},
  };
  const Shape shape{ElementType::kF32, {4, 4}};
  const Sharding whole = Sharding::Replicated(2), rows = *ParseSharding("[x,-]", program.mesh);
  program.slots = {
      {"x", shape, rows},      {"w", shape, whole},
      {"y", shape, rows},      {"new_w", shape, whole},
      {"spare", shape, whole}, {"number", {ElementType::kS32, {}}, Sharding::Replicated(0)}};
  program.numbers = {5};
  program.tile_lists = {
      {{{{{.box = {{0, 0}, {2, 4}}, .devices = {0}}, {.box = {{2, 0}, {4, 4}}, .devices = {1}}}}}},
      {{{{{.box = {{0, 0}, {4, 4}}, .devices = {1}}}}}}};
  program.instructions = {
      ReceiveInstruction{.slot = 0, .channel = 4, .tiles = 0},
      RunInstruction{.program = 0, .micro_batch = 0, .arguments = {0, 1, 5}, .results = {2}},
      RunInstruction{.program = 1, .micro_batch = -1, .arguments = {2, 1}, .results = {3}},
      SendInstruction{.slot = 3, .channel = 7, .tiles = 1},
      FreeInstruction{{0, 2}},
  };
  return program;
}

// Of worker 0 of 3, with two devices.
inline worker::Open SmallSession() {
  worker::Open open;
  open.set_num_devices(2);
  open.set_num_peers(3);
  return open;
}

}  // namespace minka
