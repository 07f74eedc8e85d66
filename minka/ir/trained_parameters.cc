#include "minka/ir/trained_parameters.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace minka {
namespace {

bool IsState(const ParameterInfo& info) { return info.role == ParameterRole::kState; }

const Shape& ShapeOf(const Step& step, size_t parameter) {
  const Computation& entry = step.module.entry_computation();
  return entry.instructions[entry.parameters[parameter]].shape();
}

// Without its first component, where it has several.
std::string_view PathOf(std::string_view name) {
  const size_t slash = name.find('/');
  return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

}  // namespace

std::vector<bool> TrainedParameters(const Step& step) {
  std::vector<bool> named, marked(step.parameters.size()), all;
  for (const ParameterInfo& info : step.parameters) {
    named.push_back(IsState(info) && info.name.starts_with("params/"));
    all.push_back(IsState(info));
  }
  for (const Mark& mark : step.marks) {
    if (mark.kind == MarkKind::kGradient && mark.index < static_cast<int>(marked.size())) {
      marked[mark.index] = all[mark.index];
    }
  }
  for (std::vector<bool>* trained : {&named, &marked}) {
    if (std::ranges::count(*trained, true) > 0) return std::move(*trained);
  }
  return all;
}

std::vector<int> OwnersOfState(const Step& step) {
  const std::vector<bool> trained = TrainedParameters(step);
  std::map<std::string_view, int> by_path;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (trained[i]) by_path.emplace(PathOf(step.parameters[i].name), static_cast<int>(i));
  }
  std::vector<int> owners(trained.size(), -1);
  for (size_t i = 0; i < trained.size(); ++i) {
    if (trained[i] || !IsState(step.parameters[i])) continue;
    // The longest path that ends the name first.
    const std::string_view name = step.parameters[i].name;
    for (size_t begin = 0; begin < name.size() && owners[i] < 0;) {
      const auto found = by_path.find(name.substr(begin));
      if (found != by_path.end() && ShapeOf(step, found->second) == ShapeOf(step, i)) {
        owners[i] = found->second;
      }
      begin = std::min(name.find('/', begin), name.size() - 1) + 1;
    }
  }
  return owners;
}

}  // namespace minka
