#include "minka/oracle/first_difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/micro_loop.h"
#include "minka/lowering/micro_batches.h"
#include "minka/lowering/spmd.h"
#include "minka/runtime/mesh/split_array.h"

namespace minka {
namespace {

constexpr int kMaxTurned = 16;

// A value of the prepared step and where the plan first has it complete.
struct Point {
  Value value;
  // Nothing: made of constants alone, the plan makes it again where it needs it.
  std::optional<ValueVersion> kept;
  int dim = -1;  // of which micro-batches have slices
  Sharding sharding;
};

// Made of nothing that differs, or the bytes of another value.
bool IsPlain(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBroadcast:
    case Opcode::kConstant:
    case Opcode::kIota:
    case Opcode::kOptBarrier:
    case Opcode::kReshape:
    case Opcode::kTranspose:
      return true;
    default:
      return false;
  }
}

// Does a result that differs by a whole number follow from inputs that differ by a rounding?
bool IsDecision(const Computation& entry, const Instruction& instruction) {
  const auto reads_floats = [&] { return IsFloat(entry.shape(instruction.operands[0]).type); };
  switch (instruction.opcode) {
    case Opcode::kCeil:
    case Opcode::kCompare:
    case Opcode::kFloor:
    case Opcode::kRoundNearestAfz:
    case Opcode::kRoundNearestEven:
    case Opcode::kSign:
      return reads_floats();
    case Opcode::kConvert:
      return reads_floats() && !IsFloat(instruction.shape().type);
    default:
      return false;
  }
}

// Picks by order, and how many of them lie together: no way to say how far from a threshold.
bool PicksByOrder(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kSelectAndScatter:
    case Opcode::kSort:
    case Opcode::kTopK:
      return true;
    case Opcode::kReduce:
      return instruction.results.size() > 1;
    default:
      return false;
  }
}

// How far the inputs of a decision lie from where its result changes.
double Distance(const Instruction& instruction, double x, double y) {
  switch (instruction.opcode) {
    case Opcode::kCompare:
      return std::abs(x - y);
    case Opcode::kSign:
      return std::abs(x);
    case Opcode::kRoundNearestAfz:
    case Opcode::kRoundNearestEven:
      return std::abs(x - std::floor(x) - 0.5);
    default:
      return std::abs(x - std::round(x));
  }
}

std::string ElementName(const Shape& shape, int64_t element) {
  std::vector<int64_t> index(shape.rank());
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    index[dim] = element % shape.dims[dim];
    element /= shape.dims[dim];
  }
  return fmt::format("[{}]", fmt::join(index, ","));
}

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

class DifferenceSearch {
 public:
  DifferenceSearch(const SearchedRun& run, MicroBatchedStep micro_batched,
                   int64_t max_bytes_at_once)
      : run_(run),
        stage_(run.plan.stage),
        entry_(run.prepared.module.entry_computation()),
        micro_batched_(std::move(micro_batched)),
        loop_(FindMicroLoop(micro_batched_.step.module)),
        max_bytes_at_once_(max_bytes_at_once),
        points_(FindPoints()),
        groups_(MakeGroups()),
        programs_(groups_.size()) {}

