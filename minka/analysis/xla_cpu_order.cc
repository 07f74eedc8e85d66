#include "minka/analysis/xla_cpu_order.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>

namespace minka {
namespace {

bool IsElementwiseOn(const Instruction& instruction, int operand) {
  // The update of a slice in place, see GetInPlaceInputOutputPairs of HloDataflowAnalysis.
  if (instruction.opcode == Opcode::kDynamicUpdateSlice || instruction.opcode == Opcode::kScatter) {
    return operand == 0;
  }
  return IsElementwise(instruction.opcode) && instruction.opcode != Opcode::kCopy;
}

class UnitMaker {
 public:
  UnitMaker(const Computation& computation, FusionRules rules)
      : computation_(computation),
        uses_(computation),
        fusions_(PartitionIntoFusions(computation, rules)) {}

  CpuOrder Make() && {
    CpuOrder out;
    out.unit_of.assign(computation_.num_instructions(), -1);
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      if (!IsRoot(id)) continue;
      out.unit_of[id] = static_cast<int>(out.units.size());
      out.units.push_back(UnitOf(id));
    }
    return out;
  }

 private:
  const Instruction& instruction(InstructionId id) const { return computation_.instructions[id]; }

  bool IsRoot(InstructionId id) const {
    const Instruction& root = instruction(id);
    if (root.opcode == Opcode::kParameter || root.opcode == Opcode::kConstant) return true;
    if (root.results.size() != 1) return true;
    return fusions_.IsMaterialised(uses_, {id, 0}) || uses_.uses({id, 0}).empty();
  }

  CpuUnit UnitOf(InstructionId id) const {
    const Instruction& root = instruction(id);
    CpuUnit unit{.root = id};
    if (root.opcode == Opcode::kParameter || root.opcode == Opcode::kConstant) {
      unit.kind = CpuUnit::Kind::kLeaf;
      return unit;
    }
    const bool is_view = root.opcode == Opcode::kOptBarrier ||
                         (root.opcode == Opcode::kReshape && IsRoot(root.operands[0].instruction));
    if (is_view) unit.kind = CpuUnit::Kind::kView;
    std::map<Value, bool> reads;
    Walk(id, /*elementwise=*/true, reads);
    if (is_view) {
      unit.reads = root.operands;
      unit.elementwise.assign(unit.reads.size(), true);
      return unit;
    }
    for (const auto& [value, elementwise] : reads) {
      unit.reads.push_back(value);
      unit.elementwise.push_back(elementwise);
    }
    return unit;
  }

  // Is the operand written for others, and not read here?
  bool IsRepeatedBy(InstructionId reader, int operand) const {
    const InstructionId read = instruction(reader).operands[operand].instruction;
    return fusions_.also_repeated[read] &&
           TakesIn(instruction(reader), operand, instruction(read).opcode);
  }

  void Walk(InstructionId id, bool elementwise, std::map<Value, bool>& reads) const {
    std::map<InstructionId, bool> inside = {{id, elementwise}};
    while (!inside.empty()) {
      const auto [at, is_elementwise] = *inside.rbegin();
      inside.erase(std::prev(inside.end()));
      for (size_t i = 0; i < instruction(at).operands.size(); ++i) {
        const Value operand = instruction(at).operands[i];
        const bool here = is_elementwise && IsElementwiseOn(instruction(at), static_cast<int>(i));
        if (IsRoot(operand.instruction) && !IsRepeatedBy(at, static_cast<int>(i))) {
          const auto [read, added] = reads.try_emplace(operand, here);
          read->second = read->second && here;
        } else {
          const auto [next, added] = inside.try_emplace(operand.instruction, here);
          next->second = next->second && here;
        }
      }
    }
  }

  const Computation& computation_;
  const UseTable uses_;
  const FusionPartition fusions_;
};

// Depth first over units and, as XLA has them, over the elements of what has several results.
class DepthFirst {
 public:
  DepthFirst(const Computation& computation, CpuOrder& order, bool is_entry)
      : computation_(computation), order_(order), is_entry_(is_entry) {}

  void Run() {
    MakeNodes();
    WeighNodes();
    for (Node& node : nodes_) {
      std::ranges::sort(node.operands, [this](int a, int b) { return IsBefore(a, b); });
    }
    std::vector<int> roots;
    for (const Value result : computation_.results) roots.push_back(NodeOf(result));
    std::ranges::sort(roots, [this](int a, int b) { return IsBefore(a, b); });
    for (const int root : roots) Visit(root);
  }

 private:
  struct Node {
    int unit = -1;
    bool is_element = false;
    std::vector<int> operands;  // distinct
    int64_t num_users = 0;
    int64_t extra_users = 0, bytes = 0;  // with all above
    bool visited = false;
  };

  int NodeOf(Value value) const {
    return node_of_[order_.unit_of[value.instruction]][value.result];
  }

