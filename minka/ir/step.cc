#include "minka/ir/step.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "minka/ir/mark_text.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/rewriter.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kStepAttribute[] = "minka.step";

// Names of an enumeration, in the order of its values.
constexpr const char* kParameterRoles[] = {"state", "batch", "key", "constant"};
constexpr const char* kResultRoles[] = {"state", "loss", "metric"};
constexpr const char* kRematPolicies[] = {"none", "dots", "all"};
constexpr const char* kMarkKinds[] = {"loss", "gradient", "layer_boundary", "remat_region"};

template <typename Enum, size_t N>
absl::StatusOr<Enum> ParseName(const char* const (&names)[N], std::string_view name,
                               const char* what) {
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  return InvalidArgument("{}: unknown {} \"{}\"", kStepAttribute, what, name);
}

std::optional<int> ParseInt(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

// --- marks -----------------------------------------------------------------------------------

std::string MarkText(const Mark& mark) {
  return fmt::format("{} {}", kMarkKinds[static_cast<int>(mark.kind)], mark.index);
}

absl::StatusOr<Mark> ParseMark(std::string_view text) {
  const size_t space = text.find(' ');
  ASSIGN_OR_RETURN(const MarkKind kind,
                   ParseName<MarkKind>(kMarkKinds, text.substr(0, space), "mark"));
  Mark mark{.kind = kind};
  if (space == std::string_view::npos) return mark;
  const std::optional<int> index = ParseInt(text.substr(space + 1));
  if (!index || *index < 0) {
    return InvalidArgument("{}: \"{}\" does not end in a number", kMarkAttribute, text);
  }
  mark.index = *index;
  return mark;
}

namespace {

// Takes the mark barriers out of the entry computation; users read what the barrier read.
absl::StatusOr<std::vector<Mark>> RemoveMarks(Module& module) {
  Computation entry = std::move(module.entry_computation());
  Rewriter rewriter(entry);
  std::vector<Mark> marks;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    Instruction& instruction = entry.instructions[id];
    const auto found = instruction.frontend_attributes.find(kMarkAttribute);
    if (found == instruction.frontend_attributes.end()) {
      rewriter.Move(id, std::move(instruction));
      continue;
    }
    if (instruction.opcode != Opcode::kOptBarrier) {
      return InvalidArgument("{}: '{}' is {}; marks are opt-barriers", kMarkAttribute,
                             instruction.name, OpcodeName(instruction.opcode));
    }
    ASSIGN_OR_RETURN(Mark mark, ParseMark(found->second));
    const std::vector<Value> marked = rewriter.Translated(id).operands;
    // Behind a loss stand gradients that keep it where nothing else reads it.
    const size_t num_marked = mark.kind == MarkKind::kLoss ? 1 : marked.size();
    for (size_t i = 0; i < std::min(num_marked, marked.size()); ++i) {
      mark.value = marked[i];
      marks.push_back(mark);
    }
    rewriter.Map(id, marked);
  }
  module.entry_computation() = std::move(rewriter).Finish();
  std::ranges::stable_sort(marks, {}, &Mark::value);
  return marks;
}

// --- the description --------------------------------------------------------------------------

std::string DescriptionJson(const Step& step) {
  Json json = {{"schema_version", 1}, {"parameters", Json::array()}, {"results", Json::array()}};
  for (const ParameterInfo& info : step.parameters) {
    Json entry = {{"name", info.name}, {"role", RoleName(info.role)}};
    if (info.state_result >= 0) entry["state_result"] = info.state_result;
    if (info.batch_dim >= 0) entry["batch_dim"] = info.batch_dim;
    json["parameters"].push_back(std::move(entry));
  }
  for (const ResultInfo& info : step.results) {
    json["results"].push_back({{"name", info.name}, {"role", RoleName(info.role)}});
  }
  return json.dump();
}

absl::Status ReadDescription(const std::string& text, Step& step) {
  const absl::StatusOr<Json> parsed = ParseJson(text);
  if (!parsed.ok()) return WithContext(parsed.status(), kStepAttribute);
  const Json& json = *parsed;
  try {
    if (json.at("schema_version") != 1) {
      return InvalidArgument("{}: schema_version is not 1", kStepAttribute);
    }
    for (const Json& entry : json.at("parameters")) {
      ASSIGN_OR_RETURN(
          const auto role,
          ParseName<ParameterRole>(kParameterRoles, entry.at("role").get<std::string>(), "role"));
      step.parameters.push_back({.role = role,
                                 .name = entry.at("name"),
                                 .state_result = entry.value("state_result", -1),
                                 .batch_dim = entry.value("batch_dim", -1)});
    }
    for (const Json& entry : json.at("results")) {
      ASSIGN_OR_RETURN(
          const auto role,
          ParseName<ResultRole>(kResultRoles, entry.at("role").get<std::string>(), "role"));
      step.results.push_back({.role = role, .name = entry.at("name")});
    }
  } catch (const Json::exception& error) {
    return InvalidArgument("{}: {}", kStepAttribute, error.what());
  }
  return absl::OkStatus();
}

absl::Status CheckMarks(const Step& step) {
  for (const Mark& mark : step.marks) {
    if (mark.kind != MarkKind::kGradient) continue;
    if (mark.index < static_cast<int>(step.parameters.size())) continue;
    return InvalidArgument("{}: \"{}\" names no parameter; the module has {}", kMarkAttribute,
                           MarkText(mark), step.parameters.size());
  }
  return absl::OkStatus();
}

// Numbers, dimensions and shapes that the description or flags speak of exist and fit.
absl::Status CheckDescription(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  if (step.parameters.size() != entry.parameters.size() ||
      step.results.size() != entry.results.size()) {
    return InvalidArgument("{} describes {} parameters and {} results; the module has {} and {}",
                           kStepAttribute, step.parameters.size(), step.results.size(),
                           entry.parameters.size(), entry.results.size());
  }
  std::vector<int> taken(entry.results.size(), -1);
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const ParameterInfo& info = step.parameters[i];
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    if (info.batch_dim < -1 || info.batch_dim >= shape.rank()) {
      return InvalidArgument("parameter {} ({}) {} has no dimension {} to be the batch", i,
                             info.name, ToString(shape), info.batch_dim);
    }
    if (info.state_result == -1) continue;
    if (info.state_result < 0 || info.state_result >= static_cast<int>(entry.results.size())) {
      return InvalidArgument("parameter {} ({}): the module has no result {}", i, info.name,
                             info.state_result);
    }
    const Shape& result = entry.shape(entry.results[info.state_result]);
    if (result != shape) {
      return InvalidArgument("parameter {} ({}) {} cannot be state: result {} is {}", i, info.name,
                             ToString(shape), info.state_result, ToString(result));
    }
    int& owner = taken[info.state_result];
    if (owner >= 0) {
      return InvalidArgument("result {} is the new value of both parameter {} and parameter {}",
                             info.state_result, owner, i);
    }
    owner = static_cast<int>(i);
  }
  return absl::OkStatus();
}

