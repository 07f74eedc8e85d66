// PRODUCT 1: what runs where. A plan is explicit: it names for every operation how it is split,
// every version in which a value exists on the mesh and the collectives between versions, so that
// lowering decides nothing and `plan.json` reproduces a run exactly. Ids are those of the prepared
// module (driver: calls inlined, simplified) with `module_hash`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/layer_choice.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/module.h"
#include "minka/ir/step.h"
#include "minka/sharding/called_plan.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/op_rule.h"
#include "minka/sharding/reshard.h"
#include "minka/sharding/sharding.h"

namespace minka {

// One reshard: a new version of `value`, made from an earlier version.
struct Reshard {
  Value value;
  int from_version = 0;  // 0: as its producer makes it; i > 0: made by reshards[i - 1]
  Sharding from, to;
  std::vector<ReshardStep> steps;
  // The version is made just before this instruction; num_instructions: at the end, for a result.
  InstructionId before = 0;
  // Reshards with one step of equal kind, axes and type and the same group run as one combined
  // collective; -1: alone.
  int combine_group = -1;
  // Behind an optimisation barrier, so that an equal version made elsewhere stays a separate copy
  // (views).
  bool isolated = false;
  double cost_us = 0;  // predicted, of all its runs in a step; its part of a combined collective
};

// How one operation runs.
struct OpPlan {
  Strategy strategy;
  std::vector<int>
      operand_versions;            // per operand: the version it reads, see Reshard::from_version
  std::vector<CalledPlan> called;  // while, conditional: how what it calls runs, by computation
  Phase phase = Phase::kForward;
  // Predicted, of all its runs in a step, collectives at its results (kCombine) included.
  double cost_us = 0;
  InstructionId followed = -1;  // the operation whose sharding it took over; -1: chosen for itself
};

// One stage: consecutive layers on one mesh.
struct StagePlan {
  std::vector<int> layers;
  std::vector<int64_t> submesh;  // hosts x devices per host
  Mesh mesh;
  std::vector<OpPlan> ops;           // by instruction of the entry computation
  std::vector<Reshard> reshards;     // in order of `before`
  std::vector<int> result_versions;  // by result of the entry computation
  double step_time_us = 0;
  int64_t peak_memory_bytes = 0;
};

enum class MemoryTier { kEstimated, kCompiled };

// One parameter as people read it.
struct ParameterPlan {
  std::string name;
  Shape shape;
  Sharding sharding;
  std::vector<std::string> labels;  // per mesh axis: data, operator, zero, idle
  int64_t bytes_per_device = 0;
  std::string role;  // state, batch, key, constant
};

struct Plan {
  int schema_version = 1;
  std::string module_hash;
  std::map<std::string, std::string>
      options;  // what the search was asked for, as given on the command line
  std::string method;
  std::string cost_model;
  double step_time_us = 0;
  int64_t peak_memory_bytes = 0;
  MemoryTier memory_tier = MemoryTier::kEstimated;
  int64_t state_bytes_per_device = 0;
  double objective = 0;
  double lower_bound = 0;
  // Of the whole search: above the least bound of meshes and methods; nullopt: not all have one.
  std::optional<double> gap = 0;
  double sharding_gap = 0;  // given mesh, method and rematerialisation
  double memory_price = 0;  // objective saved per extra byte per device at the tightest time
  std::string stop_reason;
  double search_seconds = 0;
  std::map<std::string, int64_t>
      collectives;  // HLO name -> count per step, combined ones counted once
  std::map<std::string, int64_t> collective_bytes;  // HLO name -> bytes per device and step
  std::vector<ParameterPlan> parameters;
  int64_t num_parameters = 0;  // elements of what is trained (TrainedParameters)
  StagePlan stage;
  int num_micro_batches = 1;
  bool per_micro_batch = false, narrow_sums = false;  // see MicroBatchOptions
  RematChoice remat;                                  // by layer; empty: nothing is computed again
  // What the loop over micro-batches accumulates: gradient, loss or operation -> how, type, shape
  // and sharding of the accumulator: "sum f32[256,32] [data,-]", "stack f32[4,8] [-,data]".
  std::map<std::string, std::string> accumulators;
  std::string schedule = "none";
  std::map<std::string, int64_t>
      unsupported_ops;                 // opcode -> count run replicated for want of a rule
  double unsupported_flops_share = 0;  // their part of the step's flops (any operation counts)
  std::vector<std::string> notes;      // dimensions left whole, choices cut, what was inferred
};

// The version of `value` numbered `version` has this sharding.
Sharding VersionSharding(const Module& module, const StagePlan& stage, Value value, int version);

// Where a reshard runs: in front of the loop over micro-batches, once for each of them, or once
// when the loop is over (or there is none).
LoopPart PartOf(const MicroLoop& loop, const Reshard& reshard);

// One collective instruction of the lowered program.
struct PlannedCollective {
  std::string kind;  // HLO name
  ElementType type = ElementType::kInvalid;
  int64_t bytes =
      0;  // sum over operands of the local operand bytes; all-gather: of the local result bytes
  AxisSet axes;
  int num_values = 1;
  int64_t runs = 1;  // per step: the number of micro-batches for those in the loop
  std::vector<int>
      reshards;  // which reshards it serves; empty: it completes a kCombine factor of `instruction`
  InstructionId instruction = -1;  // kCombine: the operation
  // Of all its runs in a step; collectives of one reshard have equal parts of what it costs. Of
  // kCombine 0: its operation's cost has it.
  double cost_us = 0;
};
// Every collective that lowering will write for the stage, in no particular order; those in a loop
// once, however often it runs.
std::vector<PlannedCollective> ListCollectives(const Module& module, const StagePlan& stage);

// plan.json, documented in docs/plan.md; writing and reading again gives the same plan. Shardings,
// axes and strategies appear by name. Reading checks everything against itself; CheckPlan checks it
// against a module.
std::string PlanToJson(const Plan& plan, const Module& module);
// How the module must be prepared for the plan, which can be read before the module is at hand.
struct PlannedPreparation {
  int64_t num_micro_batches = 1;
  bool per_micro_batch = false, narrow_sums = false;
  RematChoice remat;
  // Of a pipeline: how the prepared module is cut.
  LayerChoice layers;
  std::vector<int> stage_of_layer;
  std::string schedule;
};
absl::StatusOr<PlannedPreparation> PlannedPreparationOf(std::string_view json);

absl::StatusOr<Plan> PlanFromJson(std::string_view json, const Module& module);

// Is the plan one for this module, and can it be lowered: hash, every version made before it is
// read, shardings valid, every operand as its strategy wants it, aliased state in equal shardings?
// Messages name the operation.
absl::Status CheckPlan(const Plan& plan, const Module& module);

}  // namespace minka
