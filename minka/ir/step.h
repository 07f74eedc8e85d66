// A step: a module plus what its inputs and results mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/module.h"

namespace minka {

enum class ParameterRole { kState, kBatch, kKey, kConstant };
enum class ResultRole { kState, kLoss, kMetric };

// As in JSON and tables.
std::string_view RoleName(ParameterRole role);
std::string_view RoleName(ResultRole role);

// What dimensions of a value count.
struct ExampleDims {
  int batch = -1;  // examples of the batch; -1: none
  // What lies within one example lies in that dimension, too, of each example together.
  bool batch_is_merged = false;
  std::vector<int> within;  // what lies within one example, such as positions or pixels; ascending
  bool empty() const { return batch < 0 && within.empty(); }
  bool operator==(const ExampleDims&) const = default;
};

struct ParameterInfo {
  ParameterRole role = ParameterRole::kConstant;
  std::string name;       // path of the frontend, e.g. "params/layer_0/attention/query/kernel"
  int state_result = -1;  // kState: the result that holds its new value
  int batch_dim = -1;     // kBatch: the dimension that counts examples
  // kBatch, of what another stage sends, which has no `batch_dim`.
  std::optional<ExampleDims> received;
  bool operator==(const ParameterInfo&) const = default;
};

struct ResultInfo {
  ResultRole role = ResultRole::kMetric;
  std::string name;
  bool operator==(const ResultInfo&) const = default;
};

enum class MarkKind { kLoss, kGradient, kLayerBoundary, kRematRegion };

// A marked value of the entry computation.
struct Mark {
  MarkKind kind = MarkKind::kLoss;
  Value value;
  int index = 0;  // kGradient: the parameter; kLayerBoundary, kRematRegion: its number
  bool operator==(const Mark&) const = default;
};

// What the backward pass finds of a layer's forward pass: all that it reads (kNone), results of
// dots, convolutions, sorts and control flow only (kDots), or nothing but the values that enter the
// layer (kAll). What it does not find it computes again.
enum class RematPolicy : uint8_t { kNone, kDots, kAll };

// By layer; one entry: of every layer; empty: of every layer none.
using RematChoice = std::vector<RematPolicy>;

// "none", "dots", "all".
std::string_view RematPolicyName(RematPolicy policy);
absl::StatusOr<RematPolicy> ParseRematPolicy(std::string_view name);

struct Step {
  Module module;
  std::vector<ParameterInfo> parameters;  // by parameter number
  std::vector<ResultInfo> results;        // by result number
  std::vector<Mark> marks;                // sorted by value
  // How many layers its operations stand in (Instruction::part); 0: no boundary between any is
  // known; nullopt: analysis/structure.h has not looked.
  std::optional<int> num_layers;
};

// Does a mark or a result say what the step minimises?
bool NamesLoss(const Step& step);

// What a module file does not say by itself. PARAM is a number or a glob on parameter names in
// which `*` matches `/` too.
struct StepFlags {
  std::vector<std::string> batch_inputs;  // "PARAM" or "PARAM:DIM"
  std::vector<std::string> states;        // "PARAM:RESULT"
  std::optional<int64_t> loss;            // a result: a scalar of a floating-point type
};

// Takes the description from the module's frontend attribute `minka.step` (JSON) where present,
// else from flags and donated aliases; marks (`opt-barrier` with the attribute `minka.mark`) are
// removed from the module and kept in the table. `inferred` gets one line per thing that was not
// said but concluded.
absl::StatusOr<Step> MakeStep(Module module, const StepFlags& flags,
                              std::vector<std::string>* inferred = nullptr);

// The module with the description in `minka.step` and the marks as barriers again:
// MakeStep(ToModule(s), {}) equals s but for num_layers. As text it also loses the phases and
// layers of operations.
Module ToModule(const Step& step);

// Does `name` match the glob (`*` any run of characters, `?` one)?
bool MatchesGlob(std::string_view glob, std::string_view name);

}  // namespace minka