// --- what has to be concluded -----------------------------------------------------------------

class Inference {
 public:
  Inference(Step& step, std::vector<std::string>* lines) : step_(step), lines_(lines) {}

  absl::Status Run(const StepFlags& flags) {
    const Computation& entry = step_.module.entry_computation();
    for (size_t i = 0; i < entry.parameters.size(); ++i) {
      const std::string& op_name = entry.instructions[entry.parameters[i]].op_name;
      step_.parameters.push_back(
          {.name = op_name.empty() ? fmt::format("parameter.{}", i) : op_name});
    }
    for (size_t i = 0; i < entry.results.size(); ++i) {
      step_.results.push_back({.name = fmt::format("result.{}", i)});
    }
    for (const std::string& flag : flags.states) RETURN_IF_ERROR(AddState(flag));
    AddDonated();
    for (const std::string& flag : flags.batch_inputs) RETURN_IF_ERROR(AddBatch(flag));
    if (flags.loss) RETURN_IF_ERROR(SetLoss(*flags.loss));
    AddKeys();
    return absl::OkStatus();
  }

 private:
  void Say(std::string line) {
    if (lines_) lines_->push_back(std::move(line));
  }

  // Parameters that a number or a glob names.
  absl::StatusOr<std::vector<int>> Find(std::string_view name) const {
    std::vector<int> found;
    const std::optional<int> number = ParseInt(name);
    for (int i = 0; i < static_cast<int>(step_.parameters.size()); ++i) {
      if (number ? *number == i : MatchesGlob(name, step_.parameters[i].name)) found.push_back(i);
    }
    if (found.empty()) {
      return NotFound("no parameter is named \"{}\"; there are {}, the first is \"{}\"", name,
                      step_.parameters.size(),
                      step_.parameters.empty() ? "" : step_.parameters[0].name);
    }
    return found;
  }

