#include "minka/driver/layer_costs.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/driver/stage_hash.h"
#include "minka/ir/micro_loop.h"
#include "minka/lowering/task_programs.h"
#include "minka/planner/intra_op/formulation.h"
#include "minka/planner/intra_op/memory_estimate.h"

namespace minka {
namespace {

// Of the share of the work limit that all layers get.
constexpr int64_t kShareOfWork = 50;
// Estimates need not be nearer.
constexpr double kGap = 0.02;

struct HeldBytes {
  int64_t all_the_time = 0, of_micro_batch = 0, of_update = 0;
  int64_t owned = 0;  // of those that are there all the time: state and sums
  // Of a micro-batch between the parts of its backward pass, and of that what the first makes.
  int64_t put_off = 0, handed_on = 0;
};

// What is alive between the programs of a stage: of values that exist once per micro-batch, copies
// of weights that its forward pass makes among them, those that its backward pass reads and its
// forward pass has made or read; of others all, those that one phase of the update makes for
// another apart. Programs are those of a split backward pass: what one part of it makes for the
// other is there in between alone.
class HeldBetween {
 public:
  HeldBetween(const StageStep& stage, const std::vector<TaskSignature>& programs)
      : stage_(stage), loop_(FindMicroLoop(stage.step.module)) {
    for (const TaskSignature& program : programs) {
      if (program.task.kind == ProgramKind::kForward) {
        of_forward_.insert(program.parameters.begin(), program.parameters.end());
        of_forward_.insert(program.results.begin(), program.results.end());
      }
      for (const ValueVersion& made : program.results) {
        if (loop_.LeavesLoop(made.value.instruction)) continue;
        if (program.task.kind == ProgramKind::kForward) made_by_forward_.insert(made);
        if (program.task.kind == ProgramKind::kBackward) made_by_backward_.insert(made);
      }
      if (program.task.kind == ProgramKind::kApply) {
        of_update_.insert(program.results.begin(), program.results.end());
        continue;
      }
      of_others_.insert(program.parameters.begin(), program.parameters.end());
    }
    for (const TaskSignature& program : programs) Add(program);
    AddPutOff(programs);
  }

  const HeldBytes& bytes() const { return bytes_; }

 private:
  void Add(const TaskSignature& program) {
    for (size_t i = 0; i < program.parameters.size(); ++i) {
      const ValueVersion& made = program.parameters[i];
      if (int64_t* bytes = BytesOf(made, program.task.kind)) {
        *bytes += program.parameter_shapes[i].num_bytes();
        if (bytes == &bytes_.all_the_time && IsOwned(made))
          bytes_.owned += program.parameter_shapes[i].num_bytes();
        counted_.insert(made);
      }
    }
  }

  // What one part of the backward pass makes for the other, and what the other needs besides.
  void AddPutOff(const std::vector<TaskSignature>& programs) {
    std::set<Value> seen, read;
    for (const TaskSignature& program : programs) {
      if (program.task.kind != ProgramKind::kWeightGradient) continue;
      for (const ValueVersion& made : program.parameters) FindRead(made.value, seen, read);
    }
    std::set<ValueVersion> counted;
    for (const TaskSignature& program : programs) {
      const bool is_first = program.task.kind == ProgramKind::kBackward;
      if (!is_first && program.task.kind != ProgramKind::kWeightGradient) continue;
      for (size_t i = 0; i < program.parameters.size(); ++i) {
        const ValueVersion& made = program.parameters[i];
        if (!IsOfMicroBatch(made) || !read.contains(made.value) || !counted.insert(made).second)
          continue;
        const int64_t bytes = program.parameter_shapes[i].num_bytes();
        bytes_.put_off += bytes;
        if (made_by_backward_.contains(made)) bytes_.handed_on += bytes;
      }
    }
  }

  // Values that a program needs from others for this one.
  void FindRead(Value value, std::set<Value>& seen, std::set<Value>& read) const {
    if (!seen.insert(value).second) return;
    if (!std::ranges::binary_search(stage_.computed_again, value.instruction)) {
      read.insert(value);
      return;
    }
    const Computation& entry = stage_.step.module.entry_computation();
    for (const Value operand : entry.instructions[value.instruction].operands)
      FindRead(operand, seen, read);
  }