  void MakeNodes() {
    node_of_.resize(order_.units.size());
    std::vector<int> first(order_.units.size());
    for (size_t u = 0; u < order_.units.size(); ++u) {
      const Instruction& root = computation_.instructions[order_.units[u].root];
      first[u] = static_cast<int>(nodes_.size());
      nodes_.push_back({.unit = static_cast<int>(u)});
      std::set<int> operands;
      for (const Value read : order_.units[u].reads) operands.insert(NodeOf(read));
      nodes_.back().operands.assign(operands.begin(), operands.end());
      const bool is_tuple = root.results.size() > 1 || root.opcode == Opcode::kWhile;
      for (size_t i = 0; i < root.results.size(); ++i) {
        node_of_[u].push_back(first[u]);
        if (!is_tuple) continue;
        node_of_[u].back() = static_cast<int>(nodes_.size());
        nodes_.push_back({.unit = static_cast<int>(u), .is_element = true, .operands = {first[u]}});
      }
    }
    std::vector<bool> live(nodes_.size());
    std::set<int> results;
    for (const Value result : computation_.results) results.insert(NodeOf(result));
    for (const int result : results) {
      live[result] = true;
      ++nodes_[result].num_users;
    }
    for (int n = static_cast<int>(nodes_.size()) - 1; n >= 0; --n) {
      if (!live[n]) continue;
      for (const int operand : nodes_[n].operands) {
        live[operand] = true;
        ++nodes_[operand].num_users;
      }
    }
  }

  // HloComputation::MakeInstructionPostOrder: depth first, the first operand first. It bounds what
  // a node is weighed by: no more than all that comes before it. In which order a fusion reads is
  // not known, so operands are visited in the order in which they are made.
  std::vector<int> PostOrder() const {
    std::vector<int> order, path;
    enum class State : char { kNew, kBegun, kDone };
    std::vector<State> states(nodes_.size(), State::kNew);
    for (const Value result : std::views::reverse(computation_.results)) {
      path.push_back(NodeOf(result));
    }
    while (!path.empty()) {
      const int n = path.back();
      if (states[n] == State::kNew) {
        states[n] = State::kBegun;
        path.insert(path.end(), nodes_[n].operands.rbegin(), nodes_[n].operands.rend());
        continue;
      }
      path.pop_back();
      if (states[n] == State::kBegun) order.push_back(n);
      states[n] = State::kDone;
    }
    return order;
  }

  void WeighNodes() {
    int64_t all_bytes = 0;
    for (const int n : PostOrder()) {
      Node& node = nodes_[n];
      const CpuUnit& unit = order_.units[node.unit];
      if (unit.kind == CpuUnit::Kind::kLeaf) {
        const bool is_ignored =
            is_entry_ || computation_.instructions[unit.root].opcode == Opcode::kConstant;
        if (!is_ignored) node.extra_users = std::max<int64_t>(node.num_users - 1, 0);
        continue;
      }
      node.extra_users = std::max<int64_t>(node.num_users - 1, 0);
      if (unit.kind == CpuUnit::Kind::kRun && !node.is_element) {
        for (const Shape& shape : computation_.instructions[unit.root].results) {
          node.bytes += shape.num_bytes();
        }
      }
      all_bytes += node.bytes;
      for (const int operand : node.operands) {
        node.extra_users += nodes_[operand].extra_users;
        node.bytes += nodes_[operand].bytes;
      }
      node.bytes = std::min(node.bytes, all_bytes);
      node.extra_users = std::min<int64_t>(node.extra_users, static_cast<int64_t>(nodes_.size()));
    }
  }

  bool IsBefore(int a, int b) const {
    const Node& x = nodes_[a];
    const Node& y = nodes_[b];
    if (x.extra_users != y.extra_users) return x.extra_users > y.extra_users;
    if (x.bytes != y.bytes) return x.bytes > y.bytes;
    return a < b;
  }

  void Visit(int root) {
    std::vector<std::pair<int, size_t>> path = {{root, 0}};  // and the next operand
    while (!path.empty()) {
      auto& [n, next] = path.back();
      Node& node = nodes_[n];
      if (node.visited) {
        path.pop_back();
      } else if (next < node.operands.size()) {
        path.emplace_back(node.operands[next++], 0);
      } else {
        node.visited = true;
        if (!node.is_element) order_.order.push_back(node.unit);
        path.pop_back();
      }
    }
  }

  const Computation& computation_;
  CpuOrder& order_;
  const bool is_entry_;
  std::vector<Node> nodes_;
  std::vector<std::vector<int>> node_of_;  // by unit and result
};

}  // namespace

CpuOrder OrderForCpu(const Computation& computation, bool is_entry, FusionRules rules) {
  CpuOrder order = UnitMaker(computation, rules).Make();
  DepthFirst(computation, order, is_entry).Run();
  return order;
}

}  // namespace minka
