#include "minka/lowering/planned_stage.h"

#include <map>
#include <queue>
#include <utility>

#include "minka/base/check.h"
#include "minka/plan/combine.h"

namespace minka {
namespace {

struct NodePlace {
  int part = 0, number = 0;
  auto operator<=>(const NodePlace&) const = default;
};

std::vector<int> ReadyOrder(const std::vector<std::vector<int>>& readers, std::vector<int> missing,
                            const std::vector<NodePlace>& place) {
  struct Ready {
    NodePlace place;
    int node;
    auto operator<=>(const Ready&) const = default;
  };
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (int node = 0; node < static_cast<int>(missing.size()); ++node) {
    if (missing[node] == 0) ready.push({place[node], node});
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int node = ready.top().node;
    ready.pop();
    order.push_back(node);
    for (const int reader : readers[node]) {
      if (--missing[reader] == 0) ready.push({place[reader], reader});
    }
  }
  MINKA_CHECK(order.size() == missing.size(), "combined collectives wait for each other");
  return order;
}

}  // namespace

PlannedStage::PlannedStage(const Module& module, const StagePlan& plan)
    : module_(module),
      entry_(module.entry_computation()),
      plan_(plan),
      loop_(FindMicroLoop(module)),
      lists_(LegalCombineGroups(module, plan)) {
  for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
    rules_.push_back(RuleFor(module, entry_, id));
  }
}

Sharding PlannedStage::ShardingOf(const ValueVersion& made) const {
  if (made.version > 0) return plan_.reshards[made.version - 1].to;
  const InstructionId id = made.value.instruction;
  return ResultSharding(rules_[id], plan_.ops[id].strategy, made.value.result);
}

Shape PlannedStage::LocalShapeOf(const ValueVersion& made) const {
  return LocalShape(entry_.shape(made.value), ShardingOf(made), mesh());
}

ValueVersion PlannedStage::SourceOf(int reshard) const {
  return {plan_.reshards[reshard].value, plan_.reshards[reshard].from_version};
}

ValueVersion PlannedStage::Operand(InstructionId id, int operand) const {
  return {instruction(id).operands[operand], plan_.ops[id].operand_versions[operand]};
}

ValueVersion PlannedStage::Result(int result) const {
  return {entry_.results[result], plan_.result_versions[result]};
}

void PlannedStage::KeepApart(const std::vector<int>& part_of_reshard) {
  std::vector<std::vector<int>> apart;
  for (const std::vector<int>& list : lists_) {
    std::map<int, std::vector<int>> by_part;
    for (const int reshard : list) by_part[part_of_reshard[reshard]].push_back(reshard);
    for (auto& [part, reshards] : by_part) apart.push_back(std::move(reshards));
  }
  lists_ = std::move(apart);
}

bool PlannedStage::IsCombinedGather(int node) const {
  if (list(node).size() < 2) return false;
  const Reshard& first = plan_.reshards[list(node).front()];
  return first.steps[*OnlyCollective(first)].kind == ReshardKind::kAllGather;
}

std::vector<int> PlannedStage::Order(const std::vector<int>& parts) const {
  const int num_instructions = entry_.num_instructions();
  std::vector<int> node_of_reshard(plan_.reshards.size(), -1);
  std::vector<NodePlace> place(num_nodes());
  for (int node = 0; node < num_nodes(); ++node) {
    if (IsInstruction(node)) {
      place[node] = {parts[node], 2 * node + 1};
      continue;
    }
    place[node] = {parts[node], 2 * plan_.reshards[list(node).front()].before};
    for (const int reshard : list(node)) node_of_reshard[reshard] = node;
  }
  std::vector<std::vector<int>> readers(num_nodes()), sources(num_nodes());
  std::vector<int> missing(num_nodes());
  const auto add = [&](const ValueVersion& read, int reader) {
    const int source =
        read.version == 0 ? read.value.instruction : node_of_reshard[read.version - 1];
    readers[source].push_back(reader);
    sources[reader].push_back(source);
    ++missing[reader];
  };
  for (InstructionId id = 0; id < num_instructions; ++id) {
    for (int i = 0; i < static_cast<int>(instruction(id).operands.size()); ++i) {
      add(Operand(id, i), id);
    }
  }
  for (int i = 0; i < static_cast<int>(plan_.reshards.size()); ++i) {
    if (node_of_reshard[i] >= 0) add(SourceOf(i), node_of_reshard[i]);
  }
  std::vector<int> early;
  for (int node = num_instructions; node < num_nodes(); ++node) {
    if (IsCombinedGather(node)) early.push_back(node);
  }
  for (size_t i = 0; i < early.size(); ++i) {
    for (const int source : sources[early[i]]) {
      if (place[source].number <= place[early[i]].number) continue;
      place[source].number = place[early[i]].number;
      early.push_back(source);
    }
  }
  return ReadyOrder(readers, std::move(missing), place);
}

}  // namespace minka
