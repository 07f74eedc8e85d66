#include "minka/analysis/xla_cpu_memory.h"

#include <algorithm>
#include <map>
#include <vector>

#include "minka/analysis/heap_packing.h"
#include "minka/analysis/xla_cpu_forms.h"
#include "minka/analysis/xla_cpu_loops.h"
#include "minka/analysis/xla_cpu_order.h"

namespace minka {
namespace {

// How often the compiler repeats what is cheap depends on how much code that makes. What is
// repeated is not kept, but what it reads is: the most of the memories that are plausible counts.
constexpr FusionRules kRulesTried[] = {
    {.max_copies = 4, .repeats_for_some = false}, {.max_copies = 6, .repeats_for_some = false},
    {.max_copies = 8, .repeats_for_some = false}, {.max_copies = 16, .repeats_for_some = false},
    {.max_copies = 4, .repeats_for_some = true},  {.max_copies = 6, .repeats_for_some = true},
    {.max_copies = 8, .repeats_for_some = true},  {.max_copies = 16, .repeats_for_some = true}};

// What the imitation leaves out; measured, see docs/design/0014.
constexpr double kTempMargin = 0.1;
constexpr int64_t kSmallBytes = 4096;  // tables of pointers and scalars, at most a tenth of all

using BufferId = int;

struct Buffer {
  int begin = 0, end = 0;
  int first_read = 0;
  int64_t bytes = 0;
  bool is_temp = true;
};

// A computation with what a walk over it needs, made once.
struct Body {
  CpuOrder order;
  std::vector<std::vector<InstructionId>> reads;  // by unit: the roots that it reads
};

class Walk {
 public:
  Walk(const Module& module, FusionRules rules)
      : module_(module), rules_(rules), bodies_(module.computations.size()) {}

  XlaCpuMemory Run() && {
    XlaCpuMemory memory;
    const Computation& entry = module_.entry_computation();
    std::vector<BufferId> arguments;
    for (const InstructionId parameter : entry.parameters) {
      const int64_t bytes = entry.instructions[parameter].shape().num_bytes();
      memory.argument_bytes += bytes;
      arguments.push_back(Add(bytes, /*is_temp=*/false));
    }
    const std::vector<BufferId> results = Flatten(module_.entry, arguments);
    std::vector<int> alias(results.size(), -1);
    for (const Alias& a : module_.aliases) alias[a.result] = a.parameter;
    ++now_;
    memory.output_bytes = static_cast<int64_t>(8 * results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      Touch(results[i]);
      const Value value = entry.results[i];
      if (alias[i] < 0) {
        memory.output_bytes += entry.shape(value).num_bytes();
        if (results[i] >= 0) buffers_[results[i]].is_temp = false;
      } else if (results[i] >= 0) {
        // Who still reads the parameter then reads a copy.
        buffers_[results[i]].is_temp = false;
        if (!MayReplace(module_.entry, value, entry.parameters[alias[i]])) {
          const Buffer parameter = buffers_[arguments[alias[i]]];
          buffers_[Add(parameter.bytes)].begin = parameter.first_read;
          buffers_.back().end = parameter.end;
        }
      }
    }
    Share();
    std::vector<HeapBuffer> heap;
    for (const Buffer& buffer : buffers_) {
      if (buffer.is_temp && buffer.bytes > 0) {
        heap.push_back({buffer.begin, buffer.end, buffer.bytes});
      }
    }
    memory.temp_bytes = PackedHeapBytes(heap);
    return memory;
  }

 private:
  BufferId Add(int64_t bytes, bool is_temp = true) {
    buffers_.push_back({.begin = now_, .end = now_, .bytes = bytes, .is_temp = is_temp});
    return static_cast<BufferId>(buffers_.size()) - 1;
  }
  void Touch(BufferId buffer) {
    if (buffer < 0) return;
    buffers_[buffer].end = std::max(buffers_[buffer].end, now_);
    if (buffers_[buffer].first_read == 0) buffers_[buffer].first_read = now_;
  }

  const Body& BodyOf(ComputationId id) {
    Body& body = bodies_[id];
    if (body.order.units.empty()) {
      body.order = OrderForCpu(module_.computations[id], id == module_.entry, rules_);
      for (const CpuUnit& unit : body.order.units) {
        std::vector<InstructionId>& reads = body.reads.emplace_back();
        for (const Value read : unit.reads) reads.push_back(read.instruction);
      }
    }
    return body;
  }