  // Null: not counted, or already.
  int64_t* BytesOf(const ValueVersion& made, ProgramKind reader) {
    if (counted_.contains(made)) return nullptr;
    if (IsOfMicroBatch(made)) {
      const bool is_kept = reader != ProgramKind::kForward && of_forward_.contains(made);
      return is_kept ? &bytes_.of_micro_batch : nullptr;
    }
    const bool is_of_update = of_update_.contains(made) && !of_others_.contains(made);
    return is_of_update ? &bytes_.of_update : &bytes_.all_the_time;
  }

  bool IsOfMicroBatch(const ValueVersion& made) const {
    return loop_.IsTransient(made.value.instruction) || made_by_forward_.contains(made) ||
           made_by_backward_.contains(made);
  }

  // State as it is stored, or a sum.
  bool IsOwned(const ValueVersion& made) const {
    const InstructionId id = made.value.instruction;
    if (made.version > 0) return false;
    if (loop_.IsSum(id)) return true;
    const Instruction& instruction = stage_.step.module.entry_computation().instructions[id];
    return instruction.opcode == Opcode::kParameter &&
           stage_.step.parameters[instruction.As<ParameterAttributes>().number].role ==
               ParameterRole::kState;
  }

  const StageStep& stage_;
  const MicroLoop loop_;
  std::set<ValueVersion> of_forward_, made_by_forward_, made_by_backward_, of_update_, of_others_,
      counted_;
  HeldBytes bytes_;
};

// Is what a search proves a time, of any plan?
bool BoundsTime(const PlanRequest& planning) {
  return planning.methods.front() == Method::kShard && planning.search.limits == SearchLimits() &&
         planning.cost_model.kind != CostModelKind::kAlpa;
}

// The times alone.
LayerCost TimesOf(const StageStep& staged, const SearchedStage& searched, int num_micro_batches) {
  PipelineStagePlan stage{.plan = {.stage = searched.result.stage}};
  SetTaskTimes(staged, num_micro_batches, stage);
  return {.forward_us = stage.forward_us,
          .micro_batch_us = stage.forward_us + stage.backward_us + stage.weight_gradient_us,
          .step_us = stage.apply_us};
}

LayerCost CostOf(const StageStep& staged, const SearchedStage& searched, int num_micro_batches,
                 Platform platform) {
  const std::vector<TaskSignature> programs =
      SignaturesOfTasks(staged, SplitBackward(staged), searched.result.stage, platform);
  const HeldBytes held = HeldBetween(staged, programs).bytes();
  LayerCost cost = TimesOf(staged, searched, num_micro_batches);
  cost.static_bytes = held.all_the_time;
  cost.owned_bytes = held.owned;
  cost.saved_bytes = held.of_micro_batch;
  cost.put_off_bytes = held.put_off;
  cost.handed_on_bytes = held.handed_on;
  cost.update_bytes = held.of_update;
  for (const auto& [task, bytes] : TemporariesOf(staged, searched.result.stage, platform)) {
    cost.transient_bytes = std::max(cost.transient_bytes, bytes);
  }
  return cost;
}

// The same of a layer that runs as a part of one program.
LayerCost CostInOneProgram(const StageStep& staged, std::span<const int> received,
                           const SearchedStage& searched, int num_micro_batches,
                           Platform platform) {
  const LayerMemory memory = EstimateLayerMemory(
      StepFacts(staged.step, platform), searched.result.stage, received, staged.num_own_results);
  const int64_t besides = std::max(memory.kept_bytes, memory.updated_bytes);
  LayerCost cost = TimesOf(staged, searched, num_micro_batches);
  cost.static_bytes = memory.static_bytes;
  cost.owned_bytes = memory.owned_bytes;
  cost.saved_bytes = memory.kept_bytes;
  cost.update_bytes = memory.updated_bytes;
  cost.transient_bytes = std::max<int64_t>(0, memory.peak_bytes - memory.static_bytes - besides);
  return cost;
}

// Says which ways of running layers are done. Thread-safe.
class ProgressByWay {
 public:
  ProgressByWay(const PlanRequest& planning, const std::vector<LayersOn>& asked)
      : planning_(planning), asked_(asked), num_left_(asked.size()) {}

