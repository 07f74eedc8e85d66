#include "minka/oracle/slices.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "minka/analysis/widen.h"
#include "minka/base/status.h"
#include "minka/lowering/micro_batch_places.h"
#include "minka/oracle/decisions.h"
#include "minka/oracle/draws.h"
#include "minka/oracle/rounding.h"
#include "minka/runtime/mesh/split_array.h"
#include "minka/sharding/op_rule.h"

namespace minka {
namespace {

// By instruction: does it depend on one of these parameters (by number)?
std::vector<bool> DependsOn(const Computation& entry, const std::vector<bool>& parameters,
                            const std::vector<Value>& but_by) {
  std::vector<bool> depends(entry.instructions.size());
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      depends[id] = parameters[instruction.As<ParameterAttributes>().number];
    }
    for (const Value operand : instruction.operands) {
      if (std::ranges::find(but_by, operand) != but_by.end()) continue;
      depends[id] = depends[id] || depends[operand.instruction];
    }
  }
  return depends;
}

std::vector<bool> BatchParameters(const Step& step) {
  std::vector<bool> is_batch;
  for (const ParameterInfo& parameter : step.parameters) {
    is_batch.push_back(parameter.role == ParameterRole::kBatch && parameter.batch_dim >= 0);
  }
  return is_batch;
}

// What the update reads of the backward pass.
std::vector<Value> FindGradients(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  const std::vector<bool> depends = DependsOn(entry, BatchParameters(step), {});
  std::vector<Value> gradients;
  for (const Instruction& instruction : entry.instructions) {
    if (instruction.part.phase != Phase::kApply) continue;
    for (const Value operand : instruction.operands) {
      const bool is_gradient =
          depends[operand.instruction] && entry.instruction(operand).part.phase == Phase::kBackward;
      if (is_gradient) gradients.push_back(operand);
    }
  }
  std::ranges::sort(gradients);
  const auto repeated = std::ranges::unique(gradients);
  gradients.erase(repeated.begin(), repeated.end());
  return gradients;
}

// By result: does it depend on the batch by way of gradients alone, in every step?
std::vector<bool> FollowsFromGradients(const Step& step, const std::vector<Value>& gradients) {
  const Computation& entry = step.module.entry_computation();
  std::vector<bool> varies = BatchParameters(step), follows;
  for (bool changed = true; changed;) {
    const std::vector<bool> depends = DependsOn(entry, varies, gradients);
    follows.clear();
    for (const Value result : entry.results) {
      const bool is_gradient = std::ranges::find(gradients, result) != gradients.end();
      follows.push_back(is_gradient || !depends[result.instruction]);
    }
    changed = false;
    for (size_t i = 0; i < step.parameters.size(); ++i) {
      const int result = step.parameters[i].state_result;
      if (result < 0 || follows[result] || varies[i]) continue;
      varies[i] = changed = true;
    }
  }
  return follows;
}

// The slice of a batch along its dimension, `num_slices` times.
Literal Repeated(const Literal& batch, int dim, int64_t slice, int64_t num_slices) {
  const Mesh mesh({{"slices", num_slices}});
  Sharding sharding = Sharding::Replicated(batch.shape.rank());
  sharding.dims[dim].PushMinor(0);
  const std::string part = TakePart(*batch.bytes, batch.shape, sharding, mesh, slice);
  std::string repeated(batch.bytes->size(), '\0');
  for (int64_t i = 0; i < num_slices; ++i) {
    PutPart(part, batch.shape, sharding, mesh, i, repeated);
  }
  return {batch.shape, std::make_shared<const std::string>(std::move(repeated))};
}

Literal Mean(const std::vector<Literal>& literals) {
  const Shape& shape = literals[0].shape;
  std::vector<double> means(shape.num_elements());
  for (const Literal& literal : literals) {
    const std::vector<double> elements = ElementsAsDoubles(literal);
    for (size_t i = 0; i < means.size(); ++i) means[i] += elements[i];
  }
  for (double& mean : means) mean /= static_cast<double>(literals.size());
  return LiteralOf(shape, means);
}

