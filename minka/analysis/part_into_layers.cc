#include "minka/analysis/part_into_layers.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "minka/analysis/flops.h"
#include "minka/analysis/layer_cut.h"
#include "minka/ir/call_graph.h"

namespace minka {
namespace {

constexpr double kTolerance = 0.6;

// A heavy operation and what stands behind it.
struct OperationGroup {
  double load = 0;
  int64_t bytes_behind = 0;  // that cross the cheapest cut between it and the next one
  int region = -1;           // see RecomputedRegions
};

// The dynamic program over groups.
class GroupParter {
 public:
  GroupParter(const std::vector<OperationGroup>& groups, int num_layers)
      : groups_(groups), num_layers_(num_layers) {
    for (const OperationGroup& group : groups)
      load_before_.push_back(load_before_.back() + group.load);
  }

  // By layer, the group behind its last one. Precondition: there are as many groups as layers.
  std::vector<int> Run() const {
    for (const bool cuts_regions : {false, true}) {
      for (double tolerance = kTolerance;; tolerance *= 2) {
        const std::optional<std::vector<int>> ends = Part(tolerance, cuts_regions);
        if (ends) return *ends;
        if (tolerance > num_layers_) break;
      }
    }
    return {};
  }

 private:
  struct Cost {
    int64_t bytes = std::numeric_limits<int64_t>::max();
    double unevenness = 0;  // sum of squares of loads
    auto operator<=>(const Cost&) const = default;
  };

  int num_groups() const { return static_cast<int>(groups_.size()); }

  bool MayBeginAt(int group, bool cuts_regions) const {
    const int region = groups_[group].region;
    return cuts_regions || region < 0 || groups_[group - 1].region != region;
  }

  std::optional<std::vector<int>> Part(double tolerance, bool cuts_regions) const {
    const double equal = load_before_.back() / num_layers_;
    const double least = equal * (1 - tolerance), most = equal * (1 + tolerance);
    // By number of layers and of groups in them: the best, and where the last of the layers begins.
    std::vector best(num_layers_ + 1, std::vector<Cost>(num_groups() + 1));
    std::vector begin(num_layers_ + 1, std::vector<int>(num_groups() + 1));
    best[0][0].bytes = 0;
    for (int layer = 1; layer <= num_layers_; ++layer) {
      for (int end = layer; end <= num_groups(); ++end) {
        for (int first = end - 1; first >= layer - 1; --first) {
          const double load = load_before_[end] - load_before_[first];
          if (load > most) break;
          Cost cost = best[layer - 1][first];
          if (load < least || cost == Cost()) continue;
          if (first > 0 && !MayBeginAt(first, cuts_regions)) continue;
          if (first > 0) cost.bytes += groups_[first - 1].bytes_behind;
          cost.unevenness += load * load;
          if (cost >= best[layer][end]) continue;
          best[layer][end] = cost;
          begin[layer][end] = first;
        }
      }
    }
    if (best[num_layers_][num_groups()] == Cost()) return std::nullopt;
    std::vector<int> ends(num_layers_);
    int end = num_groups();
    for (int layer = num_layers_; layer > 0; --layer) {
      ends[layer - 1] = end;
      end = begin[layer][end];
    }
    return ends;
  }

  const std::vector<OperationGroup>& groups_;
  const int num_layers_;
  std::vector<double> load_before_ = {0};
};

class LayerParter {
 public:
  LayerParter(const Step& step, const std::vector<Phase>& phases, int num_layers)
      : step_(step),
        entry_(step.module.entry_computation()),
        uses_(entry_),
        num_layers_(num_layers),
        is_forward_(ForwardOperations(step, phases)),
        has_gradient_(ContributionsToLoss(step, phases)),
        regions_(RecomputedRegions(step, phases)) {
    if (std::ranges::find(phases, Phase::kBackward) == phases.end()) {
      has_gradient_.assign(phases.size(), false);
    }
  }

  Layers Run() && {
    FindSent();
    FindWork();
    FindGroups();
    layers_.layer.assign(entry_.instructions.size(), -1);
    layers_.count = std::min<int>(num_layers_, static_cast<int>(groups_.size()));
    if (layers_.count == 0) return std::move(layers_);
    FindBytesBehindGroups();
    const std::vector<int> ends = GroupParter(groups_, layers_.count).Run();
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!is_heavy_[id]) continue;
      const auto end = std::ranges::upper_bound(ends, group_[id]);
      layers_.layer[id] = static_cast<int>(end - ends.begin());
    }
    PlaceOthers();
    return std::move(layers_);
  }

