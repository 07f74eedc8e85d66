// What can be chosen: the strategies of every operation, with the shardings they ask for and give,
// interned.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/planner/intra_op/intra_op.h"
#include "minka/sharding/op_rule.h"
#include "minka/sharding/sharding.h"

namespace minka {

using ShardingId = int32_t;

// Equal shardings get equal ids.
class ShardingTable {
 public:
  ShardingId Intern(const Sharding& sharding);
  const Sharding& operator[](ShardingId id) const { return shardings_[id]; }

 private:
  std::vector<Sharding> shardings_;
  std::map<Sharding, ShardingId> ids_;
};

// One sharding per choice of a node; what an edge sees of a node.
using Port = std::vector<ShardingId>;
using PortId = int32_t;

class PortTable {
 public:
  PortId Intern(const Port& port);
  const Port& operator[](PortId id) const { return ports_[id]; }

 private:
  std::vector<Port> ports_;
  std::map<Port, PortId> ids_;
};

// The choices of one operation.
struct OpChoices {
  OpRule rule;
  std::vector<Strategy> strategies;
  std::vector<PortId> operands;  // by operand
  std::vector<PortId> results;   // by result
};

// What was not tried of all distinct operations of one opcode.
struct CutChoices {
  int64_t num_cut = 0;
  int64_t num_choices = 0;  // of the operations of which some were cut
};

struct ChoiceTables {
  ShardingTable shardings;
  PortTable ports;
  std::vector<OpChoices> op_choices;
  std::vector<int32_t> of_instruction;      // instruction -> op_choices
  std::map<Value, Sharding> pinned_values;  // of parameters: none, they have fewer choices
  std::map<std::string, CutChoices> cut;    // by opcode
  std::vector<std::string> notes;
};

// Enumerates, honouring method and pins, and cuts to as many choices per operation as the options
// say; what a mesh of two axes could do that is made of this one by joining neighbours stays.
absl::StatusOr<ChoiceTables> EnumerateChoices(const Step& step, const Mesh& mesh,
                                              bool forbid_replicated_dots,
                                              const IntraOpOptions& options);

}  // namespace minka