  void Expect(size_t way) { ++num_left_[way]; }

  void Finish(size_t way) {
    const std::lock_guard lock(mutex_);
    if (--num_left_[way] > 0) return;
    ++num_done_;
    if (!planning_.on_progress) return;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    const LayersOn& done = asked_[way];
    planning_.on_progress(
        fmt::format(
            "layers on {}{}{}{} ({} of {})", done.on.mesh.ToString(),
            planning_.num_kinds() > 1 ? " of " + planning_.HostsOf(done.on.kind).device.name : "",
            done.memory_price > 0 ? fmt::format(", memory at {}", done.memory_price) : "",
            done.remat == planning_.remat.value_or(RematChoice()) ? "" : ", recomputed", num_done_,
            asked_.size()),
        elapsed.count(), 1);
  }

 private:
  const PlanRequest& planning_;
  const std::vector<LayersOn>& asked_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::vector<int> num_left_;  // by way; guarded by mutex_ once searches run
  int num_done_ = 0;           // guarded by mutex_
};

}  // namespace

// Of a layer on a mesh, at one price of memory after another.
struct LayerCosts::Job {
  struct Price {
    size_t asked = 0;
    absl::StatusOr<LayerCost> cost;
  };
  const StageStep* layer = nullptr;
  std::span<const int> received;  // parameters that other layers make
  int number = 0;                 // of the layer
  std::vector<Price> prices;
};

double InFlight(StagePrograms programs) {
  return programs == StagePrograms::kOne ? 1 : kUsualInFlight;
}

std::vector<absl::StatusOr<std::vector<LayerCost>>> LayerCosts::Find(
    const std::vector<LayersOn>& asked, Layers which) {
  std::vector<size_t> of_cut, of_others;
  std::set<RematChoice> to_cut;
  for (size_t i = 0; i < asked.size(); ++i) {
    const bool is_cut = cut_.contains(asked[i].remat);
    (is_cut ? of_cut : of_others).push_back(i);
    if (!is_cut) to_cut.insert(asked[i].remat);
  }
  std::vector<absl::StatusOr<std::vector<LayerCost>>> costs(asked.size());
  ProgressByWay progress(planning_, asked);
  const auto search = [&](std::vector<Job>& jobs) {
    for (const Job& job : jobs) {
      for (const Job::Price& price : job.prices) progress.Expect(price.asked);
    }
    const auto find_costs = [&](int number) {
      std::optional<MeshProblem> problem;
      for (Job::Price& price : jobs[number].prices) {
        price.cost = CostOfLayer(jobs[number], asked[price.asked], problem);
        progress.Finish(price.asked);
      }
    };
    ForEachInParallel(static_cast<int>(jobs.size()), NumSearchThreads(planning_.search),
                      find_costs);
  };
  std::vector<Job> first = JobsOf(asked, which, of_cut, costs);
  {
    // What cannot be cut says so again below.
    const auto cut = [&] {
      for (const RematChoice& remat : to_cut) CutBehindLayers(remat).status().IgnoreError();
    };
    const bool has_threads = NumSearchThreads(planning_.search) > 1;
    std::optional<std::jthread> cutter;
    if (has_threads && !first.empty() && !to_cut.empty()) cutter.emplace(cut);
    search(first);
  }
  Collect(asked, first, costs);
  std::vector<Job> others = JobsOf(asked, which, of_others, costs);
  search(others);
  Collect(asked, others, costs);
  return costs;
}

absl::StatusOr<std::vector<bool>> LayerCosts::IsSearched(const CutStep& cut, Layers which) {
  std::vector<int> num_equal(cut.staged.stages.size());
  for (size_t layer = 0; layer < cut.layer.size(); ++layer) ++num_equal[cut.FirstEqual(layer)];
  std::vector<bool> is_searched(num_equal.size());
  size_t num_covered = 0;
  for (size_t layer = 0; layer < num_equal.size(); ++layer) {
    is_searched[layer] = num_equal[layer] > (which == Layers::kRepeated ? 1 : 0);
    if (is_searched[layer]) num_covered += num_equal[layer];
  }
  if (2 * num_covered < cut.layer.size())
    return absl::NotFoundError("few layers are equal to others");
  return is_searched;
}

std::vector<LayerCosts::Job> LayerCosts::JobsOf(
    const std::vector<LayersOn>& asked, Layers which, std::span<const size_t> numbers,
    std::vector<absl::StatusOr<std::vector<LayerCost>>>& costs) {
  std::vector<Job> jobs;
  std::map<std::tuple<const StageStep*, int, std::string>, size_t> job_of;
  for (const size_t i : numbers) {
    const absl::StatusOr<const CutStep*> cut = CutBehindLayers(asked[i].remat);
    if (!cut.ok()) {
      costs[i] = cut.status();
      continue;
    }
    const absl::StatusOr<std::vector<bool>> is_searched = IsSearched(**cut, which);
    if (!is_searched.ok()) {
      costs[i] = is_searched.status();
      continue;
    }
    costs[i].emplace((*cut)->layer.size());
    for (int layer = 0; layer < static_cast<int>(is_searched->size()); ++layer) {
      if (!(*is_searched)[layer]) continue;
      const StageStep* const step = &(*cut)->staged.stages[layer];
      const MeshOfKind& on = asked[i].on;
      const auto [at, added] = job_of.try_emplace({step, on.kind, on.mesh.ToString()}, jobs.size());
      if (added)
        jobs.push_back({.layer = step, .received = (*cut)->received[layer], .number = layer});
      jobs[at->second].prices.emplace_back().asked = i;
    }
  }
  return jobs;
}

void LayerCosts::Collect(const std::vector<LayersOn>& asked, const std::vector<Job>& jobs,
                         std::vector<absl::StatusOr<std::vector<LayerCost>>>& costs) const {
  for (const Job& job : jobs) {
    for (const auto& [i, cost] : job.prices) {
      if (!costs[i].ok()) continue;
      if (!cost.ok()) {
        costs[i] = cost.status();
        continue;
      }
      const CutStep& cut = cut_.at(asked[i].remat);
      for (size_t layer = 0; layer < cut.layer.size(); ++layer) {
        if (cut.FirstEqual(layer) == job.number) (*costs[i])[layer] = *cost;
      }
    }
  }
}

absl::StatusOr<std::vector<BytesBetween>> LayerCosts::BytesInFrontOf(const RematChoice& remat) {
  ASSIGN_OR_RETURN(const CutStep* cut, CutBehindLayers(remat));
  std::vector<BytesBetween> in_front(cut->staged.stages.size());
  for (const Border& border : cut->staged.borders) {
    // A step of one micro-batch sends all once.
    if (!border.per_micro_batch && planning_.micro_batches.num_micro_batches > 1) continue;
    const int from = border.from.stage;
    int first = from, last = from;
    for (const StagePort& port : border.to) {
      first = std::min(first, port.stage);
      last = std::max(last, port.stage);
    }
    for (int layer = first + 1; layer <= last; ++layer) {
      int64_t& bytes = layer > from ? in_front[layer].forward : in_front[layer].backward;
      bytes += border.shape.num_bytes();
    }
  }
  std::vector<BytesBetween> out;
  for (const int layer : cut->layer) out.push_back(in_front[layer]);
  return out;
}

absl::StatusOr<LayerCost> LayerCosts::CostOfLayer(const Job& job, const LayersOn& where,
                                                  std::optional<MeshProblem>& problem) {
  const StageStep& layer = *job.layer;
  RETURN_IF_ERROR(CheckNotCancelled(planning_));
  StageRequest request{.meshes = {where.on.mesh},
                       .kind = where.on.kind,
                       .search = planning_.search,
                       .memory_price = where.memory_price,
                       .in_flight = InFlight(programs_),
                       .tries_unusual = false,
                       .problem = where.memory_price > 0 ? &problem : nullptr};
  request.search.gap = std::max(request.search.gap, kGap);
  request.search.memory_limit_bytes.reset();
  request.search.pins.clear();
  request.search.work_limit /= kShareOfWork;
  request.search.num_threads = 1;  // others search other layers
  ASSIGN_OR_RETURN(const SearchedStage* searched, planner_.Find(layer.step, request));
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = costs_.find(searched); known != costs_.end()) return known->second;
  }
  const auto num_micro_batches = static_cast<int>(planning_.micro_batches.num_micro_batches);
  const Platform platform = planning_.cluster.platform();
  LayerCost cost =
      programs_ == StagePrograms::kByTask
          ? CostOf(layer, *searched, num_micro_batches, platform)
          : CostInOneProgram(layer, job.received, *searched, num_micro_batches, platform);
  if (BoundsTime(planning_)) cost.least_us = searched->result.priced_lower_bound;
  const std::lock_guard lock(mutex_);
  return costs_.emplace(searched, cost).first->second;
}

