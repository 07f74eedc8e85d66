// What is estimated of programs for GPUs, compared with what XLA:GPU makes of them; no GPU is
// needed, but its plugin.
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "fmt/format.h"
#include "minka/analysis/fusion_groups.h"
#include "minka/base/status.h"
#include "minka/cluster/cluster.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/hlo_proto.h"
#include "minka/lowering/spmd.h"
#include "minka/models/registry.h"
#include "minka/runtime/pjrt/gpu_target.h"
#include "minka/runtime/pjrt/plugin.h"
#include "minka/runtime/pjrt/target.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// Estimates of plans must not lie below what is compiled, nor far above.
const std::vector<Criterion> kCriteria = {{.field = "memory_error", .absolute = 0.05},
                                          {.field = "bytes_error", .absolute = 0.1}};

struct Case {
  const char* model;
  int64_t batch;
  int64_t layers;  // 0: the model's
  const char* mesh;
  Method method = Method::kShard;

  std::string name() const {
    return fmt::format("{} {} {} {} {}", model, batch, layers, mesh, MethodName(method));
  }
};

constexpr Case kCases[] = {
    {"gpt-1.3b", 16, 4, "x=1"},
    {"gpt-125m", 8, 12, "x=1"},
    {"gpt-350m", 4, 8, "x=1"},
    {"gpt-6.7b", 8, 3, "x=1"},
    {"gpt-tiny", 16, 3, "x=1"},
    {"bert-large", 8, 6, "x=1"},
    {"moe-380m", 8, 4, "x=1"},
    {"wresnet-250m", 32, 0, "x=1"},
    {"unet-tiny", 64, 0, "x=1"},
    {"mlp", 256, 6, "x=1"},
    {"gpt-350m", 32, 4, "data=2,model=4"},
    {"gpt-1.3b", 32, 4, "data=8", Method::kZero3},
    {"bert-large", 32, 6, "data=8", Method::kZero2},
    {"moe-380m", 16, 4, "data=4,model=2"},
    {"wresnet-250m", 64, 0, "data=8", Method::kData},
};

absl::StatusOr<TracedStep> TraceOf(const Case& one) {
  ModelOptions options{.global_batch = one.batch};
  if (one.layers > 0 && std::string_view(one.model) != "mlp") options.num_layers = one.layers;
  ASSIGN_OR_RETURN(const NamedModel named, MakeModel(one.model, options));
  return Trace(named.model, named.optimizer, named.trace);
}

// Of a step that costs nothing but the bytes that it moves.
Cluster MovingBytesAlone(Cluster cluster) {
  cluster.device.peak_flops_per_us = cluster.device.peak_half_flops_per_us = 1e30;
  cluster.device.memory_bytes_per_us = 1e3;
  cluster.device.launch_us = 0;
  cluster.intra_host = {.latency_us = 0, .bytes_per_us = 1e30};
  return cluster;
}

bool IsKernel(const Instruction& instruction) {
  static const std::set<std::string, std::less<>> kNone = {
      "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "reshape", "after-all"};
  const std::string name = instruction.opcode == Opcode::kOther
                               ? instruction.As<OpaqueAttributes>().name
                               : std::string(OpcodeName(instruction.opcode));
  return !kNone.contains(name);
}

struct Moved {
  int num_kernels = 0;
  double gigabytes = 0;
};

// Of XLA's own program: what its kernels read and write.
absl::StatusOr<Moved> MovedBy(const std::string& optimized_module) {
  ASSIGN_OR_RETURN(const Module module, ImportHlo(optimized_module));
  const Computation& entry = module.entry_computation();
  Moved moved;
  for (const Instruction& instruction : entry.instructions) {
    if (!IsKernel(instruction)) continue;
    ++moved.num_kernels;
    for (const Value operand : instruction.operands) {
      moved.gigabytes += static_cast<double>(entry.shape(operand).num_bytes()) * 1e-9;
    }
    for (const Shape& result : instruction.results) {
      moved.gigabytes += static_cast<double>(result.num_bytes()) * 1e-9;
    }
  }
  return moved;
}

int NumKernels(const Computation& computation) {
  const FusionPartition groups = PartitionIntoFusions(computation, {.platform = Platform::kCuda});
  std::set<int> kernels;
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    if (IsKernel(instruction) && instruction.opcode != Opcode::kOptBarrier &&
        !groups.repeated[id]) {
      kernels.insert(groups.group[id]);
    }
  }
  return static_cast<int>(kernels.size());
}