  // The buffers of the results.
  std::vector<BufferId> Flatten(ComputationId id, const std::vector<BufferId>& arguments) {
    const Computation& computation = module_.computations[id];
    const Body& body = BodyOf(id);
    std::vector<std::vector<BufferId>> buffers(computation.num_instructions());
    for (size_t i = 0; i < computation.parameters.size(); ++i) {
      buffers[computation.parameters[i]] = {arguments[i]};
    }
    for (const int u : body.order.order) {
      const CpuUnit& unit = body.order.units[u];
      const Instruction& root = computation.instructions[unit.root];
      if (root.opcode == Opcode::kParameter) continue;
      ++now_;
      std::vector<BufferId> reads;
      for (const Value read : unit.reads) {
        reads.push_back(buffers[read.instruction][read.result]);
        Touch(reads.back());
      }
      std::vector<BufferId>& results = buffers[unit.root];
      if (root.opcode == Opcode::kWhile) {
        results = Loop(id, u, buffers);
      } else if (root.opcode == Opcode::kConditional) {
        results = Branches(computation, unit.root, buffers);
      } else if (root.opcode == Opcode::kCall) {
        std::vector<BufferId> inputs;
        for (const Value v : root.operands) inputs.push_back(buffers[v.instruction][v.result]);
        results = Flatten(root.called[0], inputs);
      } else if (unit.kind == CpuUnit::Kind::kLeaf) {
        results = {-1};
      } else if (unit.kind == CpuUnit::Kind::kView) {
        results = reads;
      } else {
        for (const Shape& shape : root.results) results.push_back(Add(shape.num_bytes()));
        for (size_t i = 0; i < reads.size(); ++i) {
          const bool same = reads[i] >= 0 && unit.elementwise[i] && root.results.size() == 1 &&
                            buffers_[reads[i]].bytes == buffers_[results[0]].bytes;
          if (same) shares_.push_back({now_, reads[i], results[0]});
        }
      }
    }
    std::vector<BufferId> results;
    for (const Value v : computation.results) results.push_back(buffers[v.instruction][v.result]);
    return results;
  }

  std::vector<BufferId> Loop(ComputationId id, int u,
                             const std::vector<std::vector<BufferId>>& buffers) {
    const Computation& computation = module_.computations[id];
    const Instruction& loop = computation.instructions[bodies_[id].order.units[u].root];
    const Computation& body = module_.computations[loop.called[0]];
    const UseTable uses(computation);
    std::vector<BufferId> state;
    for (size_t i = 0; i < loop.operands.size(); ++i) {
      const Value initial = loop.operands[i];
      const BufferId buffer = buffers[initial.instruction][initial.result];
      const bool is_invariant = body.results[i] == Value{body.parameters[i], 0};
      const bool is_own = buffer >= 0 && buffers_[buffer].is_temp &&
                          uses.uses(initial).size() == 1 && !uses.is_result(initial);
      state.push_back(is_own || (is_invariant && buffer >= 0) ? buffer
                                                              : Add(loop.results[i].num_bytes()));
    }
    ++now_;
    for (const BufferId buffer : state) Touch(buffer);
    Flatten(loop.called[1], state);
    const std::vector<BufferId> next = Flatten(loop.called[0], state);
    ++now_;
    for (size_t i = 0; i < state.size(); ++i) {
      Touch(state[i]);
      if (next[i] == state[i] || next[i] < 0) continue;
      Touch(next[i]);
      if (MayReplace(loop.called[0], body.results[i], body.parameters[i])) Join(next[i], state[i]);
    }
    return state;
  }

