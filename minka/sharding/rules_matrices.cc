// Rules of linear algebra and Fourier transforms: what is done to each matrix, or each array of the
// last dimensions, is done as a whole, so only the batch of them is split.
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "minka/ir/hlo.pb.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

constexpr std::array<std::string_view, 3> kOperations = {"cholesky", "fft", "triangular-solve"};
constexpr std::array<std::string_view, 3> kCustomCalls = {
    "Eigh", "ProductOfElementaryHouseholderReflectors", "Qr"};

// Fields that nothing decodes.
hlo::HloInstructionProto FieldsOf(const Instruction& instruction) {
  hlo::HloInstructionProto fields;
  if (instruction.undecoded && !fields.ParseFromString(*instruction.undecoded)) fields.Clear();
  return fields;
}

// How many leading dimensions have the same size in all shapes.
int NumCommonDims(const std::vector<Shape>& shapes) {
  for (int dim = 0;; ++dim) {
    for (const Shape& shape : shapes) {
      if (dim >= shape.rank() || shape.dims[dim] != shapes[0].dims[dim]) return dim;
    }
  }
}

// The leading dimensions of all operands and results are one batch.
void MapBatch(RuleBuilder& rule, int num_dims) {
  for (int dim = 0; dim < num_dims; ++dim) {
    const int factor = rule.AddResultDim(dim);
    for (int i = 0; i < rule.num_operands(); ++i) rule.MapOperand(i, dim, factor);
    const auto num_results = static_cast<int>(rule.instruction().results.size());
    for (int i = 1; i < num_results; ++i) rule.MapResult(i, dim, factor);
  }
}

// The columns of b are solved for one by one, or its rows from the right.
void MapSolutions(RuleBuilder& rule, bool left_side) {
  if (rule.num_operands() != 2 || rule.operand(1) != rule.result()) return;
  const int dim = rule.result().rank() - (left_side ? 1 : 2);
  rule.MapOperand(1, dim, rule.AddResultDim(dim));
  rule.AddLinearGroup({1});
}

}  // namespace

bool IsBatched(const Instruction& instruction) {
  const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes);
  if (!opaque || instruction.operands.empty() || instruction.results.empty()) return false;
  // What a call says about layouts and nested tuples is about whole arrays.
  if (!opaque->operand_structure.empty() || !opaque->result_structure.empty()) return false;
  const auto is_one_of = [&](const auto& names) {
    return std::ranges::find(names, opaque->name) != names.end();
  };
  return instruction.opcode == Opcode::kCustomCall ? is_one_of(kCustomCalls)
                                                   : is_one_of(kOperations);
}

OpRule BatchedRule(RuleBuilder rule) {
  const std::string& name = rule.instruction().As<OpaqueAttributes>().name;
  const hlo::HloInstructionProto fields = FieldsOf(rule.instruction());
  std::vector<Shape> shapes = rule.instruction().results;
  for (int i = 0; i < rule.num_operands(); ++i) shapes.push_back(rule.operand(i));
  const int num_own_dims = name == "fft" ? fields.fft_length_size() : 2;
  MapBatch(rule, std::min(NumCommonDims(shapes), rule.operand(0).rank() - num_own_dims));
  if (name == "fft") rule.AddLinearGroup({0});
  if (name == "triangular-solve") {
    MapSolutions(rule, fields.triangular_solve_options().left_side());
  }
  return rule.Build();
}

}  // namespace minka
