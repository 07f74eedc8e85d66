#include "minka/ir/shape_inference.h"

#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

Shape ParseShape(const std::string& text) {
  const size_t bracket = text.find('[');
  Shape shape = {*ParseType(text.substr(0, bracket)), {}};
  std::string number;
  for (const char c : text.substr(bracket + 1)) {
    if (c == ',' || c == ']') {
      if (!number.empty()) shape.dims.push_back(std::stoll(number));
      number.clear();
    } else {
      number += c;
    }
  }
  return shape;
}

std::vector<Shape> ParseShapes(const std::vector<std::string>& texts) {
  std::vector<Shape> shapes;
  for (const std::string& text : texts) shapes.push_back(ParseShape(text));
  return shapes;
}

// The inferred shapes as "f32[4] s32[]", or the error.
std::string Infer(const Instruction& instruction, const std::vector<std::string>& operands,
                  const Module& module = {}) {
  auto shapes = InferShapes(module, instruction, ParseShapes(operands));
  if (!shapes.ok()) return Message(shapes.status());
  std::string text;
  for (const Shape& shape : *shapes) text += (text.empty() ? "" : " ") + ToString(shape);
  return text;
}

std::string Infer(Opcode opcode, Attributes attributes, const std::vector<std::string>& operands,
                  const std::vector<std::string>& declared = {}) {
  return Infer(
      {.opcode = opcode, .results = ParseShapes(declared), .attributes = std::move(attributes)},
      operands);
}

TEST(InferShapes, ElementwiseTypes) {
  EXPECT_EQ(Infer(Opcode::kTanh, {}, {"bf16[2,3]"}), "bf16[2,3]");
  EXPECT_EQ(Infer(Opcode::kAbs, {}, {"c64[2]"}), "f32[2]");
  EXPECT_EQ(Infer(Opcode::kIsFinite, {}, {"f32[2]"}), "pred[2]");
  EXPECT_EQ(Infer(Opcode::kConvert, {}, {"f32[2]"}, {"s32[2]"}), "s32[2]");
  EXPECT_EQ(Infer(Opcode::kComplex, {}, {"f64[2]", "f64[2]"}), "c128[2]");
  EXPECT_EQ(Infer(Opcode::kCompare, CompareAttributes{}, {"s32[2]", "s32[2]"}), "pred[2]");
  EXPECT_EQ(Infer(Opcode::kSelect, {}, {"pred[]", "f32[2]", "f32[2]"}), "f32[2]");
  EXPECT_EQ(Infer(Opcode::kClamp, {}, {"f32[]", "f32[2]", "f32[2]"}), "f32[2]");
}

TEST(InferShapes, ElementwiseErrorsNameTheMisfit) {
  EXPECT_EQ(Infer(Opcode::kTanh, {}, {"s32[2]"}),
            "tanh: takes floats or complex numbers, not s32[2]");
  EXPECT_EQ(Infer(Opcode::kAdd, {}, {"f32[2]", "bf16[2]"}),
            "add: operand types f32 and bf16 differ");
  EXPECT_EQ(Infer(Opcode::kAdd, {}, {"f32[2]"}), "add: has 1 operands, needs 2");
  EXPECT_EQ(Infer(Opcode::kShiftLeft, {}, {"f32[2]", "f32[2]"}),
            "shift-left: takes integers, not f32[2]");
  EXPECT_EQ(Infer(Opcode::kSelect, {}, {"s32[2]", "f32[2]", "f32[2]"}),
            "select: the selector is s32[2], not pred");
  EXPECT_EQ(Infer(Opcode::kClamp, {}, {"f32[3]", "f32[2]", "f32[2]"}),
            "clamp: bound f32[3] does not fit f32[2]");
  EXPECT_EQ(Infer(Opcode::kCompare, {}, {"s32[2]", "s32[2]"}),
            "compare: has not the attributes it needs");
}