  std::vector<BufferId> Branches(const Computation& computation, InstructionId id,
                                 const std::vector<std::vector<BufferId>>& buffers) {
    const Instruction& root = computation.instructions[id];
    std::vector<BufferId> results;
    for (const Shape& shape : root.results) results.push_back(Add(shape.num_bytes()));
    size_t operand = 1;
    for (const ComputationId branch : root.called) {
      std::vector<BufferId> inputs;
      for (size_t i = 0; i < module_.computations[branch].parameters.size(); ++i) {
        const Value v = root.operands[operand++];
        inputs.push_back(buffers[v.instruction][v.result]);
      }
      const std::vector<BufferId> made = Flatten(branch, inputs);
      ++now_;
      for (size_t i = 0; i < made.size(); ++i) {
        if (made[i] >= 0 && buffers_[made[i]].is_temp &&
            buffers_[made[i]].begin > buffers_[results[i]].begin) {
          Join(made[i], results[i]);
        }
        Touch(results[i]);
      }
    }
    for (const Value v : root.operands) Touch(buffers[v.instruction][v.result]);
    return results;
  }

  // May `value` be written over parameter `parameter`: is all that reads the parameter done before,
  // whatever the order, or reads it element by element while it is written?
  bool MayReplace(ComputationId id, Value value, InstructionId parameter) {
    const Body& body = BodyOf(id);
    const CpuOrder& order = body.order;
    if (value.instruction == parameter) return true;
    int producer = order.unit_of[value.instruction];
    while (order.units[producer].kind == CpuUnit::Kind::kView) {
      const CpuUnit& view = order.units[producer];
      const bool is_barrier = view.reads.size() > 1;
      producer = order.unit_of[view.reads[is_barrier ? value.result : 0].instruction];
      value = view.reads[is_barrier ? value.result : 0];
    }
    std::vector<bool> above(order.units.size());
    above[producer] = true;
    for (int u = producer; u >= 0; --u) {
      if (!above[u]) continue;
      for (const InstructionId read : body.reads[u]) above[order.unit_of[read]] = true;
    }
    // What holds the parameter: itself and views of it.
    std::vector<bool> holds(order.units.size());
    holds[order.unit_of[parameter]] = true;
    for (const int u : order.order) {
      const CpuUnit& unit = order.units[u];
      for (size_t i = 0; i < unit.reads.size(); ++i) {
        if (!holds[order.unit_of[unit.reads[i].instruction]]) continue;
        if (unit.kind == CpuUnit::Kind::kView && unit.reads.size() == 1) holds[u] = true;
        if (u == producer ? !unit.elementwise[i] : !above[u]) return false;
      }
    }
    return true;
  }

  // One buffer for both from now on; the first keeps its number in `shared_`.
  void Join(BufferId from, BufferId into) {
    Buffer& a = buffers_[from];
    Buffer& b = buffers_[into];
    if (!a.is_temp || !b.is_temp) {
      a.is_temp = false;
      return;
    }
    b.begin = std::min(a.begin, b.begin);
    b.end = std::max(a.end, b.end);
    a.bytes = 0;
    joined_[from] = into;
  }
  BufferId Now(BufferId buffer) const {
    for (auto at = joined_.find(buffer); at != joined_.end(); at = joined_.find(buffer)) {
      buffer = at->second;
    }
    return buffer;
  }

  // What dies where something as large is made of it element by element is written over.
  void Share() {
    for (const auto& [when, read, made] : shares_) {
      const BufferId from = Now(read), into = Now(made);
      if (from == into || !buffers_[from].is_temp || !buffers_[into].is_temp) continue;
      if (buffers_[from].end == when && buffers_[into].begin == when) Join(into, from);
    }
  }

  struct Sharing {
    int when = 0;
    BufferId read = -1, made = -1;
  };

  const Module& module_;
  const FusionRules rules_;
  std::vector<Body> bodies_;  // by computation
  std::vector<Buffer> buffers_;
  std::vector<Sharing> shares_;
  std::map<BufferId, BufferId> joined_;
  int now_ = 0;
};

}  // namespace

int64_t XlaCpuMemory::upper_bound_bytes() const {
  const auto margin = static_cast<int64_t>(kTempMargin * static_cast<double>(temp_bytes));
  return total_bytes() + margin + std::min(kSmallBytes, total_bytes() / 10);
}

XlaCpuMemory XlaCpuMemoryOf(const Module& module) {
  const Module forms = MoveLoopInvariants(CpuForms(module));
  XlaCpuMemory largest;
  for (const FusionRules rules : kRulesTried) {
    const XlaCpuMemory memory = Walk(forms, rules).Run();
    if (memory.temp_bytes >= largest.temp_bytes) largest = memory;
  }
  return largest;
}

}  // namespace minka
