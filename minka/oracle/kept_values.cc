#include "minka/oracle/kept_values.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/ir/micro_loop.h"
#include "minka/lowering/spmd.h"
#include "minka/runtime/mesh/split_array.h"

namespace minka {
namespace {

// [m, .., b, ..] -> [.., m b, ..]: slices along `dim` of `whole` put together; those of what is the
// same for all (-1): the first.
std::string JoinSlices(std::string_view slices, const Shape& whole, int64_t num_slices, int dim) {
  std::string joined(slices.substr(0, whole.num_bytes()));
  if (dim < 0) return joined;
  const Mesh mesh({{"micro", num_slices}});
  Sharding sharding = Sharding::Replicated(whole.rank());
  sharding.dims[dim].PushMinor(0);
  const size_t slice_bytes = slices.size() / num_slices;
  for (int64_t i = 0; i < num_slices; ++i) {
    PutPart(slices.substr(i * slice_bytes, slice_bytes), whole, sharding, mesh, i, joined);
  }
  return joined;
}

std::string_view BytesOf(const std::vector<int32_t>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int32_t)};
}

// Slices of one value, from `first` on, one behind the other: those of `count` results.
struct Slices {
  std::string bytes;
  PartsOfResult parts;
  std::string replica_faults;
};
Slices SlicesOf(const MeshResults& run, size_t first, size_t count) {
  Slices slices{.parts = run.parts[first]};
  slices.parts.of_elements.clear();
  for (size_t i = first; i < first + count; ++i) {
    slices.bytes += *run.values[i].bytes;
    const std::vector<int32_t>& parts = run.parts[i].of_elements;
    slices.parts.of_elements.insert(slices.parts.of_elements.end(), parts.begin(), parts.end());
    if (slices.replica_faults.empty()) slices.replica_faults = run.replica_faults[i];
  }
  return slices;
}

absl::StatusOr<PipelineProgram> LowerOneMesh(const Module& module, const StagePlan& stage,
                                             Platform platform,
                                             const std::vector<ValueVersion>& kept) {
  ASSIGN_OR_RETURN(SpmdProgram lowered, LowerSpmd(module, stage, platform, kept));
  MeshSignature signature = SignatureOf(module, std::move(lowered.parameters), lowered.results);
  const MicroLoop loop = FindMicroLoop(module);
  for (const ValueVersion& value : kept) {
    Shape& shape = signature.results.emplace_back(module.entry_computation().shape(value.value));
    if (!loop.IsTransient(value.value.instruction)) continue;
    shape.dims.insert(shape.dims.begin(), loop.num_micro_batches);
  }
  return ProgramOfOneMesh(std::move(lowered.module), stage.mesh, std::move(signature));
}

}  // namespace

SearchedPlan SearchedPlanOf(const Module& module, const Plan& plan) {
  return {.stages = {{module, plan.stage}},
          .micro_batches = {.num_micro_batches = plan.num_micro_batches,
                            .per_micro_batch = plan.per_micro_batch,
                            .narrow_sums = plan.narrow_sums},
          .lower = [&module, &plan](Platform platform, const SearchedPlan::Kept& kept) {
            return LowerOneMesh(module, plan.stage, platform, kept[0]);
          }};
}

absl::StatusOr<KeptValues> KeptValues::Create(const Step& prepared, SearchedPlan plan) {
  ASSIGN_OR_RETURN(MicroBatchedStep micro_batched, MakeMicroBatches(prepared, plan.micro_batches));
  return KeptValues(std::move(micro_batched), prepared.results.size(), std::move(plan));
}

KeptValues::KeptValues(MicroBatchedStep micro_batched, size_t num_results, SearchedPlan plan)
    : micro_batched_(std::move(micro_batched)), num_results_(num_results), plan_(std::move(plan)) {
  for (const SearchedPlan::Stage& stage : plan_.stages) {
    loops_.push_back(FindMicroLoop(stage.module));
    std::map<std::string_view, InstructionId>& by_name = by_name_.emplace_back();
    const Computation& entry = stage.module.entry_computation();
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      by_name[entry.instructions[id].name] = id;
    }
  }
}

