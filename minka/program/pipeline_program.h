// What the meshes of a pipeline run in a step: programs, and for each mesh a list of instructions
// that needs no decisions and no controller while it runs. One mesh is a pipeline of one.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "minka/ir/module.h"
#include "minka/ir/shape.h"
#include "minka/program/signature.h"
#include "minka/program/task.h"
#include "minka/program/tile_messages.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// A place for an array on a mesh; instructions name it by number.
struct ArraySlot {
  std::string name;  // of the value, for messages
  Shape shape;       // whole
  Sharding sharding;
};

// Runs a program of the mesh on all its devices.
struct RunInstruction {
  int program = 0;
  int micro_batch = 0;                  // for messages; -1: once per step
  std::vector<int> arguments, results;  // slots; one that is in both is written in place
};
// Sends go on at once, whoever receives; every channel is used once in a step.
struct SendInstruction {
  int slot = 0, channel = 0;
  int tiles = 0;  // position in MeshProgram::tile_lists: what goes out
};
// Waits for what the channel brings.
struct ReceiveInstruction {
  int slot = 0, channel = 0;
  int tiles = 0;  // position in MeshProgram::tile_lists: what comes in
};
// Nothing reads the slots any more.
struct FreeInstruction {
  std::vector<int> slots;
};
using PipelineInstruction =
    std::variant<RunInstruction, SendInstruction, ReceiveInstruction, FreeInstruction>;

struct StageProgram {
  int stage = 0;
  ProgramTask task;
  Module module;  // num_replicas = devices of the mesh
  MeshSignature signature;
};

struct MeshProgram {
  Mesh mesh;
  std::vector<StageProgram> programs;
  std::vector<ArraySlot> slots;
  std::vector<int> numbers;  // slots that hold the number of a micro-batch, s32[], from 0 on
  std::vector<TileList> tile_lists;
  std::vector<PipelineInstruction> instructions;
};

struct MeshSlot {
  int mesh = 0, slot = 0;
  auto operator<=>(const MeshSlot&) const = default;
};

struct Channel {
  MeshSlot from, to;
};

struct PipelineProgram {
  std::vector<MeshProgram> meshes;
  // By parameter of the step: the slots it is put into before a step begins. State has one.
  std::vector<std::vector<MeshSlot>> parameters;
  std::vector<MeshSlot> results;  // by result of the step, once it is over
  std::vector<Channel> channels;

  const ArraySlot& slot(const MeshSlot& at) const { return meshes[at.mesh].slots[at.slot]; }
};

// The mesh runs the module once per step, and nothing else.
PipelineProgram ProgramOfOneMesh(Module module, const Mesh& mesh, MeshSignature signature);

// Plans what every channel carries and writes it into the lists of both its ends, each mesh being
// one process. Precondition: all but that is there.
void SetTiles(PipelineProgram& program);

// "run stage 1 backward of micro-batch 0", "send %3 x by channel 5".
std::string InstructionName(const MeshProgram& mesh, size_t number);
// The same with all slots that it names.
std::string InstructionText(const MeshProgram& mesh, size_t number);
// One line per instruction of a mesh, as InstructionText.
std::string InstructionsText(const MeshProgram& mesh);
// What is sent from mesh to mesh in a step, one line per value: shardings at both ends, bytes, how
// often; below it one per tile, as of PlanCrossMesh.
std::string TransfersText(const PipelineProgram& program);

}  // namespace minka