  absl::StatusOr<FirstDifference> Run() && {
    FirstDifference found;
    ASSIGN_OR_RETURN(num_steps_, FirstRefusedStep());
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<Difference> difference, FindDifference());
      if (difference && !difference->can_turn) {
        found.text = difference->text;
        break;
      }
      if (!difference || static_cast<int>(turned_.size()) == kMaxTurned) break;
      found.turned.push_back(difference->text);
      turned_.push_back(difference->instruction);
    }
    ASSIGN_OR_RETURN(found.report, CompareOriginal());
    if (found.text.empty() && !found.report.ok()) {
      found.text =
          "with intermediate values kept, both programs agree: what differs depends on how "
          "the compiler fuses operations";
    }
    return found;
  }

 private:
  struct Difference {
    InstructionId instruction = -1;
    std::string text;
    bool can_turn = false;
  };

  // Both programs with the values of a group as more results.
  struct Program {
    Step step;  // for one device
    std::vector<Point> points;
    std::optional<StepRunner> mesh;
    std::map<int, MeshResults> results;  // of the mesh, by number of steps
  };

  std::vector<Point> FindPoints() const {
    std::vector<bool> is_constant;
    std::vector<Point> points;
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const Instruction& instruction = entry_.instructions[id];
      is_constant.push_back(instruction.opcode != Opcode::kParameter &&
                            instruction.opcode != Opcode::kRng &&
                            std::ranges::all_of(instruction.operands, [&](Value operand) {
                              return is_constant[operand.instruction];
                            }));
      for (int r = 0; r < static_cast<int>(instruction.results.size()); ++r) {
        const ElementType type = instruction.results[r].type;
        if (!IsFloat(type) && !IsInteger(type) && type != ElementType::kPred) continue;
        if (std::optional<Point> point = FindPoint({id, r})) {
          points.push_back(*std::move(point));
        } else if (is_constant.back()) {
          points.push_back({.value = {id, r}});
        }
      }
    }
    return points;
  }

  // nullopt: the plan never has it complete.
  std::optional<Point> FindPoint(Value value) const {
    const MicroBatchedValue& became = micro_batched_.became[value.instruction][value.result];
    if (became.value.instruction < 0) return std::nullopt;
    const Module& module = micro_batched_.step.module;
    for (int version = 0; version <= static_cast<int>(stage_.reshards.size()); ++version) {
      if (version > 0 && stage_.reshards[version - 1].value != became.value) continue;
      Sharding sharding = VersionSharding(module, stage_, became.value, version);
      if (!sharding.partial.empty()) continue;
      return Point{.value = value,
                   .kept = ValueVersion{became.value, version},
                   .dim = became.dim,
                   .sharding = std::move(sharding)};
    }
    return std::nullopt;
  }

  std::vector<std::vector<int>> MakeGroups() const {
    std::vector<std::vector<int>> groups(1);
    int64_t bytes = 0;
    for (int i = 0; i < static_cast<int>(points_.size()); ++i) {
      const Opcode opcode = entry_.instruction(points_[i].value).opcode;
      if (!points_[i].kept || opcode == Opcode::kParameter || IsPlain(opcode)) continue;
      const int64_t more = entry_.shape(points_[i].value).num_bytes();
      if (bytes + more > max_bytes_at_once_ && !groups.back().empty()) {
        groups.emplace_back();
        bytes = 0;
      }
      groups.back().push_back(i);
      bytes += more;
    }
    return groups;
  }

  // The group with the operands of its operations, from which each can be computed by itself.
  std::vector<Point> PointsOf(size_t group) const {
    std::vector<Point> points;
    std::map<Value, Point> wanted;
    for (const int i : groups_[group]) {
      wanted.emplace(points_[i].value, points_[i]);
      const Instruction& instruction = entry_.instruction(points_[i].value);
      for (const Value operand : instruction.operands) {
        const auto point = std::ranges::find(points_, operand, &Point::value);
        if (point != points_.end()) wanted.emplace(operand, *point);
      }
    }
    for (auto& [value, point] : wanted) points.push_back(std::move(point));
    return points;
  }

  Step WithResults(Step step, const std::vector<Point>& points) const {
    for (const Point& point : points) {
      step.module.entry_computation().results.push_back(point.value);
      step.results.push_back({.name = entry_.instruction(point.value).name});
    }
    return step;
  }

  absl::StatusOr<Program*> ProgramOf(size_t group) {
    std::optional<Program>& program = programs_[group];
    if (program) return &*program;
    const std::vector<Point> points = PointsOf(group);
    Program made{.step = WithResults(run_.prepared, points), .points = points};
    const Module& module = micro_batched_.step.module;
    std::vector<ValueVersion> kept;
    for (const Point& point : points) {
      if (point.kept) kept.push_back(*point.kept);
    }
    ASSIGN_OR_RETURN(SpmdProgram lowered, LowerSpmd(module, stage_, kept));
    Step step = micro_batched_.step;
    MeshSignature signature = SignatureOf(module, std::move(lowered.parameters), lowered.results);
    for (const ValueVersion& value : kept) {
      const Computation& entry = module.entry_computation();
      step.results.push_back({.name = entry.instruction(value.value).name});
      Shape& shape = signature.results.emplace_back(entry.shape(value.value));
      if (!loop_.IsTransient(value.value.instruction)) continue;
      shape.dims.insert(shape.dims.begin(), loop_.num_micro_batches);
    }
    ASSIGN_OR_RETURN(std::unique_ptr<PipelineExecutor> executor,
                     run_.session.Load(ProgramOfOneMesh(std::move(lowered.module), stage_.mesh,
                                                        std::move(signature))));
    made.mesh.emplace(step, std::move(executor));
    program = std::move(made);
    return &*program;
  }

  // What is made of constants alone has no bytes.
  absl::StatusOr<MeshResults*> RunMesh(size_t group, int num_steps) {
    ASSIGN_OR_RETURN(Program * program, ProgramOf(group));
    const auto found = program->results.find(num_steps);
    if (found != program->results.end()) return &found->second;
    ASSIGN_OR_RETURN(MeshResults kept, RunOnMesh(*program->mesh, run_.inputs, num_steps));
    return &program->results.emplace(num_steps, WholeResults(*program, kept)).first->second;
  }

  // By result of the program for one device.
  MeshResults WholeResults(const Program& program, const MeshResults& kept) const {
    MeshResults whole = kept;
    const size_t num_results = entry_.results.size();
    whole.values.resize(num_results);
    whole.parts.resize(num_results);
    whole.replica_faults.resize(num_results);
    size_t next = num_results;
    for (const Point& point : program.points) {
      if (!point.kept) {
        whole.values.emplace_back();
        whole.parts.emplace_back();
        whole.replica_faults.emplace_back();
        continue;
      }
      whole.values.push_back(kept.values[next]);
      whole.parts.push_back(kept.parts[next]);
      whole.replica_faults.push_back(kept.replica_faults[next]);
      ++next;
      if (!loop_.IsTransient(point.kept->value.instruction)) continue;
      const Shape& shape = entry_.shape(point.value);
      const int64_t num_slices = loop_.num_micro_batches;
      Literal& value = whole.values.back();
      value = {shape, std::make_shared<const std::string>(
                          JoinSlices(*value.bytes, shape, num_slices, point.dim))};
      std::vector<int32_t>& parts = whole.parts.back().of_elements;
      if (parts.empty()) continue;
      const std::string_view numbers(reinterpret_cast<const char*>(parts.data()),
                                     parts.size() * sizeof(int32_t));
      const std::string joined =
          JoinSlices(numbers, {ElementType::kS32, shape.dims}, num_slices, point.dim);
      parts.resize(joined.size() / sizeof(int32_t));
      std::memcpy(parts.data(), joined.data(), joined.size());
    }
    return whole;
  }

  static void FillConstants(const OneDeviceResults& one_device, MeshResults& mesh) {
    for (size_t i = 0; i < mesh.values.size(); ++i) {
      if (!mesh.values[i].bytes) mesh.values[i] = one_device.single[i];
    }
  }

  // What the plan decided in a step (from 1).
  absl::StatusOr<Literal> DecisionOf(InstructionId id, int step) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (const int i : groups_[group]) {
        if (points_[i].value.instruction != id) continue;
        ASSIGN_OR_RETURN(const MeshResults* results, RunMesh(group, step));
        const std::vector<Value>& values =
            programs_[group]->step.module.entry_computation().results;
        const auto at = std::ranges::find(values.begin() + entry_.results.size(), values.end(),
                                          points_[i].value);
        return results->values[at - values.begin()];
      }
    }
    return InternalError("the decision {} is in no group", entry_.instructions[id].name);
  }

  // The step in which what is turned over are inputs.
  Step Turned(Step step) const {
    Computation& entry = step.module.entry_computation();
    for (const InstructionId id : turned_) {
      Instruction& decision = entry.instructions[id];
      decision.opcode = Opcode::kParameter;
      decision.operands.clear();
      decision.attributes = ParameterAttributes{static_cast<int64_t>(entry.parameters.size())};
      entry.parameters.push_back(id);
      step.parameters.push_back({.role = ParameterRole::kBatch, .name = decision.name});
    }
    return step;
  }

  StepInputs TurnedInputs() {
    return [this](int step) -> absl::StatusOr<ParameterValues> {
      ASSIGN_OR_RETURN(ParameterValues values, run_.inputs(step));
      for (const InstructionId id : turned_) {
        ASSIGN_OR_RETURN(values.emplace_back(), DecisionOf(id, step + 1));
      }
      return values;
    };
  }

  absl::StatusOr<OracleReport> CompareOriginal() {
    ASSIGN_OR_RETURN(
        const OneDeviceResults one_device,
        RunOnOneDevice(Turned(run_.prepared), run_.client, TurnedInputs(), run_.num_steps));
    OracleReport report = CompareResults(run_.prepared, run_.results, one_device);
    report.num_steps = run_.num_steps;
    return report;
  }

  // The first step (from 1) whose results are refused: there is nothing to find in front of it.
  absl::StatusOr<int> FirstRefusedStep() const {
    ASSIGN_OR_RETURN(OneDevice compiled, OneDevice::Compile(run_.prepared, run_.client));
    for (int step = 1; step < run_.num_steps; ++step) {
      ASSIGN_OR_RETURN(const MeshResults mesh, RunOnMesh(run_.runner, run_.inputs, step));
      ASSIGN_OR_RETURN(const OneDeviceResults one_device, compiled.Run(run_.inputs, step));
      if (!CompareResults(run_.prepared, mesh, one_device).ok()) return step;
    }
    return run_.num_steps;
  }

  // In order of steps, then of operations, from where the last one was found: what is turned over
  // since agrees with the plan in front of it, too. nullopt: everything agrees.
  absl::StatusOr<std::optional<Difference>> FindDifference() {
    for (; num_steps_ <= run_.num_steps; ++num_steps_, group_ = 0) {
      for (; group_ < groups_.size(); ++group_) {
        const size_t group = group_;
        ASSIGN_OR_RETURN(MeshResults * mesh, RunMesh(group, num_steps_));
        ASSIGN_OR_RETURN(const OneDeviceResults one_device,
                         RunOnOneDevice(Turned(programs_[group]->step), run_.client, TurnedInputs(),
                                        num_steps_));
        FillConstants(one_device, *mesh);
        const OracleReport report = CompareResults(programs_[group]->step, *mesh, one_device);
        ASSIGN_OR_RETURN(const std::optional<size_t> first,
                         FirstUnexplained(programs_[group]->step, report, *mesh));
        if (first) return At(*programs_[group], *first, report, *mesh, one_device);
      }
    }
    return std::nullopt;
  }

  // Among the values that were added; they stand in the order of operations.
  absl::StatusOr<std::optional<size_t>> FirstUnexplained(const Step& step,
                                                         const OracleReport& report,
                                                         const MeshResults& mesh) const {
    const std::vector<Value>& values = step.module.entry_computation().results;
    for (size_t i = entry_.results.size(); i < values.size(); ++i) {
      const Instruction& instruction = entry_.instruction(values[i]);
      if (report.outputs[i].ok() || instruction.opcode == Opcode::kParameter ||
          IsPlain(instruction.opcode)) {
        continue;
      }
      if (IsDecision(entry_, instruction)) return i;
      ASSIGN_OR_RETURN(const bool follows, FollowsFromOperands(values, i, mesh));
      if (!follows) return i;
    }
    return std::nullopt;
  }

  // Does one device get the plan's result from the operands that the plan has?
  absl::StatusOr<bool> FollowsFromOperands(const std::vector<Value>& values, size_t at,
                                           const MeshResults& mesh) const {
    Instruction instruction = entry_.instruction(values[at]);
    ModuleBuilder builder("operation");
    ComputationBuilder b = builder.Entry();
    ParameterValues operands;
    for (Value& operand : instruction.operands) {
      const auto found = std::find(values.begin() + entry_.results.size(), values.end(), operand);
      if (found == values.end()) return false;
      operands.push_back(mesh.values[found - values.begin()]);
      operand = b.Parameter(operands.back().shape, "");
    }
    for (ComputationId& called : instruction.called) {
      called = builder.Import(run_.prepared.module, called);
    }
    const Value first = b.Append(std::move(instruction));
    b.SetResults({{first.instruction, values[at].result}});
    Step step{.results = {{}}};
    ASSIGN_OR_RETURN(step.module, std::move(builder).Finish());
    step.parameters.assign(operands.size(), {.role = ParameterRole::kBatch});
    const StepInputs inputs = [&](int) -> absl::StatusOr<ParameterValues> { return operands; };
    ASSIGN_OR_RETURN(const OneDeviceResults one_device,
                     RunOnOneDevice(step, run_.client, inputs, /*num_steps=*/1));
    return CompareResults(step, {.values = {mesh.values[at]}}, one_device).ok();
  }

  Difference At(const Program& program, size_t at, const OracleReport& report,
                const MeshResults& mesh, const OneDeviceResults& one_device) const {
    const Value value = program.step.module.entry_computation().results[at];
    const Instruction& instruction = entry_.instruction(value);
    const auto point = std::ranges::find(points_, value, &Point::value);
    Difference difference{.instruction = value.instruction};
    difference.text =
        fmt::format("in step {} the first operation that differs is {} {} {}{} in {}", num_steps_,
                    OpcodeName(instruction.opcode), instruction.name, ToString(entry_.shape(value)),
                    instruction.op_name.empty() ? "" : fmt::format(" ({})", instruction.op_name),
                    ToString(point->sharding, stage_.mesh));
    if (!IsDecision(entry_, instruction)) {
      difference.text += fmt::format(
          ": {}{}", Describe(report.outputs[at]),
          PicksByOrder(instruction) ? "; it picks by order, so elements that are equal but for "
                                      "rounding may change places"
                                    : "; what it reads agrees");
      return difference;
    }
    DescribeDecision(program, at, report, mesh, one_device, difference);
    return difference;
  }

  void DescribeDecision(const Program& program, size_t at, const OracleReport& report,
                        const MeshResults& mesh, const OneDeviceResults& one_device,
                        Difference& difference) const {
    const std::vector<Value>& values = program.step.module.entry_computation().results;
    const Instruction& instruction = entry_.instructions[difference.instruction];
    std::vector<size_t> inputs;
    double tolerance = 0;
    for (const Value operand : instruction.operands) {
      const auto found = std::find(values.begin() + entry_.results.size(), values.end(), operand);
      if (found == values.end()) {
        difference.text += ", whose input the plan never has whole";
        return;
      }
      inputs.push_back(found - values.begin());
      const OutputComparison& input = report.outputs[inputs.back()];
      if (input.parts.empty()) continue;
      const Norms& norms = input.parts.front();
      tolerance += 4 * norms.allowed_error / std::sqrt(std::max<double>(norms.num_elements, 1));
    }
    int64_t num_turned = 0, first = -1;
    double farthest = 0, nearest = 0;
    const Literal& mine = mesh.values[at];
    const Literal& other = one_device.single[at];
    for (int64_t i = 0; i < mine.shape.num_elements(); ++i) {
      if (ElementAsDouble(mine, i) == ElementAsDouble(other, i)) continue;
      const double distance =
          Distance(instruction, ElementAsDouble(one_device.single[inputs.front()], i),
                   ElementAsDouble(one_device.single[inputs.back()], i));
      if (num_turned++ == 0) {
        first = i;
        nearest = distance;
      }
      farthest = std::isnan(distance) ? distance : std::max(farthest, distance);
    }
    const std::string threshold =
        instruction.opcode == Opcode::kCompare ? "what it is compared with" : "its threshold";
    difference.can_turn = num_turned > 0 && farthest <= tolerance;
    difference.text += fmt::format(
        ": {} element{}, the first {}, which lies {:.2g} from {}; rounding moves it by up to "
        "{:.2g}",
        num_turned, num_turned == 1 ? "" : "s", ElementName(mine.shape, first), nearest, threshold,
        tolerance);
    if (!difference.can_turn) {
      difference.text += fmt::format(", and another lies {:.2g} away", farthest);
    }
  }

  const SearchedRun& run_;
  const StagePlan& stage_;
  const Computation& entry_;
  const MicroBatchedStep micro_batched_;
  const MicroLoop loop_;
  const int64_t max_bytes_at_once_;
  const std::vector<Point> points_;
  const std::vector<std::vector<int>> groups_;
  std::vector<std::optional<Program>> programs_;
  std::vector<InstructionId> turned_;
  // Where the search goes on.
  int num_steps_ = 1;
  size_t group_ = 0;
};

}  // namespace

absl::StatusOr<FirstDifference> FindFirstDifference(const SearchedRun& run,
                                                    int64_t max_bytes_at_once) {
  if (run.plan.per_micro_batch) {
    return Unimplemented(
        "where it differs is not searched for where each micro-batch stands for the whole batch "
        "(--per-micro-batch); check the plan with --micro-batches 1");
  }
  ASSIGN_OR_RETURN(
      MicroBatchedStep micro_batched,
      MakeMicroBatches(run.prepared, {.num_micro_batches = run.plan.num_micro_batches}));
  return DifferenceSearch(run, std::move(micro_batched), max_bytes_at_once).Run();
}

}  // namespace minka
