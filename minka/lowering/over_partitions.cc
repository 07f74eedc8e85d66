#include "minka/lowering/over_partitions.h"

#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "minka/ir/rewriter.h"
#include "minka/sharding/reshard.h"

namespace minka {
namespace {

std::vector<int64_t> AllDevices(int64_t num_devices) {
  std::vector<int64_t> ids(num_devices);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

class PartitionWriter {
 public:
  // Channels are counted on.
  PartitionWriter(const Computation& source, int64_t num_devices, bool sums_apart, int64_t& channel)
      : source_(source),
        rewriter_(source),
        num_devices_(num_devices),
        sums_apart_(sums_apart),
        channel_(channel) {}

  Computation Write() && {
    for (InstructionId id = 0; id < source_.num_instructions(); ++id) {
      Instruction instruction = rewriter_.Translated(id);
      CountPartitions(instruction);
      const bool is_combined =
          instruction.opcode == Opcode::kAllReduce && instruction.operands.size() > 1;
      if (!is_combined) {
        rewriter_.Map(id, rewriter_.Append(std::move(instruction)));
      } else if (sums_apart_) {
        rewriter_.Map(id, WriteOneByOne(instruction));
      } else {
        rewriter_.Map(id, WriteAsOneArray(std::move(instruction)));
      }
    }
    return std::move(rewriter_).Finish();
  }

 private:
  void CountPartitions(Instruction& instruction) {
    if (instruction.opcode == Opcode::kReplicaId) instruction.opcode = Opcode::kPartitionId;
    if (auto* permute = std::get_if<PermuteAttributes>(&instruction.attributes)) {
      permute->channel_id = ++channel_;
    }
    auto* collective = std::get_if<CollectiveAttributes>(&instruction.attributes);
    if (collective == nullptr) return;
    if (collective->groups.empty()) collective->groups = {AllDevices(num_devices_)};
    collective->channel_id = ++channel_;
    // Of an all-to-all the channel alone makes the groups partition ids.
    collective->use_global_device_ids = instruction.opcode != Opcode::kAllToAll;
  }

  std::vector<Value> WriteOneByOne(const Instruction& all_reduce) {
    std::vector<Value> results;
    for (size_t i = 0; i < all_reduce.operands.size(); ++i) {
      Instruction one = all_reduce;
      if (i > 0) {
        one.name = rewriter_.NewName(all_reduce.name);
        std::get<CollectiveAttributes>(one.attributes).channel_id = ++channel_;
      }
      one.operands = {all_reduce.operands[i]};
      one.results = {all_reduce.results[i]};
      results.push_back(rewriter_.AppendOne(std::move(one)));
    }
    return results;
  }

  // Operands of an all-reduce have one type.
  std::vector<Value> WriteAsOneArray(Instruction all_reduce) {
    const std::vector<Shape> shapes = all_reduce.results;
    const ElementType type = shapes[0].type;
    std::vector<Value> flat;
    int64_t size = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int64_t elements = shapes[i].num_elements();
      flat.push_back(
          Derived(all_reduce, Opcode::kReshape, {all_reduce.operands[i]}, {type, {elements}}, {}));
      size += elements;
    }
    const Shape whole{type, {size}};
    Instruction reduce = all_reduce;
    reduce.operands = {Derived(all_reduce, Opcode::kConcatenate, std::move(flat), whole,
                               DimensionsAttributes{{0}})};
    reduce.results = {whole};
    const Value sum = rewriter_.AppendOne(std::move(reduce));
    std::vector<Value> results;
    int64_t start = 0;
    for (const Shape& shape : shapes) {
      const int64_t limit = start + shape.num_elements();
      const Value part =
          Derived(all_reduce, Opcode::kSlice, {sum}, {type, {limit - start}},
                  SliceAttributes{.starts = {start}, .limits = {limit}, .strides = {1}});
      results.push_back(Derived(all_reduce, Opcode::kReshape, {part}, shape, {}));
      start = limit;
    }
    return results;
  }

  Value Derived(const Instruction& of, Opcode opcode, std::vector<Value> operands,
                const Shape& shape, Attributes attributes) {
    return rewriter_.AppendOne({.opcode = opcode,
                                .name = rewriter_.NewName(of.name),
                                .operands = std::move(operands),
                                .results = {shape},
                                .attributes = std::move(attributes),
                                .op_name = of.op_name});
  }

  const Computation& source_;
  Rewriter rewriter_;
  int64_t num_devices_;
  bool sums_apart_;
  int64_t& channel_;
};

}  // namespace

Module OverPartitions(const Module& local, int64_t num_devices, Platform platform) {
  Module out = local;
  int64_t channel = 0;
  for (size_t i = 0; i < out.computations.size(); ++i) {
    out.computations[i] =
        PartitionWriter(local.computations[i], num_devices, SumsOperandsApart(platform), channel)
            .Write();
  }
  out.aliases.clear();
  return out;
}

}  // namespace minka
