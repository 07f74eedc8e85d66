#include "minka/oracle/first_difference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/oracle/decisions.h"

namespace minka {
namespace {

constexpr int kMaxTurned = 16;
constexpr size_t kMaxTies = 16;  // of picks, and of others
// The elements of an operation that may amplify rounding: four, or this part of all.
constexpr int64_t kMaxAmplified = 4;
constexpr int64_t kPartAmplified = 1024;

// A value of the prepared step that the search knows of the plan's run.
struct Point {
  Value value;
  // Nothing: a parameter, or made of constants alone, so that the plan makes it again where it
  // needs it.
  std::optional<ValuePlace> place;
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

std::string ElementName(const Shape& shape, int64_t element) {
  std::vector<int64_t> index(shape.rank());
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    index[dim] = element % shape.dims[dim];
    element /= shape.dims[dim];
  }
  return fmt::format("[{}]", fmt::join(index, ","));
}

// The frontend's name of an operation and its line in the user's program, where they are known.
std::string SourceOf(const Instruction& instruction) {
  std::vector<std::string> parts;
  for (const std::string& part : {instruction.op_name, instruction.source_line}) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
}

class DifferenceSearch {
 public:
  DifferenceSearch(const SearchedRun& run, KeptValues kept, int64_t max_bytes_at_once)
      : run_(run),
        entry_(run.prepared.module.entry_computation()),
        kept_(std::move(kept)),
        max_bytes_at_once_(max_bytes_at_once),
        points_(FindPoints()),
        choices_(FindChoices()),
        groups_(MakeGroups()),
        programs_(groups_.size()) {}

  absl::StatusOr<FirstDifference> Run() && {
    FirstDifference found;
    ASSIGN_OR_RETURN(const int first_step, FirstRefusedStep());
    num_steps_ = first_step;
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<Difference> difference, FindDifference());
      if (difference && !difference->can_turn) {
        found.text = difference->text;
        break;
      }
      if (!difference || static_cast<int>(turned_.size()) == kMaxTurned) break;
      found.turned.push_back(difference->text);
      turned_.push_back(difference->decision);
    }
    ASSIGN_OR_RETURN(found.report, CompareOriginal());
    if (found.text.empty() && !found.report.ok()) RETURN_IF_ERROR(TurnTies(first_step, found));
    if (found.text.empty() && !found.report.ok()) {
      found.text =
          "with intermediate values kept, both programs agree: what differs depends on how "
          "the compiler fuses operations";
    }
    return found;
  }

 private:
  struct Difference {
    Value decision;
    std::string text;
    bool can_turn = false;
  };

  // The element of an operation that amplifies rounding most, and how many such there are.
  struct Amplified {
    int64_t element = 0, num_elements = 0;
    double difference = 0;
  };

  // Where FindDifference() stops, among the results of a program.
  struct Unexplained {
    size_t at = 0;
    std::optional<Amplified> amplified;
  };

  // What a decision reads, by one device, and how far rounding may move it.
  struct DecisionInputs {
    std::vector<Literal> values;
    double tolerance = 0;
  };

  // An element of a decision in a step (from 1) that lies within rounding of its threshold; of a
  // pick with those that were picked instead of it.
  struct Tie {
    Value decision;
    int step = 1;
    std::vector<int64_t> elements;  // the last is the one that `distance` is of
    double distance = 0, tolerance = 0;
  };

  // For one device, compiled for the values, choices apart, that were given when it last ran.
  struct TurnedProgram {
    std::vector<Value> given;
    std::optional<OneDevice> compiled;
  };