absl::StatusOr<std::vector<Literal>> RunOnce(StepRunner& runner, const ParameterValues& values) {
  ASSIGN_OR_RETURN(State state, runner.CreateState(values));
  ASSIGN_OR_RETURN(const std::vector<DistributedArray> arrays, runner.Launch(state, values));
  std::vector<Literal> results;
  for (const DistributedArray& array : arrays) {
    ASSIGN_OR_RETURN(results.emplace_back(), array.ToHost());
  }
  return results;
}

class SlicedRun {
 public:
  static absl::StatusOr<SlicedRun> Compile(const Step& step, int64_t num_slices, bool is_widened,
                                           const pjrt::Client& client) {
    const std::vector<Value> gradients = FindGradients(step);
    const auto compile = [&](const Step& of) -> absl::StatusOr<StepRunner> {
      ASSIGN_OR_RETURN(
          MeshExecutor executor,
          CompileForOneDevice(is_widened ? WidenFloats(of.module) : of.module, client));
      return StepRunner(of, std::move(executor));
    };
    ASSIGN_OR_RETURN(StepRunner backward, compile(WithResults(step, gradients)));
    ASSIGN_OR_RETURN(StepRunner update, compile(WithGiven(step, gradients)));
    return SlicedRun(step, num_slices, gradients, std::move(backward), std::move(update));
  }

  absl::StatusOr<std::vector<Literal>> Run(const StepInputs& inputs, int num_steps) {
    ASSIGN_OR_RETURN(ParameterValues state, inputs(0));
    std::vector<Literal> results;
    for (int i = 0; i < num_steps; ++i) {
      ASSIGN_OR_RETURN(ParameterValues values, inputs(i));
      for (size_t p = 0; p < values.size(); ++p) {
        if (IsResident(step_.parameters[p])) values[p] = state[p];
      }
      ASSIGN_OR_RETURN(results, RunStep(values));
      for (size_t p = 0; p < values.size(); ++p) {
        const int result = step_.parameters[p].state_result;
        if (result >= 0) state[p] = results[result];
      }
    }
    for (size_t r = 0; r < results.size(); ++r) {
      if (!follows_[r] && step_.results[r].role != ResultRole::kLoss) results[r] = {};
    }
    return results;
  }

 private:
  SlicedRun(const Step& step, int64_t num_slices, const std::vector<Value>& gradients,
            StepRunner backward, StepRunner update)
      : step_(step),
        num_slices_(num_slices),
        follows_(FollowsFromGradients(step, gradients)),
        backward_(std::move(backward)),
        update_(std::move(update)) {}

  absl::StatusOr<std::vector<Literal>> RunStep(const ParameterValues& values) {
    std::vector<std::vector<Literal>> of_slices;  // by result, then by slice
    for (int64_t slice = 0; slice < num_slices_; ++slice) {
      ParameterValues of_slice = values;
      for (size_t p = 0; p < values.size(); ++p) {
        const ParameterInfo& parameter = step_.parameters[p];
        if (parameter.role != ParameterRole::kBatch || parameter.batch_dim < 0) continue;
        of_slice[p] = Repeated(values[p], parameter.batch_dim, slice, num_slices_);
      }
      ASSIGN_OR_RETURN(const std::vector<Literal> results, RunOnce(backward_, of_slice));
      of_slices.resize(results.size());
      for (size_t r = 0; r < results.size(); ++r) of_slices[r].push_back(results[r]);
    }
    const size_t num_results = step_.results.size();
    ParameterValues given = values;
    for (size_t r = num_results; r < of_slices.size(); ++r) given.push_back(Mean(of_slices[r]));
    ASSIGN_OR_RETURN(std::vector<Literal> results, RunOnce(update_, given));
    for (size_t r = 0; r < num_results; ++r) {
      if (step_.results[r].role == ResultRole::kLoss) results[r] = Mean(of_slices[r]);
    }
    return results;
  }

  const Step& step_;
  const int64_t num_slices_;
  const std::vector<bool> follows_;  // by result
  StepRunner backward_;              // with the gradients as more results
  StepRunner update_;                // from given gradients
};