TEST(InferShapes, DataMovement) {
  EXPECT_EQ(Infer(Opcode::kBroadcast, DimensionsAttributes{{1}}, {"f32[3]"}, {"f32[2,3]"}),
            "f32[2,3]");
  EXPECT_EQ(Infer(Opcode::kBroadcast, DimensionsAttributes{{0}}, {"f32[3]"}, {"f32[2,3]"}),
            "broadcast: dimension 0 of operand f32[3] goes to dimension 0 of f32[2,3]");
  EXPECT_EQ(Infer(Opcode::kTranspose, DimensionsAttributes{{2, 0, 1}}, {"f32[2,3,4]"}),
            "f32[4,2,3]");
  EXPECT_EQ(Infer(Opcode::kTranspose, DimensionsAttributes{{0, 0, 1}}, {"f32[2,3,4]"}),
            "transpose: permutation [0,0,1]: 0 twice");
  EXPECT_EQ(Infer(Opcode::kReshape, {}, {"f32[2,3]"}, {"f32[7]"}),
            "reshape: f32[2,3] has 6 elements, f32[7] has 7");
  EXPECT_EQ(Infer(Opcode::kConcatenate, DimensionsAttributes{{1}}, {"f32[2,3]", "f32[2,5]"}),
            "f32[2,8]");
  EXPECT_EQ(Infer(Opcode::kConcatenate, DimensionsAttributes{{0}}, {"f32[2,3]", "f32[2,5]"}),
            "concatenate: operands f32[2,3] and f32[2,5] differ outside dimension 0");
  EXPECT_EQ(Infer(Opcode::kSlice, SliceAttributes{{1}, {8}, {3}}, {"f32[10]"}), "f32[3]");
  EXPECT_EQ(Infer(Opcode::kSlice, SliceAttributes{{1}, {11}, {1}}, {"f32[10]"}),
            "slice: [1:11:1] does not slice dimension 0 of f32[10]");
  EXPECT_EQ(Infer(Opcode::kPad, PadAttributes{{1, -1}, {2, 0}, {0, 2}}, {"f32[4,3]", "f32[]"}),
            "f32[7,6]");
  EXPECT_EQ(Infer(Opcode::kIota, DimensionsAttributes{{2}}, {}, {"s32[2,3]"}),
            "iota: dimension [2]: 2 is not a dimension of rank 2");
  EXPECT_EQ(Infer(Opcode::kBitcastConvert, {}, {"u32[5,2]"}, {"u64[5]"}), "u64[5]");
  EXPECT_EQ(Infer(Opcode::kBitcastConvert, {}, {"u32[5]"}, {"u64[5]"}),
            "bitcast-convert: the bits of u32[5] do not make u64[5]");
}

TEST(InferShapes, DynamicSlices) {
  EXPECT_EQ(
      Infer(Opcode::kDynamicSlice, DynamicSliceAttributes{{1, 3}}, {"f32[4,3]", "s32[]", "u32[]"}),
      "f32[1,3]");
  EXPECT_EQ(Infer(Opcode::kDynamicSlice, DynamicSliceAttributes{{1, 3}}, {"f32[4,3]", "s32[]"}),
            "dynamic-slice: has 2 operands, needs 3");
  EXPECT_EQ(Infer(Opcode::kDynamicUpdateSlice, {}, {"f32[4,3]", "f32[1,3]", "s32[]", "s32[]"}),
            "f32[4,3]");
  EXPECT_EQ(Infer(Opcode::kDynamicUpdateSlice, {}, {"f32[4,3]", "f32[5,3]", "s32[]", "s32[]"}),
            "dynamic-update-slice: update f32[5,3] does not fit into f32[4,3]");
}