  // Both programs with the values of a group as more results.
  struct Program {
    Step step;  // for one device
    TurnedProgram one_device;
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
        const bool is_given = instruction.opcode == Opcode::kParameter;
        Point point{.value = {id, r}};
        if (!is_given) point.place = kept_.Find({id, r});
        if (point.place || is_given || is_constant.back()) points.push_back(std::move(point));
      }
    }
    return points;
  }

  // What may be turned over without another program: decisions, and as many quotients as fit.
  std::vector<Value> FindChoices() const {
    std::vector<Value> choices;
    int64_t bytes = 0;
    for (const auto& [value, place] : points_) {
      if (!place) continue;
      if (!IsDecision(run_.prepared.module, value)) {
        const int64_t more = entry_.shape(value).num_bytes();
        if (!IsUnstableAtZero(entry_, entry_.instruction(value)) ||
            bytes + more > max_bytes_at_once_ / 4) {
          continue;
        }
        bytes += more;
      }
      choices.push_back(value);
    }
    return choices;
  }

  std::vector<std::vector<int>> MakeGroups() const {
    std::vector<std::vector<int>> groups(1);
    int64_t bytes = 0;
    for (int i = 0; i < static_cast<int>(points_.size()); ++i) {
      const Opcode opcode = entry_.instruction(points_[i].value).opcode;
      if (!points_[i].place || IsPlain(opcode)) continue;
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
      std::vector<Value> read = entry_.instruction(points_[i].value).operands;
      if (IsPick(run_.prepared.module, points_[i].value)) {
        read = InputsOfDecision(run_.prepared.module, points_[i].value);
      }
      for (const Value operand : read) {
        const auto point = std::ranges::find(points_, operand, &Point::value);
        if (point != points_.end()) wanted.emplace(operand, *point);
      }
    }
    for (auto& [value, point] : wanted) points.push_back(std::move(point));
    return points;
  }

  absl::StatusOr<Program*> ProgramOf(size_t group) {
    std::optional<Program>& program = programs_[group];
    if (program) return &*program;
    const std::vector<Point> points = PointsOf(group);
    std::vector<Value> values;
    for (const Point& point : points) values.push_back(point.value);
    Program made{.step = WithResults(run_.prepared, values), .points = points};
    ASSIGN_OR_RETURN(made.mesh, kept_.Compile(PlacesOf(points), run_.session));
    program = std::move(made);
    return &*program;
  }

  static std::vector<ValuePlace> PlacesOf(const std::vector<Point>& points) {
    std::vector<ValuePlace> places;
    for (const Point& point : points) {
      if (point.place) places.push_back(*point.place);
    }
    return places;
  }

  // What is made of constants alone has no bytes.
  absl::StatusOr<MeshResults*> RunMesh(size_t group, int num_steps) {
    ASSIGN_OR_RETURN(Program * program, ProgramOf(group));
    const auto found = program->results.find(num_steps);
    if (found != program->results.end()) return &found->second;
    ASSIGN_OR_RETURN(MeshResults run, RunOnMesh(*program->mesh, run_.inputs, num_steps));
    const std::vector<ValuePlace> places = PlacesOf(program->points);
    MeshResults whole = kept_.Whole(places, std::move(run));
    ASSIGN_OR_RETURN(const ParameterValues parameters, ParametersOf(num_steps));
    MeshResults all = whole;
    const size_t num_results = entry_.results.size();
    all.values.resize(num_results);
    all.parts.resize(num_results);
    all.replica_faults.resize(num_results);
    size_t next = num_results;
    for (const Point& point : program->points) {
      const Instruction& instruction = entry_.instruction(point.value);
      Literal& value = all.values.emplace_back();
      PartsOfResult& parts = all.parts.emplace_back();
      std::string& replica_faults = all.replica_faults.emplace_back();
      if (instruction.opcode == Opcode::kParameter) {
        value = parameters[instruction.As<ParameterAttributes>().number];
      }
      if (!point.place) continue;
      value = std::move(whole.values[next]);
      parts = std::move(whole.parts[next]);
      replica_faults = std::move(whole.replica_faults[next++]);
    }
    return &program->results.emplace(num_steps, std::move(all)).first->second;
  }

  // What the plan's step (from 1) read.
  absl::StatusOr<ParameterValues> ParametersOf(int step) {
    ASSIGN_OR_RETURN(ParameterValues values, run_.inputs(step - 1));
    if (step == 1) return values;
    ASSIGN_OR_RETURN(const ParameterValues first, run_.inputs(0));
    if (!before_.contains(step)) {
      ASSIGN_OR_RETURN(before_[step], RunOnMesh(run_.runner, run_.inputs, step - 1));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const ParameterInfo& parameter = run_.prepared.parameters[i];
      if (IsResident(parameter)) values[i] = first[i];
      if (parameter.role == ParameterRole::kState && parameter.state_result >= 0) {
        values[i] = before_[step].values[parameter.state_result];
      }
    }
    return values;
  }

  static void FillConstants(const OneDeviceResults& one_device, MeshResults& mesh) {
    for (size_t i = 0; i < mesh.values.size(); ++i) {
      if (!mesh.values[i].bytes) mesh.values[i] = one_device.single[i];
    }
  }

  // What the plan decided in a step (from 1).
  absl::StatusOr<Literal> DecisionOf(Value decision, int step) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (const int i : groups_[group]) {
        if (points_[i].value != decision) continue;
        ASSIGN_OR_RETURN(const MeshResults* results, RunMesh(group, step));
        const std::vector<Value>& values =
            programs_[group]->step.module.entry_computation().results;
        const auto at =
            std::ranges::find(values.begin() + entry_.results.size(), values.end(), decision);
        Literal decided = results->values[at - values.begin()];
        for (const Tie& tie : turned_ties_) {
          if (tie.decision == decision && tie.step == step) {
            for (const int64_t element : tie.elements) decided = Turned(decided, element);
          }
        }
        return decided;
      }
    }
    return InternalError("the decision {} is in no group", entry_.instruction(decision).name);
  }

  // The step's own, `given`, and of each choice whether it was turned over, and to what.
  StepInputs TurnedInputs(const std::vector<Value>& given) {
    return [this, &given](int step) -> absl::StatusOr<ParameterValues> {
      ASSIGN_OR_RETURN(ParameterValues values, run_.inputs(step));
      for (const Value value : given) {
        ASSIGN_OR_RETURN(values.emplace_back(), DecisionOf(value, step + 1));
      }
      for (const Value choice : choices_) {
        const bool is_turned = std::ranges::find(turned_, choice) != turned_.end();
        values.push_back(FilledLiteral({ElementType::kPred, {}}, is_turned ? 1 : 0));
        Literal& decided = values.emplace_back(FilledLiteral(entry_.shape(choice), 0));
        if (!is_turned) continue;
        ASSIGN_OR_RETURN(decided, DecisionOf(choice, step + 1));
      }
      return values;
    };
  }

  // One device with the values in `turned_` given.
  absl::StatusOr<OneDeviceResults> RunTurned(TurnedProgram& program, const Step& step,
                                             int num_steps) {
    std::vector<Value> given;
    for (const Value value : turned_) {
      if (std::ranges::find(choices_, value) == choices_.end()) given.push_back(value);
    }
    if (!program.compiled || program.given != given) {
      ASSIGN_OR_RETURN(program.compiled,
                       OneDevice::Compile(WithGiven(step, given, choices_), run_.client));
      program.given = std::move(given);
    }
    return program.compiled->Run(TurnedInputs(program.given), num_steps);
  }

  absl::StatusOr<OracleReport> CompareOriginal() {
    ASSIGN_OR_RETURN(const OneDeviceResults one_device,
                     RunTurned(original_, run_.prepared, run_.num_steps));
    OracleReport report = CompareResults(run_.prepared, run_.results, one_device);
    report.num_steps = run_.num_steps;
    return report;
  }

  // Of predicates and of signs.
  static Literal Turned(const Literal& decided, int64_t element) {
    std::string bytes = *decided.bytes;
    const int64_t size = ElementBytes(decided.shape.type);
    if (decided.shape.type == ElementType::kPred) {
      bytes[element] = bytes[element] == 0 ? 1 : 0;
    } else {
      bytes[(element + 1) * size - 1] ^= '\x80';  // the sign bit of a float
    }
    return {decided.shape, std::make_shared<const std::string>(std::move(bytes))};
  }

  // Where both programs agree with their values kept, a decision may still have gone the other way
  // in the plan's own program, which the compiler fuses otherwise. Turns over the elements that lie
  // within rounding of their threshold, nearest first, each where the plan's results then lie
  // closer to those of one device.
  absl::Status TurnTies(int first_step, FirstDifference& found) {
    ASSIGN_OR_RETURN(const std::vector<Tie> ties, FindTies(first_step));
    for (const Tie& tie : ties) {
      const std::vector<Value> turned_before = turned_;
      if (std::ranges::find(turned_, tie.decision) == turned_.end()) {
        turned_.push_back(tie.decision);
      }
      turned_ties_.push_back(tie);
      ASSIGN_OR_RETURN(OracleReport report, CompareOriginal());
      if (Excess(report) >= Excess(found.report)) {
        turned_ = turned_before;
        turned_ties_.pop_back();
        continue;
      }
      found.report = std::move(report);
      found.turned.push_back(DescribeTie(tie));
      if (found.report.ok()) break;
    }
    return absl::OkStatus();
  }

  // How much more than allowed all outputs differ.
  static double Excess(const OracleReport& report) {
    double excess = 0;
    for (const OutputComparison& output : report.outputs) {
      if (output.ok()) continue;
      excess += 1;
      const Norms& norms = output.norms;
      if (norms.error > norms.allowed_error && norms.allowed_error > 0) {
        excess += std::log(norms.error / norms.allowed_error);
      }
    }
    return excess;
  }

  // Picks first, because they do more; in order of steps, then nearest first.
  absl::StatusOr<std::vector<Tie>> FindTies(int first_step) {
    std::vector<Tie> picks, others;
    for (int step = first_step; step <= run_.num_steps; ++step) {
      for (size_t group = 0; group < groups_.size(); ++group) {
        RETURN_IF_ERROR(AddTies(group, step, picks, others));
      }
    }
    for (std::vector<Tie>* ties : {&picks, &others}) {
      std::ranges::stable_sort(*ties, {}, [](const Tie& tie) {
        return std::pair(tie.step, tie.distance / tie.tolerance);
      });
      if (ties->size() > kMaxTies) ties->resize(kMaxTies);
    }
    picks.insert(picks.end(), others.begin(), others.end());
    return picks;
  }

  absl::Status AddTies(size_t group, int step, std::vector<Tie>& picks, std::vector<Tie>& others) {
    ASSIGN_OR_RETURN(MeshResults * mesh, RunMesh(group, step));
    Program& program = *programs_[group];
    ASSIGN_OR_RETURN(const OneDeviceResults one_device,
                     RunTurned(program.one_device, program.step, step));
    FillConstants(one_device, *mesh);
    const OracleReport report = CompareResults(program.step, *mesh, one_device);
    const std::vector<Value>& values = program.step.module.entry_computation().results;
    for (size_t at = entry_.results.size(); at < values.size(); ++at) {
      const Opcode opcode = entry_.instruction(values[at]).opcode;
      if (!IsDecision(run_.prepared.module, values[at]) ||
          (opcode != Opcode::kCompare && opcode != Opcode::kSign)) {
        continue;
      }
      const auto of_one = InputsOf(program, values[at], report, one_device.single);
      const auto of_mesh = InputsOf(program, values[at], report, mesh->values);
      if (!of_one || !of_mesh) continue;
      const Literal& decided = one_device.single[at];
      if (IsPick(run_.prepared.module, values[at])) {
        for (OtherPick& other :
             OtherPicks(run_.prepared.module, values[at], of_one->values, decided)) {
          if (!(other.distance <= of_one->tolerance)) continue;
          picks.push_back(
              {values[at], step, std::move(other.turned), other.distance, of_one->tolerance});
        }
        continue;
      }
      for (int64_t i = 0; i < decided.shape.num_elements(); ++i) {
        const auto distance = [&](const DecisionInputs& inputs) {
          return ThresholdDistance(run_.prepared.module, values[at], inputs.values, i);
        };
        const double mine = distance(*of_one);
        // What is equal on both was not rounded: padding, a mask.
        if (!(mine <= of_one->tolerance) || (mine == 0 && distance(*of_mesh) == 0)) continue;
        others.push_back({values[at], step, {i}, mine, of_one->tolerance});
      }
    }
    return absl::OkStatus();
  }

  std::string DescribeTie(const Tie& tie) const {
    const Instruction& instruction = entry_.instruction(tie.decision);
    return fmt::format(
        "in step {} element {} of {} {} {}{}, which lies {:.2g} from {}; rounding moves it by up "
        "to {:.2g}, and how the compiler fuses operations decides",
        tie.step, ElementName(entry_.shape(tie.decision), tie.elements.back()),
        OpcodeName(instruction.opcode), instruction.name, ToString(entry_.shape(tie.decision)),
        SourceOf(instruction), tie.distance, ThresholdName(tie.decision), tie.tolerance);
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
        Program& program = *programs_[group];
        ASSIGN_OR_RETURN(const OneDeviceResults one_device,
                         RunTurned(program.one_device, program.step, num_steps_));
        FillConstants(one_device, *mesh);
        const OracleReport report = CompareResults(program.step, *mesh, one_device);
        ASSIGN_OR_RETURN(const std::optional<Unexplained> first,
                         FirstUnexplained(program.step, report, *mesh, one_device));
        if (first) return At(program, *first, report, *mesh, one_device);
      }
    }
    return std::nullopt;
  }

  // Among the values that were added; they stand in the order of operations.
  absl::StatusOr<std::optional<Unexplained>> FirstUnexplained(
      const Step& step, const OracleReport& report, const MeshResults& mesh,
      const OneDeviceResults& one_device) const {
    const std::vector<Value>& values = step.module.entry_computation().results;
    for (size_t i = entry_.results.size(); i < values.size(); ++i) {
      const Instruction& instruction = entry_.instruction(values[i]);
      if (report.outputs[i].ok() || instruction.opcode == Opcode::kParameter ||
          IsPlain(instruction.opcode)) {
        continue;
      }
      if (IsDecision(run_.prepared.module, values[i])) return Unexplained{i};
      ASSIGN_OR_RETURN(const bool follows, FollowsFromOperands(values, i, mesh));
      if (!follows) return Unexplained{i};
      const std::optional<Amplified> amplified =
          FindAmplified(values, i, report, mesh.values, one_device.single);
      if (amplified) return Unexplained{i, amplified};
    }
    return std::nullopt;
  }

  // Elements off by more than rounding although what they are computed from is not. nullopt: there
  // are none, too many, or what the operation reads is off, too.
  std::optional<Amplified> FindAmplified(const std::vector<Value>& values, size_t at,
                                         const OracleReport& report,
                                         const std::vector<Literal>& mesh,
                                         const std::vector<Literal>& one_device) const {
    const Instruction& instruction = entry_.instruction(values[at]);
    if (!IsUnstableAtZero(entry_, instruction) || report.outputs[at].fault != Fault::kValue) {
      return std::nullopt;
    }
    // Norms leave out what is not finite, too.
    const auto difference = [&](size_t result, int64_t element) {
      const double off = std::abs(ElementAsDouble(mesh[result], element) -
                                  ElementAsDouble(one_device[result], element));
      return std::isfinite(off) ? off : 0;
    };
    const std::vector<int64_t> elements = FewestWithTheError(
        report.outputs[at], [&](int64_t element) { return difference(at, element); });
    if (elements.empty()) return std::nullopt;
    for (const Value operand : instruction.operands) {
      const size_t read =
          std::find(values.begin() + entry_.results.size(), values.end(), operand) - values.begin();
      const OutputComparison& compared = report.outputs[read];
      if (!compared.ok()) return std::nullopt;
      for (const int64_t element : elements) {
        if (!(difference(read, element) <= ToleranceOf(compared))) return std::nullopt;
      }
    }
    return Amplified{elements.front(), static_cast<int64_t>(elements.size()),
                     difference(at, elements.front())};
  }

  // The elements, the worst first, without which the others are off by no more than allowed. Empty:
  // too many.
  template <typename Difference>
  static std::vector<int64_t> FewestWithTheError(const OutputComparison& output,
                                                 const Difference& difference) {
    const int64_t num_elements = output.shape.num_elements();
    std::vector<std::pair<double, int64_t>> worst;
    double rest = 0;
    for (int64_t i = 0; i < num_elements; ++i) {
      worst.push_back({difference(i), i});
      rest += worst.back().first * worst.back().first;
    }
    const double allowed = output.norms.allowed_error * output.norms.allowed_error;
    const int64_t most = std::max(kMaxAmplified, num_elements / kPartAmplified);
    const auto end = worst.begin() + std::min(most, num_elements);
    std::ranges::partial_sort(worst, end, std::greater<>());
    std::vector<int64_t> elements;
    for (auto it = worst.begin(); it != end && rest > allowed; ++it) {
      elements.push_back(it->second);
      rest -= it->first * it->first;
    }
    if (!(rest <= allowed)) elements.clear();
    return elements;
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

  Difference At(const Program& program, const Unexplained& unexplained, const OracleReport& report,
                const MeshResults& mesh, const OneDeviceResults& one_device) const {
    const size_t at = unexplained.at;
    const Value value = program.step.module.entry_computation().results[at];
    const Instruction& instruction = entry_.instruction(value);
    const auto point = std::ranges::find(points_, value, &Point::value);
    Difference difference{.decision = value};
    difference.text =
        fmt::format("in step {} the first operation that differs is {} {} {}{} in {}", num_steps_,
                    OpcodeName(instruction.opcode), instruction.name, ToString(entry_.shape(value)),
                    SourceOf(instruction), kept_.Describe(*point->place));
    if (const auto& amplified = unexplained.amplified) {
      difference.can_turn = true;
      difference.text += fmt::format(
          ": {} element{}, the first {}, off by {:.2g}, although what it reads there lies within "
          "rounding of what one device reads",
          amplified->num_elements, amplified->num_elements == 1 ? "" : "s",
          ElementName(entry_.shape(value), amplified->element), amplified->difference);
      return difference;
    }
    if (!IsDecision(run_.prepared.module, value)) {
      difference.text += fmt::format(": {}; what it reads agrees", Describe(report.outputs[at]));
      return difference;
    }
    DescribeDecision(program, at, report, mesh, one_device, difference);
    return difference;
  }

  void DescribeDecision(const Program& program, size_t at, const OracleReport& report,
                        const MeshResults& mesh, const OneDeviceResults& one_device,
                        Difference& difference) const {
    const Module& module = run_.prepared.module;
    const auto inputs = InputsOf(program, difference.decision, report, one_device.single);
    if (!inputs) {
      difference.text += ", whose input the plan never has whole";
      return;
    }
    const double tolerance = inputs->tolerance;
    const Literal& mine = mesh.values[at];
    const std::vector<TurnedElement> turned =
        TurnedElements(module, difference.decision, inputs->values, mine, one_device.single[at]);
    double farthest = 0;
    for (const auto& [element, distance] : turned) {
      farthest = std::isnan(distance) ? distance : std::max(farthest, distance);
    }
    difference.can_turn = !turned.empty() && farthest <= tolerance;
    if (turned.empty()) {  // on the device that is read
      difference.text += ": " + Describe(report.outputs[at]);
      return;
    }
    difference.text += fmt::format(
        ": {} element{}, the first {}, which lies {:.2g} from {}; rounding moves it by up to "
        "{:.2g}",
        turned.size(), turned.size() == 1 ? "" : "s",
        ElementName(mine.shape, turned.front().element), turned.front().distance,
        ThresholdName(difference.decision), tolerance);
    if (!difference.can_turn) {
      difference.text += fmt::format(", and another lies {:.2g} away", farthest);
    }
  }

  // From the results of one run of the program. nullopt: the plan never has an input whole.
  std::optional<DecisionInputs> InputsOf(const Program& program, Value decision,
                                         const OracleReport& report,
                                         const std::vector<Literal>& results) const {
    const std::vector<Value>& values = program.step.module.entry_computation().results;
    DecisionInputs inputs;
    for (const Value input : InputsOfDecision(run_.prepared.module, decision)) {
      const auto found = std::find(values.begin() + entry_.results.size(), values.end(), input);
      if (found == values.end()) return std::nullopt;
      inputs.values.push_back(results[found - values.begin()]);
      const OutputComparison& compared = report.outputs[found - values.begin()];
      inputs.tolerance += ToleranceOf(compared);
    }
    return inputs;
  }

  // What an element may be off by.
  static double ToleranceOf(const OutputComparison& output) {
    if (output.parts.empty()) return 0;
    const Norms& norms = output.parts.front();
    return 4 * norms.allowed_error / std::sqrt(std::max<double>(norms.num_elements, 1));
  }

  std::string_view ThresholdName(Value decision) const {
    if (entry_.instruction(decision).opcode == Opcode::kCompare) return "what it is compared with";
    return IsPick(run_.prepared.module, decision) ? "what one device picks" : "its threshold";
  }

  const SearchedRun& run_;
  const Computation& entry_;
  const KeptValues kept_;
  const int64_t max_bytes_at_once_;
  const std::vector<Point> points_;
  const std::vector<Value> choices_;
  const std::vector<std::vector<int>> groups_;
  std::vector<std::optional<Program>> programs_;
  TurnedProgram original_;             // of the step as it is
  std::map<int, MeshResults> before_;  // what the steps before left, by step
  std::vector<Value> turned_;
  std::vector<Tie> turned_ties_;
  // Where the search goes on.
  int num_steps_ = 1;
  size_t group_ = 0;
};

}  // namespace

absl::StatusOr<FirstDifference> FindFirstDifference(const SearchedRun& run,
                                                    int64_t max_bytes_at_once) {
  if (run.plan.micro_batches.per_micro_batch) {
    return Unimplemented(
        "where it differs is not searched for where each micro-batch stands for the whole batch "
        "(--per-micro-batch); check the plan with --micro-batches 1");
  }
  ASSIGN_OR_RETURN(KeptValues kept, KeptValues::Create(run.prepared, run.plan));
  return DifferenceSearch(run, std::move(kept), max_bytes_at_once).Run();
}

}  // namespace minka