 private:
  void FindWork() {
    int num_with_flops = 0;
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      InstructionWork work;
      if (is_forward_[id] && is_sent_[id]) work = WorkOf(step_.module, entry_, id);
      load_.push_back(work.flops + work.elementwise);
      is_heavy_.push_back(work.flops > 0);
      num_with_flops += work.flops > 0;
    }
    if (num_with_flops >= num_layers_) return;
    for (size_t id = 0; id < is_heavy_.size(); ++id)
      is_heavy_[id] = is_forward_[id] && is_sent_[id];
  }

  void FindGroups() {
    group_.assign(entry_.instructions.size(), 0);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!is_forward_[id]) continue;
      if (is_heavy_[id]) {
        group_[id] = static_cast<int>(groups_.size());
        groups_.push_back({.region = regions_[id]});
      } else {
        for (const Value operand : entry_.instructions[id].operands) {
          group_[id] = std::max(group_[id], group_[operand.instruction]);
        }
      }
    }
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (is_forward_[id] && !groups_.empty()) groups_[group_[id]].load += load_[id];
    }
  }

  // What goes from stage to stage: all that depends on weights, as far as it cannot be made anew.
  void FindSent() {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const Instruction& instruction = entry_.instructions[id];
      bool is_sent = !GivesTheSameAgain(step_.module, instruction);
      if (instruction.opcode == Opcode::kParameter) {
        const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
        const ParameterRole role = number < step_.parameters.size() ? step_.parameters[number].role
                                                                    : ParameterRole::kConstant;
        is_sent = (role == ParameterRole::kState || role == ParameterRole::kConstant) &&
                  instruction.shape().num_elements() > kMaxSharedElements;
      }
      for (const Value operand : instruction.operands) {
        is_sent = is_sent || is_sent_[operand.instruction];
      }
      is_sent_.push_back(is_sent);
    }
  }

  int64_t BytesSent(Value value) const {
    if (!is_sent_[value.instruction]) return 0;
    return entry_.shape(value).num_bytes() * (has_gradient_[value.instruction] ? 2 : 1);
  }

  // Calls `visit` with every forward operation that reads the value.
  template <typename Visit>
  void VisitForwardReaders(Value value, Visit visit) const {
    for (const Use& use : uses_.uses(value)) {
      if (is_forward_[use.user]) visit(use.user);
    }
  }

  void FindBytesBehindGroups() {
    std::vector<InstructionId> order;
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (is_forward_[id]) order.push_back(id);
    }
    std::ranges::stable_sort(order, {}, [&](InstructionId id) { return group_[id]; });
    std::vector<int> position(entry_.instructions.size());
    for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int>(i);
    std::vector<int64_t> change(order.size() + 1);  // of the bytes that cross behind each position
    for (const InstructionId id : order) {
      for (int32_t i = 0; i < static_cast<int32_t>(entry_.instructions[id].results.size()); ++i) {
        int last = position[id];
        VisitForwardReaders({id, i},
                            [&](InstructionId reader) { last = std::max(last, position[reader]); });
        change[position[id]] += BytesSent({id, i});
        change[last] -= BytesSent({id, i});
      }
    }
    for (OperationGroup& group : groups_) {
      group.bytes_behind = std::numeric_limits<int64_t>::max();
    }
    int64_t bytes = 0;
    bool is_behind_heavy = false;
    for (size_t i = 0; i < order.size(); ++i) {
      bytes += change[i];
      if (i == 0 || group_[order[i]] != group_[order[i - 1]]) is_behind_heavy = false;
      is_behind_heavy = is_behind_heavy || is_heavy_[order[i]];
      int64_t& least = groups_[group_[order[i]]].bytes_behind;
      if (is_behind_heavy) least = std::min(least, bytes);
    }
  }

  // The layers of all but heavy operations.
  void PlaceOthers() {
    LayerCutProblem problem{.num_layers = layers_.count};
    std::vector<int> variables(entry_.instructions.size(), -1);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!is_forward_[id] || is_heavy_[id]) continue;
      variables[id] = problem.num_variables++;
      problem.bounds.emplace_back(0, layers_.count - 1);
    }
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!is_forward_[id]) continue;
      for (int32_t i = 0; i < static_cast<int32_t>(entry_.instructions[id].results.size()); ++i) {
        AddValue({id, i}, variables, problem);
      }
    }
    const std::vector<int> found = SolveLayerCut(problem);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (variables[id] >= 0) layers_.layer[id] = found[variables[id]];
    }
  }

  // A layer may only rise from a value to its readers.
  void AddValue(Value value, const std::vector<int>& variables, LayerCutProblem& problem) const {
    const InstructionId id = value.instruction;
    LayerCutProblem::Shared shared{.bytes = std::max<int64_t>(1, BytesSent(value))};
    std::set<int> holders;
    const auto hold = [&](InstructionId holder) {
      if (variables[holder] >= 0) {
        holders.insert(variables[holder]);
      } else {
        const int layer = layers_.layer[holder];
        shared.lowest = shared.lowest < 0 ? layer : std::min(shared.lowest, layer);
        shared.highest = std::max(shared.highest, layer);
      }
    };
    hold(id);
    VisitForwardReaders(value, [&](InstructionId reader) {
      hold(reader);
      if (variables[id] >= 0 && variables[reader] >= 0) {
        problem.orders.push_back({.before = variables[reader], .after = variables[id]});
      } else if (variables[id] >= 0) {
        int& highest = problem.bounds[variables[id]].second;
        highest = std::min(highest, layers_.layer[reader]);
      } else if (variables[reader] >= 0) {
        int& lowest = problem.bounds[variables[reader]].first;
        lowest = std::max(lowest, layers_.layer[id]);
      }
    });
    shared.variables.assign(holders.begin(), holders.end());
    if (!shared.variables.empty()) problem.shared.push_back(std::move(shared));
  }

  const Step& step_;
  const Computation& entry_;
  const UseTable uses_;
  const int num_layers_;
  // By instruction:
  const std::vector<bool> is_forward_;
  std::vector<bool> has_gradient_;
  const std::vector<int> regions_;
  std::vector<double> load_;
  std::vector<bool> is_heavy_, is_sent_;
  std::vector<int> group_;  // of forward operations; 0 of others
  std::vector<OperationGroup> groups_;
  Layers layers_;
};

}  // namespace

Layers PartIntoLayers(const Step& step, const std::vector<Phase>& phases, int num_layers) {
  return LayerParter(step, phases, num_layers).Run();
}

}  // namespace minka
