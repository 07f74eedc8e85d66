#include "minka/driver/initial_state.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/prepare.h"
#include "minka/frontend/random.h"
#include "minka/ir/rewriter.h"
#include "minka/ir/simplify.h"
#include "minka/lowering/split_stacks.h"
#include "minka/lowering/spmd.h"
#include "minka/program/pipeline_program.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

// A computation that libraries of the host do, as JAX's singular values, is not there on workers.
absl::Status CheckRunsAnywhere(const Module& module) {
  for (const Computation& computation : module.computations) {
    for (const Instruction& instruction : computation.instructions) {
      if (instruction.opcode != Opcode::kCustomCall || IsBatched(instruction)) continue;
      return Unimplemented("{} calls {}, which not all devices have",
                           instruction.op_name.empty() ? module.name : instruction.op_name,
                           instruction.As<OpaqueAttributes>().name);
    }
  }
  return absl::OkStatus();
}

// Each result becomes a value of its own: equal ones (two moments of zeros) may lie otherwise.
Computation SetResultsApart(const Computation& source) {
  Rewriter rewriter(source);
  for (InstructionId id = 0; id < source.num_instructions(); ++id) rewriter.Copy(id);
  std::vector<Value> results;
  for (const Value value : source.results) {
    const Shape& shape = source.shape(value);
    results.push_back(rewriter.AppendOne({.opcode = Opcode::kOptBarrier,
                                          .name = rewriter.NewName("result"),
                                          .operands = {rewriter.Now(value)},
                                          .results = {shape}}));
  }
  Computation apart = std::move(rewriter).Finish();
  apart.results = std::move(results);
  return apart;
}

// What one mesh makes.
struct Share {
  Step step;
  std::vector<int> results;  // of the whole program, by result
};

// Results are named by their position, so that they can be pinned whatever their names are.
std::string ResultName(size_t position) { return fmt::format("value_{}", position); }

Share ShareOf(const InitialValuesProgram& program, int mesh, const PipelineExecutor& training) {
  Share share{.step = program.step};
  Computation& entry = share.step.module.entry_computation();
  const std::vector<Value> values = std::exchange(entry.results, {});
  share.step.results.clear();
  for (size_t i = 0; i < values.size(); ++i) {
    const MeshSlot& at = training.program().parameters[program.parameters[i]].front();
    if (at.mesh != mesh) continue;
    share.step.results.push_back({.name = ResultName(entry.results.size())});
    entry.results.push_back(values[i]);
    share.results.push_back(static_cast<int>(i));
  }
  share.step.marks.clear();
  share.step.module.aliases.clear();
  for (size_t i = 0; i < share.step.parameters.size(); ++i) {
    share.step.parameters[i] = {.name = fmt::format("input_{}", i)};
  }
  entry = SetResultsApart(Computation(entry));
  share.step.module = EliminateDeadCode(std::move(share.step.module));
  return share;
}

absl::StatusOr<PipelineProgram> PlanShare(const Share& share, const InitialValuesProgram& program,
                                          const PipelineExecutor& training, const Mesh& mesh,
                                          Platform platform) {
  PlanRequest request{.cluster = Cluster::Local(static_cast<int>(mesh.num_devices())),
                      .meshes = {mesh},
                      .names_culprits = false};
  for (size_t i = 0; i < share.results.size(); ++i) {
    const ArrayLayout layout = training.ParameterLayout(program.parameters[share.results[i]]);
    request.search.pins.push_back(
        fmt::format("{}={}", ResultName(i), ToString(layout.sharding, mesh)));
  }
  ASSIGN_OR_RETURN(const PlanResult planned, PlanStep(share.step, request));
  const Plan& plan = planned.candidates[planned.best].plan;
  ASSIGN_OR_RETURN(SpmdProgram local, LowerSpmd(planned.prepared.module, plan.stage, platform));
  MeshSignature signature = SignatureOf(planned.prepared.module, local);
  return ProgramOfOneMesh(std::move(local.module), mesh, std::move(signature));
}

// Puts the program of mesh number `mesh` into that of all.
void Join(PipelineProgram of_mesh, const Share& share, int mesh, PipelineProgram& all) {
  all.meshes[mesh] = std::move(of_mesh.meshes.front());
  for (size_t i = 0; i < of_mesh.parameters.size(); ++i) {
    all.parameters[i].push_back({.mesh = mesh, .slot = of_mesh.parameters[i].front().slot});
  }
  for (size_t i = 0; i < share.results.size(); ++i) {
    all.results[share.results[i]] = {.mesh = mesh, .slot = of_mesh.results[i].slot};
  }
}