TEST(InferShapes, DotNamesTheDimensionsThatDiffer) {
  EXPECT_EQ(Infer(Opcode::kDot, DotAttributes{{1}, {0}}, {"f32[4,8]", "f32[8,2]"}), "f32[4,2]");
  EXPECT_EQ(Infer(Opcode::kDot, DotAttributes{{1}, {0}}, {"f32[4,8]", "f32[9,2]"}),
            "dot: contracting dimension 1 of lhs has size 8, 0 of rhs 9");
  EXPECT_EQ(Infer(Opcode::kDot, DotAttributes{{1}, {0}, {1}, {1}}, {"f32[4,8]", "f32[8,8]"}),
            "dot: batch and contracting of lhs [1,1]: 1 twice");
}

// An embedding lookup: rows of table[100,16] by ids[8,4].
GatherAttributes Lookup() {
  return {.offset_dims = {2},
          .collapsed_slice_dims = {0},
          .start_index_map = {0},
          .slice_sizes = {1, 16},
          .index_vector_dim = 2};
}

TEST(InferShapes, GatherOfRows) {
  EXPECT_EQ(Infer(Opcode::kGather, Lookup(), {"f32[100,16]", "s32[8,4]"}), "f32[8,4,16]");
  EXPECT_EQ(Infer(Opcode::kGather, Lookup(), {"f32[100,16]", "s32[8,4,1]"}), "f32[8,4,16]");
  GatherAttributes in_front = Lookup();
  in_front.offset_dims = {0};
  EXPECT_EQ(Infer(Opcode::kGather, in_front, {"f32[100,16]", "s32[8,4,1]"}), "f32[16,8,4]");
}

TEST(InferShapes, GatherWithBatchingDimensions) {
  // One index per row: take_along_axis.
  const GatherAttributes along = {.collapsed_slice_dims = {1},
                                  .start_index_map = {1},
                                  .operand_batching_dims = {0},
                                  .start_indices_batching_dims = {0},
                                  .slice_sizes = {1, 1},
                                  .index_vector_dim = 2};
  EXPECT_EQ(Infer(Opcode::kGather, along, {"f32[8,50]", "s32[8,3,1]"}), "f32[8,3]");
  EXPECT_EQ(Infer(Opcode::kGather, along, {"f32[8,50]", "s32[9,3,1]"}),
            "gather: batching dimension 0 of f32[8,50] and 0 of s32[9,3,1] differ");
}

TEST(InferShapes, GatherErrors) {
  GatherAttributes wrong = Lookup();
  wrong.slice_sizes = {1, 17};
  EXPECT_EQ(Infer(Opcode::kGather, wrong, {"f32[100,16]", "s32[8,4]"}),
            "gather: slice size 17 of dimension 1 exceeds 16 of table f32[100,16]");
  EXPECT_EQ(Infer(Opcode::kGather, Lookup(), {"f32[100,16]", "f32[8,4]"}),
            "gather: indices f32[8,4] are not integers");
  EXPECT_EQ(Infer(Opcode::kGather, Lookup(), {"f32[100,16]", "s32[8,4,2]"}),
            "gather: index vectors of s32[8,4,2] have 2 components, 1 table dimensions given");
  wrong = Lookup();
  wrong.offset_dims = {1, 2};
  EXPECT_EQ(Infer(Opcode::kGather, wrong, {"f32[100,16]", "s32[8,4]"}),
            "gather: 2 window dimensions for table f32[100,16] with 1 collapsed and 0 batching");
}

// A module with an f32 adder (0) and a comparison of two s32 (1).
Module WithCallees() {
  ModuleBuilder builder("m");
  builder.ScalarReducer(Opcode::kAdd, ElementType::kF32);
  ComputationBuilder less = builder.AddComputation("less");
  const Value x = less.Parameter({ElementType::kS32, {}}, "x");
  const Value y = less.Parameter({ElementType::kS32, {}}, "y");
  less.SetResults({less.Compare(CompareAttributes::Direction::kLt, x, y)});
  return *std::move(builder).Finish();
}