LayerCosts::ToCut LayerCosts::WholeStep(const RematChoice& remat) {
  ToCut whole{.steps = &steps_, .remat = remat};
  whole.layer.resize(steps_.simplified().num_layers.value_or(0));
  std::iota(whole.layer.begin(), whole.layer.end(), 0);
  return whole;
}

std::optional<LayerCosts::ToCut> LayerCosts::FoldedStep(const RematChoice& remat) {
  const PreparedSteps::Folded* const folded = steps_.FoldedLayers();
  if (folded == nullptr) return std::nullopt;
  ToCut out{.steps = folded->steps.get(), .remat = remat, .layer = folded->layer};
  if (remat.size() != out.layer.size()) return out;  // the same for all
  out.remat.resize(*folded->steps->simplified().num_layers);
  for (size_t layer = 0; layer < remat.size(); ++layer) out.remat[out.layer[layer]] = remat[layer];
  for (size_t layer = 0; layer < remat.size(); ++layer) {
    if (out.remat[out.layer[layer]] != remat[layer]) return std::nullopt;
  }
  return out;
}

absl::StatusOr<const LayerCosts::CutStep*> LayerCosts::CutBehindLayers(const RematChoice& remat) {
  const auto known = cut_.find(remat);
  if (known != cut_.end()) return &known->second;
  absl::StatusOr<CutStep> cut = absl::NotFoundError("no layers repeat");
  if (std::optional<ToCut> folded = FoldedStep(remat)) cut = Cut(*std::move(folded));
  if (!cut.ok()) cut = Cut(WholeStep(remat));
  RETURN_IF_ERROR(cut.status());
  return &cut_.emplace(remat, *std::move(cut)).first->second;
}