absl::Status CheckLayouts(const InitialValuesProgram& program, const PipelineExecutor& training,
                          const StepExecutor& executor) {
  for (size_t i = 0; i < program.parameters.size(); ++i) {
    const ArrayLayout wanted = training.ParameterLayout(program.parameters[i]);
    const ArrayLayout now = executor.ResultLayout(static_cast<int>(i));
    if (now == wanted) continue;
    return InvalidArgument("initial value {} is {} {}; the step takes {} {}", i,
                           ToString(now.shape), ToString(now.sharding, now.mesh),
                           ToString(wanted.shape), ToString(wanted.sharding, wanted.mesh));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<DistributedArray>> MakeValues(const InitialValuesProgram& program,
                                                         std::span<const Literal> inputs,
                                                         const PipelineExecutor& training,
                                                         Session& session) {
  RETURN_IF_ERROR(CheckRunsAnywhere(program.step.module));
  PipelineProgram all;
  all.parameters.resize(inputs.size());
  all.results.resize(program.parameters.size());
  for (const MeshProgram& trained : training.program().meshes) {
    const auto mesh = static_cast<int>(all.meshes.size());
    all.meshes.push_back({.mesh = trained.mesh});
    const Share share = ShareOf(program, mesh, training);
    if (share.results.empty()) continue;
    ASSIGN_OR_RETURN(PipelineProgram of_mesh,
                     PlanShare(share, program, training, trained.mesh, session.platform()));
    Join(std::move(of_mesh), share, mesh, all);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<PipelineExecutor> executor, session.Load(std::move(all)));
  RETURN_IF_ERROR(CheckLayouts(program, training, *executor));
  std::vector<DistributedArray> arguments;
  std::vector<DistributedArray*> pointers;
  for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
    ASSIGN_OR_RETURN(arguments.emplace_back(), executor->Put(i, inputs[i]));
  }
  for (DistributedArray& argument : arguments) pointers.push_back(&argument);
  ASSIGN_OR_RETURN(std::vector<DistributedArray> values, executor->Run(pointers));
  RETURN_IF_ERROR(executor->Wait());
  return values;
}

absl::StatusOr<InitialValuesProgram> ProgramInRows(InitialValuesProgram program,
                                                   const StepRows& rows) {
  std::set<int> stacked;
  std::vector<int> parameters;
  for (int i = 0; i < static_cast<int>(program.parameters.size()); ++i) {
    const std::vector<int>& numbers = rows.parameters[program.parameters[i]];
    if (numbers.size() > 1) stacked.insert(i);
    parameters.insert(parameters.end(), numbers.begin(), numbers.end());
  }
  ASSIGN_OR_RETURN(SplitStep split, SplitResults(program.step, stacked));
  return InitialValuesProgram{std::move(split.step), std::move(parameters)};
}

absl::StatusOr<InitialValuesProgram> TraceInitialValues(
    const Step& given, std::span<const std::optional<Initializer>> initializers,
    const StepRows& rows, const PipelineExecutor& training) {
  Graph graph("initial_values");
  const Tensor key = MixKey(graph.Parameter(SeedOf(0).shape, "seed"));
  const Computation& entry = given.module.entry_computation();
  const auto lies_on_one_mesh = [&](int number) { return training.NumPlaces(number) == 1; };
  InitialValuesProgram program;
  std::vector<Value> values;
  for (int i = 0; i < static_cast<int>(initializers.size()); ++i) {
    if (!initializers[i] || !std::ranges::all_of(rows.parameters[i], lies_on_one_mesh)) continue;
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    const Tensor value = InitialValue(*initializers[i], shape, given.parameters[i].name, key);
    program.parameters.push_back(i);
    values.push_back(value.value());
  }
  RETURN_IF_ERROR(graph.status());
  graph.builder().SetResults(values);
  ASSIGN_OR_RETURN(program.step.module, std::move(graph.module()).Finish());
  program.step.parameters.resize(1);
  program.step.results.resize(values.size());
  return ProgramInRows(std::move(program), rows);
}

Literal SeedOf(uint64_t seed) {
  const uint64_t key = seed + 1;
  const uint32_t words[] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  return {{ElementType::kU32, {2}},
          std::make_shared<const std::string>(reinterpret_cast<const char*>(words), sizeof(words))};
}

}  // namespace minka
