#include "jax_program.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "jax_step.h"
#include "minka/base/status.h"
#include "minka/driver/dump.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"
#include "minka/lowering/over_partitions.h"
#include "minka/lowering/spmd.h"

namespace minka {
namespace {

absl::StatusOr<Cluster> ClusterOf(const std::string& name, const ParallelizeRequest& request) {
  if (name.empty()) return LocalClusterOf(request);
  ASSIGN_OR_RETURN(Cluster cluster, Cluster::Named(name));
  if (cluster.num_devices() != request.num_devices) {
    return InvalidArgument("cluster {} has {} devices, the mesh {}", name, cluster.num_devices(),
                           request.num_devices);
  }
  return cluster;
}

std::vector<SplitArray> SplitArrays(const std::vector<Shape>& shapes,
                                    const std::vector<Sharding>& shardings, const Mesh& mesh) {
  std::vector<SplitArray> arrays;
  for (size_t i = 0; i < shapes.size(); ++i) {
    SplitArray& array = arrays.emplace_back();
    array.shape.assign(shapes[i].dims.begin(), shapes[i].dims.end());
    for (const AxisList& dim : shardings[i].dims) {
      std::vector<std::string>& names = array.axes.emplace_back();
      for (int axis = 0; axis < dim.size(); ++axis) names.push_back(mesh.axis(dim[axis]).name);
    }
  }
  return arrays;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JaxProgram>> JaxProgram::Create(const ParallelizeRequest& request,
                                                               const std::string& cluster_name,
                                                               std::optional<Platform> platform) {
  ASSIGN_OR_RETURN(const Step step, StepOfJax(request.hlo, request.description));
  ASSIGN_OR_RETURN(const ParallelMethod method, MethodOf(request));
  ASSIGN_OR_RETURN(const Cluster cluster, ClusterOf(cluster_name, request));
  ASSIGN_OR_RETURN(const CostModelChoice costs, CostsOf(request));
  ASSIGN_OR_RETURN(PlanRequest planned, RequestFor(cluster, method, costs));
  planned.options = {{"method", request.method}, {"frontend", "jax"}};
  ASSIGN_OR_RETURN(PlanResult found, PlanStep(step, planned));

  std::unique_ptr<JaxProgram> program(new JaxProgram);
  program->prepared_ = std::move(found.prepared);
  program->plan_ = std::move(found.candidates[found.best].plan);
  Plan& plan = program->plan_;
  RETURN_IF_ERROR(CheckPlan(plan, program->prepared_.module));
  const Platform lowered_for = platform.value_or(cluster.platform());
  ASSIGN_OR_RETURN(const SpmdProgram local,
                   LowerSpmd(program->prepared_.module, plan.stage, lowered_for));
  std::ranges::copy(local.notes, std::back_inserter(plan.notes));
  const MeshSignature signature = SignatureOf(program->prepared_.module, local);
  const Mesh& mesh = plan.stage.mesh;
  program->parameters_ = SplitArrays(signature.parameters, signature.parameter_shardings, mesh);
  program->results_ = SplitArrays(signature.results, signature.result_shardings, mesh);
  program->local_ = OverPartitions(local.module, mesh.num_devices(), lowered_for);
  RETURN_IF_ERROR(WithContext(Verify(program->local_), "lowering made a wrong program"));
  program->hlo_ = ExportHlo(program->local_);
  return program;
}

absl::Status JaxProgram::Dump(const std::string& folder) const {
  ASSIGN_OR_RETURN(const DumpFolder dump, DumpFolder::Create(folder));
  RETURN_IF_ERROR(dump.Write("03-plan.json", PlanJson()));
  return dump.Write("04-local.hlo.txt", HloText(local_));
}

std::vector<std::pair<std::string, int64_t>> JaxProgram::mesh() const {
  const Mesh& mesh = plan_.stage.mesh;
  std::vector<std::pair<std::string, int64_t>> axes;
  for (int i = 0; i < mesh.num_axes(); ++i) {
    axes.emplace_back(mesh.axis(i).name, mesh.size(i));
  }
  return axes;
}

}  // namespace minka