TEST(InferShapes, ScatterChecksUpdatesAndReducer) {
  const Module module = WithCallees();
  const ScatterAttributes rows = {.update_window_dims = {1},
                                  .inserted_window_dims = {0},
                                  .scatter_dims_to_operand_dims = {0},
                                  .index_vector_dim = 1};
  Instruction scatter = {.opcode = Opcode::kScatter, .attributes = rows, .called = {0}};
  EXPECT_EQ(Infer(scatter, {"f32[100,16]", "s32[8,1]", "f32[8,16]"}, module), "f32[100,16]");
  EXPECT_EQ(Infer(scatter, {"f32[100,16]", "s32[8,1]", "f32[9,16]"}, module),
            "scatter: updates f32[9,16] do not run over indices s32[8,1]");
  EXPECT_EQ(Infer(scatter, {"f32[100,16]", "s32[8,1]", "f32[8,17]"}, module),
            "scatter: updates f32[8,17] exceed dimension 1 of table f32[100,16]");
  scatter.called = {1};
  EXPECT_EQ(Infer(scatter, {"f32[100,16]", "s32[8,1]", "f32[8,16]"}, module),
            "scatter: reducer 'less' (s32[], s32[]) -> (pred[]) does not reduce 1 values of type "
            "f32");
}

TEST(InferShapes, ReduceDropsDimensions) {
  const Module module = WithCallees();
  Instruction reduce = {
      .opcode = Opcode::kReduce, .attributes = DimensionsAttributes{{0, 2}}, .called = {0}};
  EXPECT_EQ(Infer(reduce, {"f32[2,3,4]", "f32[]"}, module), "f32[3]");
  EXPECT_EQ(Infer(reduce, {"f32[2,3,4]", "f32[1]"}, module),
            "reduce: initial value f32[1] is not a scalar of f32[2,3,4]");
  EXPECT_EQ(Infer(reduce, {"f32[2,3]", "f32[]"}, module),
            "reduce: dimensions [0,2]: 2 is not a dimension of rank 2");
  reduce.called = {};
  EXPECT_EQ(Infer(reduce, {"f32[2,3,4]", "f32[]"}, module),
            "reduce: calls 0 computations, needs 1");
}

TEST(InferShapes, SortChecksItsComparator) {
  const Module module = WithCallees();
  const Instruction sort = {
      .opcode = Opcode::kSort, .attributes = DimensionsAttributes{{1}}, .called = {1}};
  EXPECT_EQ(Infer(sort, {"s32[2,8]"}, module), "s32[2,8]");
  EXPECT_EQ(Infer(sort, {"f32[2,8]"}, module),
            "sort: passes (f32[], f32[]) to 'less', which takes (s32[], s32[])");
}

TEST(InferShapes, WhileAndConditionalSignatures) {
  ModuleBuilder builder("m");
  ComputationBuilder body = builder.AddComputation("body");
  const Value i = body.Parameter({ElementType::kS32, {}}, "i");
  const Value x = body.Parameter({ElementType::kF32, {4}}, "x");
  body.SetResults({body.Binary(Opcode::kAdd, i, i), body.Unary(Opcode::kTanh, x)});
  ComputationBuilder condition = builder.AddComputation("condition");
  const Value j = condition.Parameter({ElementType::kS32, {}}, "i");
  condition.Parameter({ElementType::kF32, {4}}, "x");
  condition.SetResults({condition.Compare(CompareAttributes::Direction::kLt, j,
                                          condition.Scalar(ElementType::kS32, 10))});
  const Module module = *std::move(builder).Finish();  // body 0, condition 1

  const Instruction loop = {.opcode = Opcode::kWhile, .called = {0, 1}};
  EXPECT_EQ(Infer(loop, {"s32[]", "f32[4]"}, module), "s32[] f32[4]");
  EXPECT_EQ(Infer(loop, {"s32[]", "f32[5]"}, module),
            "while: passes (s32[], f32[5]) to 'body', which takes (s32[], f32[4])");
  EXPECT_EQ(Infer({.opcode = Opcode::kWhile, .called = {0, 0}}, {"s32[]", "f32[4]"}, module),
            "while: 'body' returns (s32[], f32[4]), needs (pred[])");

  const Instruction both = {.opcode = Opcode::kConditional, .called = {0, 0}};
  EXPECT_EQ(Infer(both, {"pred[]", "s32[]", "f32[4]", "s32[]", "f32[4]"}, module), "s32[] f32[4]");
  EXPECT_EQ(Infer(both, {"pred[]", "s32[]", "f32[4]", "s32[]"}, module),
            "conditional: passes (s32[]) to 'body', which takes (s32[], f32[4])");
  const Instruction mixed = {.opcode = Opcode::kConditional, .called = {0, 1}};
  EXPECT_EQ(Infer(mixed, {"s32[]", "s32[]", "f32[4]", "s32[]", "f32[4]"}, module),
            "conditional: 'condition' returns (pred[]), needs (s32[], f32[4])");
}

