#include "jax_step.h"

#include <algorithm>
#include <map>
#include <utility>

#include "fmt/format.h"
#include "lapack_calls.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/mark_text.h"
#include "minka/ir/rewriter.h"
#include "minka/ir/simplify.h"

namespace minka {
namespace {

// marks.py numbers the leaves of a boundary one by one, so many for each.
constexpr int kMostLeaves = 4096;

// Gives boundaries numbers in the order in which they stand in the step, the leaves of one the same
// number. A leaf that stands there again belongs to another call of the function around it.
void NumberBoundaries(Step& step) {
  std::map<int, int> num_seen;                 // by mark's number
  std::map<std::pair<int, int>, int> numbers;  // by boundary and call
  for (Mark& mark : step.marks) {
    if (mark.kind != MarkKind::kLayerBoundary) continue;
    const std::pair<int, int> boundary{mark.index / kMostLeaves, num_seen[mark.index]++};
    mark.index = numbers.try_emplace(boundary, static_cast<int>(numbers.size())).first->second;
  }
}

// Those inside of loops get numbers of their own when the loops are written out; here theirs are
// made to stand for a boundary, not for a leaf of it.
void JoinLeavesInLoops(Module& module) {
  for (ComputationId id = 0; id < static_cast<ComputationId>(module.computations.size()); ++id) {
    if (id == module.entry) continue;
    for (Instruction& instruction : module.computations[id].instructions) {
      const auto text = instruction.frontend_attributes.find(kMarkAttribute);
      if (text == instruction.frontend_attributes.end()) continue;
      absl::StatusOr<Mark> mark = ParseMark(text->second);
      if (!mark.ok() || mark->kind != MarkKind::kLayerBoundary) continue;
      mark->index /= kMostLeaves;
      text->second = MarkText(*mark);
    }
  }
}

void NameLoss(Step& step) {
  const auto loss = std::ranges::find(step.marks, MarkKind::kLoss, &Mark::kind);
  if (loss == step.marks.end()) return;
  const std::vector<Value>& results = step.module.entry_computation().results;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i] != loss->value || step.results[i].role == ResultRole::kState) continue;
    step.results[i].role = ResultRole::kLoss;
    return;
  }
}

void DonateState(Step& step) {
  for (int i = 0; i < static_cast<int>(step.parameters.size()); ++i) {
    const ParameterInfo& info = step.parameters[i];
    if (info.role != ParameterRole::kState) continue;
    step.module.aliases.push_back({.result = info.state_result, .parameter = i});
  }
}

// Operations are named by where they stand in the function: without "jit(train_step)/", behind
// which JAX 0.6 says "jit(main)/", too.
void DropFunctionName(Module& module) {
  const std::string function = "jit(" + module.name + ")/", main = "jit(main)/";
  for (Computation& computation : module.computations) {
    for (Instruction& instruction : computation.instructions) {
      std::string& name = instruction.op_name;
      for (const std::string& prefix : {function, main}) {
        if (name.starts_with(prefix)) name.erase(0, prefix.size());
      }
    }
  }
}

// What the devices' compiler would refuse without saying where it stands.
absl::Status RefuseCustomCall(const Instruction& call, const std::string& where) {
  const std::string& target = call.As<OpaqueAttributes>().name;
  if (target.find("python") != std::string::npos) {
    return InvalidArgument(
        "{} calls back into Python ({}), which runs on no other device: leave out "
        "jax.debug.print, jax.debug.callback, jax.pure_callback and io_callback, or return what "
        "they need",
        where, target);
  }
  if (target.starts_with("lapack_")) {
    return Unimplemented(
        "{} calls LAPACK ({}), which no device has: of linear algebra a step may have cholesky, "
        "triangular solves, lu (inv, solve, det), qr and eigh; compute this outside of it",
        where, target);
  }
  return absl::OkStatus();
}

absl::Status RefuseCustomCalls(const Module& module) {
  for (const Computation& computation : module.computations) {
    for (const Instruction& instruction : computation.instructions) {
      if (instruction.opcode != Opcode::kCustomCall) continue;
      if (RefuseCustomCall(instruction, "").ok()) continue;
      const std::string name = instruction.op_name.empty() ? module.name : instruction.op_name;
      const std::string& line = instruction.source_line;
      return RefuseCustomCall(instruction, line.empty() ? name : fmt::format("{}: {}", line, name));
    }
  }
  return absl::OkStatus();
}

// What JAX notes about shardings, of random keys in any function, are identities that a compiler
// without JAX's meshes has no use for.
Module DropShardings(const Module& module) {
  Module out = module;
  for (size_t i = 0; i < module.computations.size(); ++i) {
    const Computation& source = module.computations[i];
    Rewriter rewriter(source);
    for (InstructionId id = 0; id < source.num_instructions(); ++id) {
      const Instruction& instruction = source.instructions[id];
      const bool is_note = instruction.opcode == Opcode::kCustomCall &&
                           instruction.As<OpaqueAttributes>().name == "Sharding";
      if (is_note) {
        rewriter.Map(id, {rewriter.Now(instruction.operands[0])});
      } else {
        rewriter.Copy(id);
      }
    }
    out.computations[i] = std::move(rewriter).Finish();
  }
  return out;
}

}  // namespace

absl::StatusOr<Step> StepOfJax(std::string_view hlo, const std::string& description) {
  ASSIGN_OR_RETURN(const Module imported, ImportHlo(hlo));
  Module module = DropShardings(InlineCalls(ReplaceLapackCalls(imported)));
  if (module.name.starts_with("jit_"))
    module.name.erase(0, 4);  // which JAX puts before the function's name
  RETURN_IF_ERROR(RefuseCustomCalls(module));
  DropFunctionName(module);
  JoinLeavesInLoops(module);
  module.frontend_attributes["minka.step"] = description;
  ASSIGN_OR_RETURN(Step step, MakeStep(std::move(module), {}));
  NumberBoundaries(step);
  NameLoss(step);
  DonateState(step);
  return step;
}

}  // namespace minka
