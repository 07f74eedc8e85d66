#include "minka/plan/combine.h"

#include <algorithm>
#include <map>
#include <utility>

namespace minka {
namespace {

// The stage's data flow: nodes are instructions, then reshards.
struct Graph {
  std::vector<std::vector<int>> successors, predecessors;

  void AddEdge(int from, int to) {
    successors[from].push_back(to);
    predecessors[to].push_back(from);
  }
};

int SourceNode(const Computation& computation, Value value, int version) {
  return version == 0 ? value.instruction : computation.num_instructions() + version - 1;
}

Graph MakeGraph(const Computation& computation, const StagePlan& stage) {
  Graph graph;
  const int num_instructions = computation.num_instructions();
  const int num_nodes = num_instructions + static_cast<int>(stage.reshards.size());
  graph.successors.resize(num_nodes);
  graph.predecessors.resize(num_nodes);
  for (int id = 0; id < num_instructions; ++id) {
    const std::vector<Value>& operands = computation.instructions[id].operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      graph.AddEdge(SourceNode(computation, operands[i], stage.ops[id].operand_versions[i]), id);
    }
  }
  for (size_t i = 0; i < stage.reshards.size(); ++i) {
    const Reshard& reshard = stage.reshards[i];
    graph.AddEdge(SourceNode(computation, reshard.value, reshard.from_version),
                  num_instructions + static_cast<int>(i));
  }
  return graph;
}

// One growing list with what lies below and above its members.
struct Group {
  std::vector<int> members;  // graph nodes
  std::vector<bool> descendants, ancestors;
};

class Combiner {
 public:
  explicit Combiner(Graph graph)
      : graph_(std::move(graph)), group_of_(graph_.successors.size(), -1) {}

  // Splits the nodes into lists none of whose members depends on another, and contracts them.
  std::vector<std::vector<int>> Split(const std::vector<int>& nodes) {
    std::vector<Group> groups;
    for (const int node : nodes) {
      auto fits = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
        return !group.descendants[node] && !group.ancestors[node];
      });
      if (fits == groups.end()) {
        groups.push_back(
            {{}, std::vector<bool>(group_of_.size()), std::vector<bool>(group_of_.size())});
        fits = std::prev(groups.end());
        lists_.emplace_back();
        first_list_ = groups.size() == 1 ? static_cast<int>(lists_.size()) - 1 : first_list_;
      }
      Join(*fits, node, first_list_ + static_cast<int>(fits - groups.begin()), groups);
    }
    return {lists_.begin() + first_list_, lists_.end()};
  }

 private:
  // After a join, lists of the same split see the new contraction, because it adds paths.
  void Join(Group& group, int node, int list, std::vector<Group>& groups) {
    group.members.push_back(node);
    lists_[list].push_back(node);
    group_of_[node] = list;
    for (Group& other : groups) {
      const bool same = &other == &group;
      if (same || TouchesList(other.descendants, list)) {
        if (!same) MarkList(list, other.descendants);
        Mark(graph_.successors, lists_[list], other.descendants);
      }
      if (same || TouchesList(other.ancestors, list)) {
        if (!same) MarkList(list, other.ancestors);
        Mark(graph_.predecessors, lists_[list], other.ancestors);
      }
    }
  }

  void MarkList(int list, std::vector<bool>& marked) const {
    for (const int node : lists_[list]) marked[node] = true;
  }

  bool TouchesList(const std::vector<bool>& marked, int list) const {
    return std::any_of(lists_[list].begin(), lists_[list].end(),
                       [&](int node) { return marked[node]; });
  }

  // Marks everything reachable from the nodes (not themselves) where lists count as one node.
  void Mark(const std::vector<std::vector<int>>& edges, const std::vector<int>& from,
            std::vector<bool>& marked) {
    std::vector<int> pending = from;
    while (!pending.empty()) {
      const int node = pending.back();
      pending.pop_back();
      for (const int next : edges[node]) {
        if (marked[next]) continue;
        marked[next] = true;
        pending.push_back(next);
        if (group_of_[next] < 0) continue;
        for (const int peer : lists_[group_of_[next]]) {
          if (marked[peer]) continue;
          marked[peer] = true;
          pending.push_back(peer);
        }
      }
    }
  }

  Graph graph_;
  std::vector<int> group_of_;  // by node: index into lists_, or -1
  std::vector<std::vector<int>> lists_;
  int first_list_ = 0;
};

bool Combinable(const Reshard& reshard) {
  const std::optional<int> step = OnlyCollective(reshard);
  return reshard.combine_group >= 0 && step && reshard.steps[*step].kind != ReshardKind::kAllToAll;
}

}  // namespace

std::optional<int> OnlyCollective(const Reshard& reshard) {
  std::optional<int> found;
  for (size_t i = 0; i < reshard.steps.size(); ++i) {
    if (!IsCollective(reshard.steps[i].kind)) continue;
    if (found) return std::nullopt;
    found = static_cast<int>(i);
  }
  return found;
}

InstructionId TimeOfCollective(const StagePlan& stage, std::span<const int> members) {
  InstructionId first = stage.reshards[members[0]].before, ready = 0;
  for (const int member : members) {
    const Reshard& reshard = stage.reshards[member];
    first = std::min(first, reshard.before);
    ready = std::max(ready, reshard.value.instruction + 1);
  }
  return std::max(first, ready);
}

std::vector<bool> LiveReshards(const Module& module, const StagePlan& stage) {
  std::vector<bool> live(stage.reshards.size());
  const auto read = [&](int version) {
    if (version > 0) live[version - 1] = true;
  };
  for (const OpPlan& op : stage.ops) std::ranges::for_each(op.operand_versions, read);
  for (size_t i = 0; i < module.entry_computation().results.size(); ++i) {
    read(stage.result_versions[i]);
  }
  for (size_t i = stage.reshards.size(); i-- > 0;) {
    if (live[i]) read(stage.reshards[i].from_version);
  }
  return live;
}

std::vector<std::vector<int>> LegalCombineGroups(const Module& module, const StagePlan& stage) {
  const Computation& computation = module.entry_computation();
  const int num_instructions = computation.num_instructions();
  const std::vector<bool> live = LiveReshards(module, stage);
  std::vector<std::vector<int>> lists;
  std::map<int, std::vector<int>> groups;
  for (size_t i = 0; i < stage.reshards.size(); ++i) {
    if (!live[i]) continue;
    const Reshard& reshard = stage.reshards[i];
    if (Combinable(reshard)) {
      groups[reshard.combine_group].push_back(num_instructions + static_cast<int>(i));
    } else {
      lists.push_back({static_cast<int>(i)});
    }
  }
  if (!groups.empty()) {
    Combiner combiner(MakeGraph(computation, stage));
    for (const auto& [group, nodes] : groups) {
      for (std::vector<int>& list : combiner.Split(nodes)) {
        for (int& node : list) node -= num_instructions;
        lists.push_back(std::move(list));
      }
    }
  }
  std::ranges::sort(lists);
  return lists;
}

}  // namespace minka