absl::StatusOr<LayerCosts::CutStep> LayerCosts::Cut(ToCut to_cut) const {
  ASSIGN_OR_RETURN(const Step* prepared, to_cut.steps->With(to_cut.remat, planning_.micro_batches));
  StageOptions options{.is_one_program = programs_ == StagePrograms::kOne};
  options.stage_of_layer.resize(to_cut.steps->simplified().num_layers.value_or(0));
  std::iota(options.stage_of_layer.begin(), options.stage_of_layer.end(), 0);
  CutStep cut{.layer = std::move(to_cut.layer)};
  ASSIGN_OR_RETURN(cut.staged, CutIntoStages(*prepared, options));
  cut.received.resize(cut.staged.stages.size());
  for (const Border& border : cut.staged.borders) {
    for (const StagePort& to : border.to) cut.received[to.stage].push_back(to.number);
  }
  std::map<uint64_t, int> first_of_hash;
  for (int layer = 0; layer < static_cast<int>(cut.staged.stages.size()); ++layer) {
    const uint64_t hash = OrderFreeStageHash(cut.staged.stages[layer].step);
    cut.first_equal.push_back(first_of_hash.emplace(hash, layer).first->second);
    // It is not asked for again, and many numbers of micro-batches are cut.
    if (cut.first_equal.back() != layer) cut.staged.stages[layer] = {};
  }
  return cut;
}

}  // namespace minka