// A stage keeps the names of the step; what it computes otherwise has another one.
std::optional<ValuePlace> KeptValues::Find(Value value) const {
  const MicroBatchedValue& became = micro_batched_.became[value.instruction][value.result];
  if (became.value.instruction < 0) return std::nullopt;
  const Computation& entry = micro_batched_.step.module.entry_computation();
  for (int number = 0; number < static_cast<int>(plan_.stages.size()); ++number) {
    const auto& [module, plan] = plan_.stages[number];
    const auto found = by_name_[number].find(entry.instruction(became.value).name);
    if (found == by_name_[number].end()) continue;
    const Value here{found->second, became.value.result};
    for (int version = 0; version <= static_cast<int>(plan.reshards.size()); ++version) {
      if (version > 0 && plan.reshards[version - 1].value != here) continue;
      Sharding sharding = VersionSharding(module, plan, here, version);
      if (!sharding.partial.empty()) continue;
      return ValuePlace{.stage = number,
                        .made = {here, version},
                        .dim = became.dim,
                        .sharding = std::move(sharding)};
    }
  }
  return std::nullopt;
}

std::string KeptValues::Describe(const ValuePlace& place) const {
  std::string text = ToString(place.sharding, plan_.stages[place.stage].plan.mesh);
  if (plan_.stages.size() > 1) text += fmt::format(" on stage {}", place.stage);
  return text;
}

bool KeptValues::IsTransient(const ValuePlace& place) const {
  return loops_[place.stage].IsTransient(place.made.value.instruction);
}

std::vector<size_t> KeptValues::Order(const std::vector<ValuePlace>& places) const {
  std::vector<size_t> order(places.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return places[i].stage; });
  return order;
}

absl::StatusOr<StepRunner> KeptValues::Compile(const std::vector<ValuePlace>& places,
                                               Session& session) const {
  SearchedPlan::Kept kept(plan_.stages.size());
  for (const size_t i : Order(places)) kept[places[i].stage].push_back(places[i].made);
  ASSIGN_OR_RETURN(PipelineProgram program, plan_.lower(session.platform(), kept));
  ASSIGN_OR_RETURN(std::unique_ptr<PipelineExecutor> executor, session.Load(std::move(program)));
  return StepRunner(micro_batched_.step, std::move(executor));
}

MeshResults KeptValues::Whole(const std::vector<ValuePlace>& places, MeshResults run) const {
  MeshResults whole;
  whole.values.resize(num_results_ + places.size());
  whole.parts.resize(whole.values.size());
  whole.replica_faults.resize(whole.values.size());
  for (size_t i = 0; i < num_results_; ++i) {
    whole.values[i] = std::move(run.values[i]);
    whole.parts[i] = std::move(run.parts[i]);
    whole.replica_faults[i] = std::move(run.replica_faults[i]);
  }
  size_t next = num_results_;
  for (const size_t i : Order(places)) {
    const ValuePlace& place = places[i];
    const size_t at = num_results_ + i;
    const int64_t num_slices = IsTransient(place) ? loops_[place.stage].num_micro_batches : 1;
    const size_t count = plan_.has_slices ? num_slices : 1;
    Slices slices = SlicesOf(run, next, count);
    next += count;
    Shape shape = plan_.stages[place.stage].module.entry_computation().shape(place.made.value);
    if (num_slices > 1 && place.dim >= 0) shape.dims[place.dim] *= num_slices;
    whole.replica_faults[at] = std::move(slices.replica_faults);
    whole.values[at] = {shape, std::make_shared<const std::string>(
                                   JoinSlices(slices.bytes, shape, num_slices, place.dim))};
    if (slices.parts.of_elements.empty()) continue;
    const std::string joined = JoinSlices(BytesOf(slices.parts.of_elements),
                                          {ElementType::kS32, shape.dims}, num_slices, place.dim);
    slices.parts.of_elements.resize(joined.size() / sizeof(int32_t));
    std::memcpy(slices.parts.of_elements.data(), joined.data(), joined.size());
    whole.parts[at] = std::move(slices.parts);
  }
  return whole;
}

}  // namespace minka
