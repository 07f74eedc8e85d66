#include "minka/driver/layer_costs.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "minka/base/status.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/ir/micro_loop.h"
#include "minka/lowering/task_programs.h"

namespace minka {
namespace {

// Of the share of the work limit that all layers get.
constexpr int64_t kShareOfWork = 50;
// Estimates need not be nearer.
constexpr double kGap = 0.02;

struct HeldBytes {
  int64_t all_the_time = 0, of_micro_batch = 0, of_update = 0;
};

// What is alive between the programs of a stage: of values that exist once per micro-batch, those
// that its backward pass reads and its forward pass has made or read; of others all, those that one
// phase of the update makes for another apart.
class HeldBetween {
 public:
  HeldBetween(const std::vector<TaskProgram>& programs, const MicroLoop& loop) : loop_(loop) {
    for (const TaskProgram& program : programs) {
      if (program.task.kind == ProgramKind::kForward) {
        of_forward_.insert(program.parameters.begin(), program.parameters.end());
        of_forward_.insert(program.results.begin(), program.results.end());
      } else if (program.task.kind == ProgramKind::kApply) {
        of_update_.insert(program.results.begin(), program.results.end());
      }
      if (program.task.kind == ProgramKind::kApply) continue;
      of_others_.insert(program.parameters.begin(), program.parameters.end());
    }
    for (const TaskProgram& program : programs) Add(program);
  }

  const HeldBytes& bytes() const { return bytes_; }

 private:
  void Add(const TaskProgram& program) {
    for (const Instruction& instruction : program.program.module.entry_computation().instructions) {
      if (instruction.opcode != Opcode::kParameter) continue;
      const ValueVersion& made = program.parameters[instruction.As<ParameterAttributes>().number];
      if (int64_t* bytes = BytesOf(made, program.task.kind)) {
        *bytes += instruction.results[0].num_bytes();
        counted_.insert(made);
      }
    }
  }

  // Null: not counted, or already.
  int64_t* BytesOf(const ValueVersion& made, ProgramKind reader) {
    if (counted_.contains(made)) return nullptr;
    if (loop_.IsTransient(made.value.instruction)) {
      const bool is_kept = reader != ProgramKind::kForward && of_forward_.contains(made);
      return is_kept ? &bytes_.of_micro_batch : nullptr;
    }
    const bool is_of_update = of_update_.contains(made) && !of_others_.contains(made);
    return is_of_update ? &bytes_.of_update : &bytes_.all_the_time;
  }

  const MicroLoop& loop_;
  std::set<ValueVersion> of_forward_, of_update_, of_others_, counted_;
  HeldBytes bytes_;
};

absl::StatusOr<LayerCost> CostOf(const StageStep& staged, const SearchedStage& searched,
                                 int num_micro_batches, Platform platform) {
  PipelineStagePlan stage{.plan = {.stage = searched.result.stage}};
  SetTaskTimes(staged, num_micro_batches, stage);
  ASSIGN_OR_RETURN(const std::vector<TaskProgram> programs,
                   LowerTasks(staged, searched.result.stage, platform));
  const MicroLoop loop = FindMicroLoop(staged.step.module);
  const HeldBytes held = HeldBetween(programs, loop).bytes();
  LayerCost cost{.micro_batch_us = stage.forward_us + stage.backward_us + stage.weight_gradient_us,
                 .step_us = stage.apply_us,
                 .static_bytes = held.all_the_time,
                 .saved_bytes = held.of_micro_batch,
                 .update_bytes = held.of_update};
  for (const auto& [task, bytes] : TemporariesOf(staged, searched.result.stage)) {
    cost.transient_bytes = std::max(cost.transient_bytes, bytes);
  }
  return cost;
}

}  // namespace

absl::StatusOr<std::vector<LayerCost>> LayerCosts::On(const Mesh& mesh, bool splits_state,
                                                      const RematChoice& remat) {
  ASSIGN_OR_RETURN(const StagedStep* staged, CutBehindLayers(remat));
  StageRequest request{.meshes = {mesh},
                       .search = planning_.search,
                       .splits_state = splits_state,
                       .tries_rules = false};
  request.search.gap = std::max(request.search.gap, kGap);
  request.search.memory_limit_bytes.reset();
  request.search.pins.clear();
  request.search.work_limit /= kShareOfWork;
  std::vector<LayerCost> out;
  for (const StageStep& layer : staged->stages) {
    RETURN_IF_ERROR(CheckNotCancelled(planning_));
    ASSIGN_OR_RETURN(const SearchedStage* searched, planner_.Search(layer.step, request));
    auto known = costs_.find(searched);
    if (known == costs_.end()) {
      ASSIGN_OR_RETURN(
          const LayerCost cost,
          CostOf(layer, *searched, static_cast<int>(planning_.micro_batches.num_micro_batches),
                 planning_.cluster.platform()));
      known = costs_.emplace(searched, cost).first;
    }
    out.push_back(known->second);
  }
  return out;
}

absl::StatusOr<const StagedStep*> LayerCosts::CutBehindLayers(const RematChoice& remat) {
  const auto known = staged_.find(remat);
  if (known != staged_.end()) return &known->second;
  ASSIGN_OR_RETURN(const Step* prepared, steps_.With(remat, planning_.micro_batches));
  StageOptions options;
  options.stage_of_layer.resize(steps_.simplified().num_layers.value_or(0));
  std::iota(options.stage_of_layer.begin(), options.stage_of_layer.end(), 0);
  ASSIGN_OR_RETURN(StagedStep staged, CutIntoStages(*prepared, options));
  return &staged_.emplace(remat, std::move(staged)).first->second;
}

}  // namespace minka
