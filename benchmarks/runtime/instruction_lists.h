// Pipelines made by hand, for measurements: lists of one kind of instruction.
#pragma once

#include <vector>

#include "minka/program/pipeline_program.h"

namespace minka {

enum class ListKind {
  kRun,       // programs that add two numbers, each with a result of its own
  kTransfer,  // by turns a send to the next mesh and a receive from the one before
  kFree,      // a run and a free by turns
};

// Every mesh has one device, a parameter that holds a few numbers, which is also its result, and a
// list of `length` instructions; what they make is freed by one more behind them. Even lengths.
PipelineProgram MakeLists(ListKind kind, int num_meshes, int length);

// One program of one mesh of a pipeline, run `times` times, one behind the other; the meshes before
// do nothing, those behind are left out. Parameters are the program's; results are those that live
// in the memory of an argument, to be the next step's: `in_place` has their parameters.
struct RepeatedProgram {
  PipelineProgram pipeline;
  std::vector<int> in_place;  // by result
};
RepeatedProgram Repeat(const PipelineProgram& whole, int mesh, int program, int times);

}  // namespace minka