absl::StatusOr<Json> RunCase(const Case& one, const std::string& plugin_path) {
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(one.mesh));
  const auto num_devices = static_cast<int>(mesh.num_devices());
  ASSIGN_OR_RETURN(const Cluster cluster,
                   Cluster::Preset(fmt::format("dgx-h100:1x{}", num_devices)));
  ASSIGN_OR_RETURN(const TracedStep traced, TraceOf(one));
  PlanRequest request{.cluster = cluster};
  request.meshes = {mesh};
  request.methods = {one.method};
  request.search.memory_limit_bytes = cluster.device.memory_bytes;
  ASSIGN_OR_RETURN(const PlanResult planned, PlanStep(traced.step, request));
  const Plan& plan = planned.candidates[planned.best].plan;
  ASSIGN_OR_RETURN(const SpmdProgram program,
                   LowerSpmd(planned.prepared.module, plan.stage, Platform::kCuda));
  request.cluster = MovingBytesAlone(cluster);
  ASSIGN_OR_RETURN(const PlanResult moving, PlanStep(traced.step, request));

  ASSIGN_OR_RETURN(const std::string path,
                   pjrt::FindPlugin({.kind = Platform::kCuda, .path = plugin_path}));
  pjrt::PrepareEnvironment(Platform::kCuda);
  ASSIGN_OR_RETURN(const pjrt::Plugin plugin, pjrt::Plugin::Load(path));
  ASSIGN_OR_RETURN(const std::string description, pjrt::GpuTarget(cluster.device.name));
  ASSIGN_OR_RETURN(const pjrt::Target target,
                   pjrt::Target::Create(plugin, description, num_devices));
  ASSIGN_OR_RETURN(const pjrt::TargetProgram compiled, target.Compile(ExportHlo(program.module)));
  ASSIGN_OR_RETURN(const Moved moved, MovedBy(compiled.optimized_module));

  const auto bytes = static_cast<double>(compiled.memory.total_bytes());
  Json row = {{"name", one.name()},
              {"kernels", NumKernels(planned.prepared.module.entry_computation())},
              {"xla_kernels", moved.num_kernels},
              {"memory_gb", static_cast<double>(plan.peak_memory_bytes) * 1e-9},
              {"xla_memory_gb", bytes * 1e-9},
              {"memory_error", static_cast<double>(plan.peak_memory_bytes) / bytes - 1}};
  if (num_devices == 1) {
    row["gigabytes"] = moving.candidates[moving.best].plan.step_time_us * 1e-6;
    row["xla_gigabytes"] = moved.gigabytes;
    row["bytes_error"] = std::abs(row["gigabytes"].get<double>() / moved.gigabytes - 1);
  }
  return row;
}

std::string TableRow(const Json& row) {
  const auto number = [&](const char* field, int digits) {
    return row.contains(field) ? fmt::format("{:.{}f}", row[field].get<double>(), digits)
                               : std::string("-");
  };
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {:+.1f} % |",
                     row["name"].get<std::string>(), row["kernels"].get<int>(),
                     row["xla_kernels"].get<int>(), number("gigabytes", 2),
                     number("xla_gigabytes", 2), number("memory_gb", 3), number("xla_memory_gb", 3),
                     100 * row["memory_error"].get<double>());
}

constexpr char kHeader[] =
    "| model, batch, layers, mesh, method | kernels | XLA's | GB moved | by XLA's | memory GB | "
    "XLA's | error |\n|---|---|---|---|---|---|---|---|\n";

constexpr char kIntroduction[] =
    "# Programs for GPUs\n\n"
    "Made by `gpu_programs_benchmark --update`, which needs no GPU: what is estimated of a plan "
    "for "
    "H100s\n"
    "beside what XLA:GPU compiles for them without one (kernels are not tried: programs that a GPU "
    "compiles differ\n"
    "a little, see docs/design/0021). Memory is per device, as `minka plan` says it.\n\n";

std::string Page(const Json& rows) {
  std::string text = fmt::format("{}{}", kIntroduction, kHeader);
  for (const Json& row : rows) text += TableRow(row) + "\n";
  return text;
}

absl::Status RunAll(const std::string& filter, const std::string& plugin,
                    const std::function<void(Json)>& add) {
  fmt::print("{}", kHeader);
  absl::Status failed;
  for (const Case& one : kCases) {
    if (one.name().find(filter) == std::string::npos) continue;
    absl::StatusOr<Json> row = RunApart(one.name(), [&] { return RunCase(one, plugin); });
    if (!row.ok()) {
      fmt::print(stderr, "{}\n", Message(row.status()));
      failed = row.status();
      continue;
    }
    fmt::print("{}\n", TableRow(*row));
    std::fflush(stdout);
    add(*std::move(row));
  }
  return failed;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  std::string filter, plugin;
  minka::TableOptions table{.folder = "benchmarks/gpu"};
  CLI::App app("What is estimated of programs for GPUs, beside what XLA makes of them");
  app.add_option("--filter", filter, "only cases whose name contains this");
  app.add_option("--plugin", plugin,
                 "CUDA's PJRT plugin. Default: MINKA_PJRT_PLUGIN, else searched (make deps-gpu)");
  minka::AddTableOptions(app, table);
  return minka::MakeTableOfCommand(
      app, argc, argv,
      {.criteria = minka::kCriteria,
       .measure = [&](const auto& add) { return minka::RunAll(filter, plugin, add); },
       .page = minka::Page},
      table);
}