TEST(InferShapes, CollectivesCheckGroups) {
  EXPECT_EQ(Infer(Opcode::kAllGather, CollectiveAttributes{.groups = {{0, 1}, {2}}, .dimension = 0},
                  {"f32[4]"}),
            "all-gather: has groups of 2 and 1 members");
  EXPECT_EQ(Infer(Opcode::kAllGather, CollectiveAttributes{.dimension = 0}, {"f32[4]"}),
            "all-gather: without groups the result must be declared");
  EXPECT_EQ(
      Infer(Opcode::kAllGather, CollectiveAttributes{.dimension = 0}, {"f32[4]"}, {"f32[12]"}),
      "f32[12]");
  EXPECT_EQ(Infer(Opcode::kAllToAll, CollectiveAttributes{.groups = {{0, 1, 1}}, .dimension = 0},
                  {"f32[6]"}),
            "all-to-all: has member 1 in two places");
  EXPECT_EQ(
      Infer(Opcode::kAllToAll, CollectiveAttributes{.groups = {{0, 1}}}, {"f32[6]", "f32[6]"}),
      "f32[6] f32[6]");
  EXPECT_EQ(Infer(Opcode::kCollectivePermute, PermuteAttributes{{{0, 1}, {0, 2}}}, {"f32[6]"}),
            "collective-permute: 0 is source of two pairs");
}

TEST(InferShapes, DeclaredResultsAreChecked) {
  const OpaqueAttributes unknown = {.name = "unheard"};
  EXPECT_EQ(Infer(Opcode::kOther, unknown, {"f32[8]"}, {"f32[2]", "s32[2]"}), "f32[2] s32[2]");
  EXPECT_EQ(Infer(Opcode::kOther, unknown, {"f32[8]"}, {"f32[-2]"}),
            "unheard: declares a negative size: f32[-2]");
  EXPECT_EQ(Infer(Opcode::kOther, unknown, {}, {"f32[4294967296,4294967296]"}),
            "unheard: declares more than 2^56 elements: f32[4294967296,4294967296]");
  EXPECT_EQ(Infer(Opcode::kRngBitGenerator, RngAttributes{}, {"u64[2]"}, {"u64[2]"}),
            "rng-bit-generator: declares 1 results, needs state and bits");
  EXPECT_EQ(Infer({.opcode = Opcode::kCall, .called = {3}}, {}),
            "call: calls computation 3, which does not exist");
}

// No opcode may crash on an instruction that has nothing, or on operands of odd shapes.
TEST(InferShapes, EveryOpcodeSurvivesNonsense) {
  for (int number = 0; number <= static_cast<int>(Opcode::kOther); ++number) {
    for (const std::vector<std::string>& operands : std::vector<std::vector<std::string>>{
             {}, {"f32[]"}, {"s32[0]", "pred[2]"}, {"token[]", "f32[3]", "f32[3]"}}) {
      const auto result =
          InferShapes({}, {.opcode = static_cast<Opcode>(number)}, ParseShapes(operands));
      EXPECT_TRUE(result.ok() || !Message(result.status()).empty());
    }
  }
}

}  // namespace
}  // namespace minka