  void MakeState(int parameter, int result) {
    step_.parameters[parameter].role = ParameterRole::kState;
    step_.parameters[parameter].state_result = result;
    step_.results[result] = {ResultRole::kState, step_.parameters[parameter].name};
  }

  absl::Status AddState(const std::string& flag) {
    const size_t colon = flag.rfind(':');
    const std::optional<int> result = colon == std::string::npos
                                          ? std::nullopt
                                          : ParseInt(std::string_view(flag).substr(colon + 1));
    if (!result || *result < 0) {
      return InvalidArgument("state \"{}\": expected PARAM:RESULT, e.g. 0:0", flag);
    }
    ASSIGN_OR_RETURN(const std::vector<int> found, Find(std::string_view(flag).substr(0, colon)));
    if (found.size() > 1) {
      return InvalidArgument("state \"{}\" names {} parameters; a result replaces one", flag,
                             found.size());
    }
    if (*result >= static_cast<int>(step_.results.size())) {
      return InvalidArgument("state \"{}\": the module has {} results", flag, step_.results.size());
    }
    MakeState(found[0], *result);
    return absl::OkStatus();
  }

  void AddDonated() {
    std::vector<Alias> donated;
    for (const Alias& alias : step_.module.aliases) {
      if (step_.parameters[alias.parameter].role == ParameterRole::kState) continue;
      MakeState(alias.parameter, alias.result);
      donated.push_back(alias);
    }
    const auto text = [&](const Alias& alias) {
      return fmt::format("{} ({})", alias.parameter, step_.parameters[alias.parameter].name);
    };
    constexpr size_t kFew = 4;
    if (donated.size() > kFew) {
      const auto [first, last] = std::ranges::minmax(donated, {}, &Alias::parameter);
      Say(fmt::format(
          "{} parameters between {} and {} are state: their buffers are donated to results",
          donated.size(), text(first), text(last)));
      return;
    }
    for (const Alias& alias : donated) {
      Say(fmt::format("parameter {} is state: its buffer is donated to result {}", text(alias),
                      alias.result));
    }
  }

  absl::Status AddBatch(const std::string& flag) {
    const size_t colon = flag.rfind(':');
    const std::optional<int> dim =
        colon == std::string::npos ? 0 : ParseInt(std::string_view(flag).substr(colon + 1));
    if (!dim || *dim < 0) {
      return InvalidArgument("batch input \"{}\": expected PARAM or PARAM:DIM, e.g. tokens:0",
                             flag);
    }
    ASSIGN_OR_RETURN(const std::vector<int> found, Find(std::string_view(flag).substr(0, colon)));
    for (int parameter : found) {
      ParameterInfo& info = step_.parameters[parameter];
      if (info.role == ParameterRole::kState) {
        return InvalidArgument("batch input \"{}\": parameter {} ({}) is state", flag, parameter,
                               info.name);
      }
      info.role = ParameterRole::kBatch;
      info.batch_dim = *dim;
    }
    return absl::OkStatus();
  }