bool MixesBits(const Module& module, const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kRng:
    case Opcode::kRngBitGenerator:
    case Opcode::kShiftLeft:
    case Opcode::kShiftRightLogical:
    case Opcode::kXor:
      return true;
    default:
      return std::ranges::any_of(instruction.called, [&](ComputationId id) {
        return std::ranges::any_of(
            module.computations[id].instructions,
            [&](const Instruction& called) { return MixesBits(module, called); });
      });
  }
}

// Compares what micro-batches read of values that are made for all of them.
class SliceComparison {
 public:
  SliceComparison(const Step& step, const MicroPlaces& places)
      : step_(step), entry_(step.module.entry_computation()), places_(places) {
    for (const Instruction& instruction : entry_.instructions) {
      is_index_.push_back(instruction.opcode != Opcode::kParameter &&
                          !MixesBits(step.module, instruction) &&
                          !IsFloat(instruction.results[0].type) &&
                          std::ranges::all_of(instruction.operands, [&](Value operand) {
                            return is_index_[operand.instruction];
                          }));
    }
  }

  bool AnySliceDiffers() {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!places_.IsInside(id)) continue;
      const OpRule rule = RuleFor(step_.module, entry_, id);
      const std::vector<Value>& operands = entry_.instructions[id].operands;
      for (size_t i = 0; i < operands.size(); ++i) {
        const MicroPlace wanted =
            PlaceOf(OperandSharding(rule, places_.strategies[id], static_cast<int>(i)));
        const bool is_cut = wanted.kind == MicroPlace::Kind::kSplit &&
                            places_.at(operands[i]).kind != MicroPlace::Kind::kSplit;
        if (is_cut && !is_index_[operands[i].instruction] && Differs(operands[i], wanted.dim)) {
          return true;
        }
      }
    }
    return false;
  }

 private:
  // May the slices along the dimension have different values?
  bool Differs(Value value, int dim) {
    const auto [known, is_new] = differs_.try_emplace({value, dim});
    if (is_new) known->second = FindDiffers(value, dim);
    return known->second;
  }

  bool FindDiffers(Value value, int dim) {
    const Instruction& instruction = entry_.instruction(value);
    if (instruction.opcode == Opcode::kParameter || !instruction.called.empty()) return true;
    const OpRule rule = RuleFor(step_.module, entry_, value.instruction);
    const int factor = rule.result_dims[value.result][dim];
    if (factor == kWholeDim || rule.factors[factor].local_form != LocalForm::kPlain) return true;
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      const std::vector<int>& dims = rule.operand_dims[i];
      const auto found = std::ranges::find(dims, factor);
      if (found == dims.end()) continue;
      if (Differs(instruction.operands[i], static_cast<int>(found - dims.begin()))) return true;
    }
    return false;
  }

  const Step& step_;
  const Computation& entry_;
  const MicroPlaces& places_;
  std::vector<bool> is_index_;  // by instruction: whole numbers counted from constants
  std::map<std::pair<Value, int>, bool> differs_;
};

}  // namespace

absl::StatusOr<bool> SlicesDifferByBatchAlone(const Step& step,
                                              const MicroBatchOptions& micro_batches) {
  const Mesh mesh({{"micro", micro_batches.num_micro_batches}});
  ASSIGN_OR_RETURN(const MicroPlaces places, FindMicroPlaces(step, micro_batches, mesh));
  return !SliceComparison(step, places).AnySliceDiffers();
}

absl::StatusOr<OneDeviceResults> RunSlices(const Step& step, int64_t num_slices,
                                           const pjrt::Client& client, const StepInputs& inputs,
                                           int num_steps) {
  ASSIGN_OR_RETURN(SlicedRun single,
                   SlicedRun::Compile(step, num_slices, /*is_widened=*/false, client));
  ASSIGN_OR_RETURN(SlicedRun reference,
                   SlicedRun::Compile(step, num_slices, /*is_widened=*/true, client));
  const auto in_own_types = [&](const StepInputs& values) { return single.Run(values, num_steps); };
  return DrawNoise(
      step, inputs,
      {.single = in_own_types, .nudged = in_own_types, .reference = [&](const StepInputs& values) {
         return reference.Run(values, num_steps);
       }});
}

}  // namespace minka