  absl::Status SetLoss(int64_t result) {
    const Computation& entry = step_.module.entry_computation();
    if (result < 0 || result >= static_cast<int64_t>(entry.results.size())) {
      return InvalidArgument("loss {}: the module has {} results, from 0 on", result,
                             entry.results.size());
    }
    const Shape& shape = entry.shape(entry.results[result]);
    ResultInfo& info = step_.results[result];
    if (info.role == ResultRole::kState || shape.rank() != 0 || !IsFloat(shape.type)) {
      return InvalidArgument("loss {}: the result is {}{}, not a floating-point scalar", result,
                             ToString(shape), info.role == ResultRole::kState ? " of state" : "");
    }
    info = {ResultRole::kLoss, "loss"};
    return absl::OkStatus();
  }

  void AddKeys() {
    const Computation& entry = step_.module.entry_computation();
    for (size_t i = 0; i < entry.parameters.size(); ++i) {
      const Shape& shape = entry.instructions[entry.parameters[i]].shape();
      ParameterInfo& info = step_.parameters[i];
      if (info.role != ParameterRole::kConstant || shape != Shape{ElementType::kU32, {2}}) continue;
      info.role = ParameterRole::kKey;
      Say(fmt::format("parameter {} ({}) is a random key: it is u32[2]", i, info.name));
    }
  }

  Step& step_;
  std::vector<std::string>* lines_;
};

}  // namespace

std::string_view RoleName(ParameterRole role) { return kParameterRoles[static_cast<int>(role)]; }

std::string_view RoleName(ResultRole role) { return kResultRoles[static_cast<int>(role)]; }

std::string_view RematPolicyName(RematPolicy policy) {
  return kRematPolicies[static_cast<int>(policy)];
}

absl::StatusOr<RematPolicy> ParseRematPolicy(std::string_view name) {
  for (const RematPolicy policy : {RematPolicy::kNone, RematPolicy::kDots, RematPolicy::kAll}) {
    if (name == RematPolicyName(policy)) return policy;
  }
  return InvalidArgument("unknown rematerialisation \"{}\"; there are none, dots and all", name);
}

absl::StatusOr<Step> MakeStep(Module module, const StepFlags& flags,
                              std::vector<std::string>* inferred) {
  Step step;
  ASSIGN_OR_RETURN(step.marks, RemoveMarks(module));
  RETURN_IF_ERROR(ReadLoopAttributes(module));
  step.module = std::move(module);
  const auto description = step.module.frontend_attributes.find(kStepAttribute);
  if (description != step.module.frontend_attributes.end()) {
    RETURN_IF_ERROR(ReadDescription(description->second, step));
    step.module.frontend_attributes.erase(description);
  } else {
    RETURN_IF_ERROR(Inference(step, inferred).Run(flags));
  }
  RETURN_IF_ERROR(CheckDescription(step));
  RETURN_IF_ERROR(CheckMarks(step));
  return step;
}

Module ToModule(const Step& step) {
  Rewriter rewriter(step.module.entry_computation());
  auto mark = step.marks.begin();
  for (InstructionId id = 0; id < rewriter.source().num_instructions(); ++id) {
    rewriter.Copy(id);
    for (; mark != step.marks.end() && mark->value.instruction == id; ++mark) {
      rewriter.Map(
          mark->value,
          rewriter.AppendOne({.opcode = Opcode::kOptBarrier,
                              .name = fmt::format("minka.mark.{}", mark - step.marks.begin()),
                              .operands = {rewriter.Now(mark->value)},
                              .results = {rewriter.source().shape(mark->value)},
                              .frontend_attributes = {{kMarkAttribute, MarkText(*mark)}}}));
    }
  }
  Module module = WithEntry(step.module, std::move(rewriter).Finish());
  module.frontend_attributes[kStepAttribute] = DescriptionJson(step);
  WriteLoopAttributes(module);
  return module;
}

bool NamesLoss(const Step& step) {
  return std::ranges::count(step.marks, MarkKind::kLoss, &Mark::kind) > 0 ||
         std::ranges::count(step.results, ResultRole::kLoss, &ResultInfo::role) > 0;
}

bool MatchesGlob(std::string_view glob, std::string_view name) {
  // Greedy with one point to come back to: the last `*` and how much it has taken.
  size_t g = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      taken = n;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == name[n])) {
      ++g;
      ++n;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

}  // namespace minka
