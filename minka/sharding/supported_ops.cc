#include "minka/sharding/supported_ops.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo.pb.h"
#include "minka/sharding/op_rule.h"

namespace minka {
namespace {

constexpr ElementType kF32 = ElementType::kF32;
constexpr ElementType kS32 = ElementType::kS32;

// One operation in its usual form; `build` appends it last.
struct Example {
  std::string label;
  std::function<Value(ComputationBuilder&)> build;
};

Value Matrix(ComputationBuilder& b, ElementType type = kF32) {
  return b.Parameter({type, {8, 16}}, fmt::format("p{}", b.computation().parameters.size()));
}

Value Array(ComputationBuilder& b, ElementType type, std::vector<int64_t> dims) {
  return b.Parameter({type, std::move(dims)},
                     fmt::format("p{}", b.computation().parameters.size()));
}

// The type of operands that the operation is defined on.
ElementType OperandType(Opcode opcode) {
  switch (opcode) {
    case Opcode::kAnd:
    case Opcode::kOr:
    case Opcode::kXor:
    case Opcode::kNot:
    case Opcode::kShiftLeft:
    case Opcode::kShiftRightArithmetic:
    case Opcode::kShiftRightLogical:
    case Opcode::kPopulationCount:
    case Opcode::kCountLeadingZeros:
      return kS32;
    case Opcode::kReal:
    case Opcode::kImag:
      return ElementType::kC64;
    default:
      return kF32;
  }
}

Value BuildElementwise(ComputationBuilder& b, Opcode opcode) {
  const ElementType type = OperandType(opcode);
  switch (opcode) {
    case Opcode::kCompare:
      return b.Compare(CompareAttributes::Direction::kLt, Matrix(b), Matrix(b));
    case Opcode::kSelect:
      return b.Select(Matrix(b, ElementType::kPred), Matrix(b), Matrix(b));
    case Opcode::kClamp:
      return b.Clamp(Matrix(b), Matrix(b), Matrix(b));
    case Opcode::kReducePrecision: {
      Instruction instruction;
      instruction.opcode = opcode;
      instruction.operands = {Matrix(b)};
      instruction.attributes = ReducePrecisionAttributes{8, 7};
      return b.Append(std::move(instruction));
    }
    case Opcode::kStochasticConvert: {
      Instruction instruction;
      instruction.opcode = opcode;
      instruction.operands = {Matrix(b), Matrix(b, ElementType::kU32)};
      instruction.results = {{ElementType::kBF16, {8, 16}}};
      return b.Append(std::move(instruction));
    }
    default:
      return Family(opcode) == OpFamily::kUnary
                 ? b.Unary(opcode, Matrix(b, type))
                 : b.Binary(opcode, Matrix(b, type), Matrix(b, type));
  }
}

Value BuildDot(ComputationBuilder& b) {
  const Value x = Array(b, kF32, {4, 8, 16});
  return b.Dot(x, Array(b, kF32, {4, 16, 32}), {{2}, {1}, {0}, {0}});
}

// The lookup of an embedding.
Value BuildGather(ComputationBuilder& b) {
  const Value table = Array(b, kF32, {128, 16});
  GatherAttributes gather;
  gather.offset_dims = {1};
  gather.collapsed_slice_dims = {0};
  gather.start_index_map = {0};
  gather.slice_sizes = {1, 16};
  gather.index_vector_dim = 1;
  return b.Gather(table, Array(b, kS32, {8, 1}), gather);
}

// The gradient of an embedding.
Value BuildScatter(ComputationBuilder& b, Opcode combiner) {
  const Value table = Array(b, kF32, {128, 16});
  const Value indices = Array(b, kS32, {8, 1});
  ScatterAttributes scatter;
  scatter.update_window_dims = {1};
  scatter.inserted_window_dims = {0};
  scatter.scatter_dims_to_operand_dims = {0};
  scatter.index_vector_dim = 1;
  return b.Scatter(table, indices, Array(b, kF32, {8, 16}), scatter, combiner);
}

Value BuildReverse(ComputationBuilder& b) {
  Instruction instruction;
  instruction.opcode = Opcode::kReverse;
  instruction.operands = {Matrix(b)};
  instruction.attributes = DimensionsAttributes{{1}};
  return b.Append(std::move(instruction));
}

Value BuildRandomBits(ComputationBuilder& b) {
  Instruction instruction;
  instruction.opcode = Opcode::kRngBitGenerator;
  instruction.operands = {Array(b, ElementType::kU64, {2})};
  instruction.results = {{ElementType::kU64, {2}}, {ElementType::kU32, {8, 16}}};
  instruction.attributes = RngAttributes{1};
  return b.Append(std::move(instruction));
}

// while (count < 5) { count += 1; x = x * x }
Value BuildLoop(ComputationBuilder& b) {
  const Shape array{kF32, {8, 16}};
  ComputationBuilder body = b.module().AddComputation("body");
  const Value count = body.Parameter({kS32, {}}, "count");
  const Value x = body.Parameter(array, "x");
  body.SetResults({body.Binary(Opcode::kAdd, count, body.Scalar(kS32, 1)),
                   body.Binary(Opcode::kMultiply, x, x)});
  ComputationBuilder condition = b.module().AddComputation("condition");
  const Value limited = condition.Parameter({kS32, {}}, "count");
  condition.Parameter(array, "x");
  condition.SetResults(
      {condition.Compare(CompareAttributes::Direction::kLt, limited, condition.Scalar(kS32, 5))});
  Instruction loop;
  loop.opcode = Opcode::kWhile;
  loop.operands = {Array(b, kS32, {}), Matrix(b)};
  loop.called = {b.module().id(body), b.module().id(condition)};
  return b.Append(std::move(loop));
}

Value BuildSort(ComputationBuilder& b) {
  ComputationBuilder less = b.module().AddComputation("less");
  const Value x = less.Parameter({kF32, {}}, "x");
  const Value y = less.Parameter({kF32, {}}, "y");
  less.SetResults({less.Compare(CompareAttributes::Direction::kLt, x, y)});
  Instruction sort;
  sort.opcode = Opcode::kSort;
  sort.operands = {Matrix(b)};
  sort.attributes = DimensionsAttributes{{1}};
  sort.called = {b.module().id(less)};
  return b.Append(std::move(sort));
}

Value BuildTopK(ComputationBuilder& b) {
  Instruction top;
  top.opcode = Opcode::kTopK;
  top.operands = {Matrix(b)};
  top.attributes = TopKAttributes{2};
  return b.Append(std::move(top));
}

// HLO's operations that have no opcode here, and custom calls.
Value BuildOpaque(ComputationBuilder& b, Opcode opcode, std::string name,
                  const std::vector<std::vector<int64_t>>& operands,
                  const std::vector<std::vector<int64_t>>& results,
                  const hlo::HloInstructionProto& fields = {}) {
  Instruction instruction{.opcode = opcode,
                          .attributes = OpaqueAttributes{.name = std::move(name)},
                          .undecoded = std::make_shared<std::string>(fields.SerializeAsString())};
  for (const auto& dims : operands) instruction.operands.push_back(Array(b, kF32, dims));
  for (const auto& dims : results) instruction.results.push_back({kF32, dims});
  return b.Append(std::move(instruction));
}

Value BuildCholesky(ComputationBuilder& b) {
  return BuildOpaque(b, Opcode::kOther, "cholesky", {{8, 16, 16}}, {{8, 16, 16}});
}

Value BuildTriangularSolve(ComputationBuilder& b) {
  hlo::HloInstructionProto fields;
  fields.mutable_triangular_solve_options()->set_left_side(true);
  return BuildOpaque(b, Opcode::kOther, "triangular-solve", {{8, 16, 16}, {8, 16, 4}}, {{8, 16, 4}},
                     fields);
}

Value BuildFft(ComputationBuilder& b) {
  hlo::HloInstructionProto fields;
  fields.add_fft_length(16);
  return BuildOpaque(b, Opcode::kOther, "fft", {{8, 16}}, {{8, 9}}, fields);
}

Value BuildQr(ComputationBuilder& b) {
  return BuildOpaque(b, Opcode::kCustomCall, "Qr", {{8, 16, 4}}, {{8, 16, 4}, {8, 4}});
}

Value BuildArgmax(ComputationBuilder& b) {
  ComputationBuilder reducer = b.module().AddComputation("argmax");
  const Value x = reducer.Parameter({kF32, {}}, "x"), i = reducer.Parameter({kS32, {}}, "i");
  const Value y = reducer.Parameter({kF32, {}}, "y"), j = reducer.Parameter({kS32, {}}, "j");
  const Value larger = reducer.Compare(CompareAttributes::Direction::kGt, x, y);
  reducer.SetResults({reducer.Select(larger, x, y), reducer.Select(larger, i, j)});
  Instruction reduce;
  reduce.opcode = Opcode::kReduce;
  const Value values = Matrix(b);
  reduce.operands = {values, Matrix(b, kS32), Array(b, kF32, {}), Array(b, kS32, {})};
  reduce.attributes = DimensionsAttributes{{1}};
  reduce.called = {b.module().id(reducer)};
  return b.Append(std::move(reduce));
}

// while (count < 5) { count += 1; gradient += transpose(x) x; x = 2 x }
Value BuildAccumulatingLoop(ComputationBuilder& b) {
  const Shape count{kS32, {}}, gradient{kF32, {16, 16}}, array{kF32, {8, 16}};
  const auto add_parameters = [&](ComputationBuilder& called) {
    return std::vector<Value>{called.Parameter(count, "count"),
                              called.Parameter(gradient, "gradient"), called.Parameter(array, "x")};
  };
  ComputationBuilder body = b.module().AddComputation("body");
  const std::vector<Value> carried = add_parameters(body);
  const Value product = body.Dot(carried[2], carried[2], {{0}, {0}, {}, {}});
  body.SetResults({body.Binary(Opcode::kAdd, carried[0], body.Scalar(kS32, 1)),
                   body.Binary(Opcode::kAdd, carried[1], product),
                   body.Binary(Opcode::kAdd, carried[2], carried[2])});
  ComputationBuilder condition = b.module().AddComputation("condition");
  const Value limited = add_parameters(condition)[0];
  condition.SetResults(
      {condition.Compare(CompareAttributes::Direction::kLt, limited, condition.Scalar(kS32, 5))});
  Instruction loop;
  loop.opcode = Opcode::kWhile;
  loop.operands = {Array(b, kS32, {}), Array(b, kF32, {16, 16}), Matrix(b)};
  loop.called = {b.module().id(body), b.module().id(condition)};
  return b.Append(std::move(loop));
}

Value BuildConditional(ComputationBuilder& b) {
  const Shape array{kF32, {8, 16}};
  Instruction conditional;
  conditional.opcode = Opcode::kConditional;
  conditional.operands = {Array(b, ElementType::kPred, {}), Matrix(b), Matrix(b)};
  for (const Opcode opcode : {Opcode::kNegate, Opcode::kAbs}) {
    ComputationBuilder branch = b.module().AddComputation(OpcodeName(opcode));
    branch.SetResults({branch.Unary(opcode, branch.Parameter(array, "x"))});
    conditional.called.push_back(b.module().id(branch));
  }
  return b.Append(std::move(conditional));
}

Value BuildMap(ComputationBuilder& b) {
  ComputationBuilder negated = b.module().AddComputation("negated");
  negated.SetResults({negated.Unary(Opcode::kNegate, negated.Parameter({kF32, {}}, "x"))});
  Instruction map;
  map.opcode = Opcode::kMap;
  map.operands = {Matrix(b)};
  map.attributes = DimensionsAttributes{{0, 1}};
  map.called = {b.module().id(negated)};
  return b.Append(std::move(map));
}

void AddDataExamples(std::vector<Example>& examples) {
  examples.push_back({"convert (to an equal or wider float)", [](ComputationBuilder& b) {
                        return b.Convert(Matrix(b, ElementType::kBF16), kF32);
                      }});
  examples.push_back({"convert (else)", [](ComputationBuilder& b) {
                        return b.Convert(Matrix(b), ElementType::kBF16);
                      }});
  examples.push_back({"parameter", [](ComputationBuilder& b) { return Matrix(b); }});
  examples.push_back({"constant", [](ComputationBuilder& b) {
                        return b.Constant(FilledLiteral({kF32, {8, 16}}, 1));
                      }});
  examples.push_back({"iota", [](ComputationBuilder& b) { return b.Iota({kS32, {8, 16}}, 1); }});
  examples.push_back({"broadcast", [](ComputationBuilder& b) {
                        return b.Broadcast(Array(b, kF32, {16}), {8, 16}, {1});
                      }});
  examples.push_back({"reshape", [](ComputationBuilder& b) {
                        return b.Reshape(Array(b, kF32, {8, 48}), {8, 1, 16, 3});
                      }});
  examples.push_back(
      {"transpose", [](ComputationBuilder& b) { return b.Transpose(Matrix(b), {1, 0}); }});
  examples.push_back({"slice", [](ComputationBuilder& b) {
                        return b.Slice(Matrix(b), {{0, 2}, {8, 10}, {1, 1}});
                      }});
  examples.push_back({"dynamic-slice", [](ComputationBuilder& b) {
                        const Value x = Matrix(b);
                        const std::vector<Value> starts = {Array(b, kS32, {}), Array(b, kS32, {})};
                        return b.DynamicSlice(x, starts, {8, 4});
                      }});
  examples.push_back({"dynamic-update-slice", [](ComputationBuilder& b) {
                        const Value x = Matrix(b);
                        const Value update = Array(b, kF32, {8, 4});
                        const std::vector<Value> starts = {Array(b, kS32, {}), Array(b, kS32, {})};
                        return b.DynamicUpdateSlice(x, update, starts);
                      }});
  examples.push_back({"pad", [](ComputationBuilder& b) {
                        const Value x = Matrix(b);
                        return b.Pad(x, Array(b, kF32, {}), {{0, 1}, {0, 1}, {0, 0}});
                      }});
  examples.push_back({"pad (with zeros)", [](ComputationBuilder& b) {
                        return b.Pad(Matrix(b), b.Scalar(kF32, 0), {{0, 1}, {0, 1}, {0, 0}});
                      }});
  examples.push_back({"concatenate", [](ComputationBuilder& b) {
                        const std::vector<Value> parts = {Matrix(b), Matrix(b)};
                        return b.Concatenate(parts, 1);
                      }});
  examples.push_back({"reverse", BuildReverse});
  examples.push_back({"bitcast-convert", [](ComputationBuilder& b) {
                        return b.BitcastConvert(Matrix(b), ElementType::kU32);
                      }});
  examples.push_back({"gather", BuildGather});
  examples.push_back({"rng-bit-generator", BuildRandomBits});
}

// Images [batch, height, width, features] under a kernel [height, width, inputs, outputs].
Value BuildConvolution(ComputationBuilder& b, const WindowDim& window, int64_t feature_groups,
                       int64_t batch_groups) {
  const Value x = Array(b, kF32, {8, 16, 16, 32});
  const Value w = Array(b, kF32, {window.size, window.size, 32 / feature_groups, 64});
  return b.Convolution(x, w,
                       {.window = {window, window},
                        .input_batch = 0,
                        .input_feature = 3,
                        .kernel_input_feature = 2,
                        .kernel_output_feature = 3,
                        .output_batch = 0,
                        .output_feature = 3,
                        .input_spatial = {1, 2},
                        .kernel_spatial = {0, 1},
                        .output_spatial = {1, 2},
                        .feature_group_count = feature_groups,
                        .batch_group_count = batch_groups});
}

Value BuildSelectAndScatter(ComputationBuilder& b) {
  const Value x = Matrix(b);
  const Value source = Array(b, kF32, {8, 8});
  return b.SelectAndScatterAdd(x, source, Array(b, kF32, {}), {{}, {.size = 2, .stride = 2}},
                               CompareAttributes::Direction::kGe);
}

Value BuildBatchNorm(ComputationBuilder& b, Opcode opcode) {
  Instruction norm{
      .opcode = opcode, .operands = {Matrix(b)}, .attributes = BatchNormAttributes{0.001F, 1}};
  const int num_operands = opcode == Opcode::kBatchNormTraining ? 3 : 5;
  for (int i = 1; i < num_operands; ++i) {
    const bool is_vector = opcode != Opcode::kBatchNormGrad || i < 4;
    norm.operands.push_back(is_vector ? Array(b, kF32, {16}) : Matrix(b));
  }
  return b.Append(std::move(norm));
}

void AddWindowExamples(std::vector<Example>& examples) {
  const WindowDim overlapping{.size = 3, .padding_low = 1, .padding_high = 1};
  const auto convolution = [&](std::string label, WindowDim window, int64_t feature_groups,
                               int64_t batch_groups) {
    examples.push_back({std::move(label), [=](ComputationBuilder& b) {
                          return BuildConvolution(b, window, feature_groups, batch_groups);
                        }});
  };
  convolution("convolution", overlapping, 1, 1);
  convolution("convolution (windows side by side, 1x1 kernels)", {.size = 2, .stride = 2}, 1, 1);
  convolution("convolution (window as large as the input)", {.size = 16}, 1, 1);
  convolution("convolution (feature groups)", overlapping, 8, 1);
  convolution("convolution (batch groups)", overlapping, 1, 4);
  for (const Opcode reducer : {Opcode::kAdd, Opcode::kMaximum}) {
    examples.push_back({fmt::format("reduce-window ({}; side by side, overlapping, covering)",
                                    OpcodeName(reducer)),
                        [=](ComputationBuilder& b) {
                          const Value x = Array(b, kF32, {8, 16, 16, 16});
                          return b.ReduceWindow(
                              x, Array(b, kF32, {}),
                              {{}, {.size = 2, .stride = 2}, overlapping, {.size = 16}}, reducer);
                        }});
  }
  examples.push_back({"select-and-scatter", BuildSelectAndScatter});
  for (const Opcode opcode :
       {Opcode::kBatchNormTraining, Opcode::kBatchNormInference, Opcode::kBatchNormGrad}) {
    examples.push_back({std::string(OpcodeName(opcode)),
                        [=](ComputationBuilder& b) { return BuildBatchNorm(b, opcode); }});
  }
}

void AddReducingExamples(std::vector<Example>& examples) {
  examples.push_back({"dot", BuildDot});
  for (const Opcode reducer :
       {Opcode::kAdd, Opcode::kMultiply, Opcode::kMaximum, Opcode::kMinimum}) {
    examples.push_back(
        {fmt::format("reduce ({})", OpcodeName(reducer)), [reducer](ComputationBuilder& b) {
           const Value x = Matrix(b);
           return b.Reduce(x, Array(b, kF32, {}), {1}, reducer);
         }});
  }
  for (const Opcode reducer : {Opcode::kAnd, Opcode::kOr}) {
    examples.push_back(
        {fmt::format("reduce ({})", OpcodeName(reducer)), [reducer](ComputationBuilder& b) {
           const Value x = Matrix(b, ElementType::kPred);
           return b.Reduce(x, Array(b, ElementType::kPred, {}), {1}, reducer);
         }});
  }
  for (const Opcode combiner : {Opcode::kAdd, Opcode::kMaximum}) {
    examples.push_back({fmt::format("scatter ({})", OpcodeName(combiner)),
                        [combiner](ComputationBuilder& b) { return BuildScatter(b, combiner); }});
  }
  examples.push_back({"reduce (argmax)", BuildArgmax});
  examples.push_back({"sort", BuildSort});
  examples.push_back({"topk", BuildTopK});
  examples.push_back({"cholesky", BuildCholesky});
  examples.push_back({"triangular-solve (from the left)", BuildTriangularSolve});
  examples.push_back({"fft", BuildFft});
  examples.push_back(
      {"Qr, Eigh, ProductOfElementaryHouseholderReflectors (custom calls)", BuildQr});
  examples.push_back({"map", BuildMap});
  examples.push_back({"while (elementwise body)", BuildLoop});
  examples.push_back({"while (accumulating a gradient)", BuildAccumulatingLoop});
  examples.push_back({"conditional (elementwise branches)", BuildConditional});
  examples.push_back({"opt-barrier", [](ComputationBuilder& b) {
                        const std::vector<Value> values = {Matrix(b)};
                        return b.OptBarrier(values)[0];
                      }});
}

std::vector<Example> Examples() {
  std::vector<Example> examples;
#define MINKA_OPCODE(Name, text, family)                                                     \
  if (IsElementwise(Opcode::k##Name) && Opcode::k##Name != Opcode::kConvert) {               \
    examples.push_back(                                                                      \
        {text, [](ComputationBuilder& b) { return BuildElementwise(b, Opcode::k##Name); }}); \
  }
#include "minka/ir/opcode.def"
#undef MINKA_OPCODE
  AddDataExamples(examples);
  AddReducingExamples(examples);
  AddWindowExamples(examples);
  return examples;
}

OpRule RuleOf(const Example& example) {
  ModuleBuilder builder("example");
  ComputationBuilder entry = builder.Entry();
  const Value value = example.build(entry);
  entry.SetResults({value});
  absl::StatusOr<Module> module = std::move(builder).Finish();
  MINKA_CHECK(module.ok(), "{}: {}", example.label, Message(module.status()));
  return RuleFor(*module, module->entry_computation(), value.instruction);
}

std::string_view FormText(LocalForm form) {
  switch (form) {
    case LocalForm::kPlain:
      return "";
    case LocalForm::kIotaOffset:
      return "offset added";
    case LocalForm::kOwnSlice:
      return "own slice";
    case LocalForm::kIndexOffset:
      return "indices shifted and masked";
    case LocalForm::kGatherAndReduce:
      return "by gathering the parts' results and reducing them once more";
    case LocalForm::kWindowOffset:
      return "window shifted into the part";
    case LocalForm::kCollectivesInside:
      return "collectives inside";
    case LocalForm::kInitOnFirst:
      return "initial value counted once";
  }
  MINKA_CHECK(false, "local form {}", static_cast<int>(form));
}

// "[row,contraction] [contraction,column] -> [row,column]"
std::string Signature(const OpRule& rule) {
  const auto dims_text = [&](const std::vector<int>& dims) {
    std::vector<std::string_view> names;
    names.reserve(dims.size());
    for (const int factor : dims) {
      names.push_back(factor == kWholeDim ? "whole" : std::string_view(rule.factors[factor].name));
    }
    return fmt::format("[{}]", fmt::join(names, ","));
  };
  std::string text;
  for (const std::vector<int>& dims : rule.operand_dims) text += dims_text(dims) + " ";
  text += "->";
  for (const std::vector<int>& dims : rule.result_dims) text += " " + dims_text(dims);
  return text;
}

// What is more than "runs on its part".
std::string Remarks(const OpRule& rule) {
  std::vector<std::string> remarks;
  for (const Factor& factor : rule.factors) {
    std::string text;
    if (factor.kind == FactorKind::kSum) text = "leaves a sum owed";
    if (factor.kind == FactorKind::kCombine) {
      text = factor.local_form == LocalForm::kGatherAndReduce
                 ? "completed at once"
                 : "completed at once by an all-reduce";
    }
    if (!factor.partial_results.empty()) {
      text = fmt::format("carried sums owed: {}", fmt::join(factor.partial_results, ","));
    }
    if (factor.local_form != LocalForm::kPlain) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", FormText(factor.local_form));
    }
    if (!text.empty()) remarks.push_back(fmt::format("{}: {}", factor.name, text));
  }
  return fmt::format("{}", fmt::join(remarks, "; "));
}

std::string PartialText(const OpRule& rule) {
  std::vector<std::string> groups;
  groups.reserve(rule.linear_groups.size());
  for (const std::vector<int>& group : rule.linear_groups) {
    groups.push_back(fmt::format("{}", fmt::join(group, " and ")));
  }
  return groups.empty() ? "none" : fmt::format("{}", fmt::join(groups, ", or "));
}

struct Row {
  std::vector<std::string> labels;
  std::string cells;
};

std::vector<std::string> OpcodesWithoutRule(const std::vector<Example>& examples) {
  std::vector<std::string> names;
#define MINKA_OPCODE(Name, text, family) names.push_back(text);
#include "minka/ir/opcode.def"
#undef MINKA_OPCODE
  const auto has_rule = [&](const std::string& name) {
    return std::any_of(examples.begin(), examples.end(), [&](const Example& e) {
      return e.label == name || e.label.starts_with(name + " (");
    });
  };
  std::erase_if(names, has_rule);
  return names;
}

}  // namespace

std::string SupportedOperationsMarkdown() {
  const std::vector<Example> examples = Examples();
  std::vector<Row> rows;
  for (const Example& example : examples) {
    const OpRule rule = RuleOf(example);
    const std::string cells =
        fmt::format("| `{}` | {} | {} |", Signature(rule), PartialText(rule), Remarks(rule));
    const auto same =
        std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.cells == cells; });
    Row& row = same == rows.end() ? rows.emplace_back(Row{{}, cells}) : *same;
    row.labels.push_back(fmt::format("`{}`", example.label));
  }
  std::string text =
      "# Supported operations\n\n"
      "Every row shows one form of its operations. A dimension carries the name of the factor (the "
      "loop) that indexes it; each mesh axis can split one factor that it divides, and with it "
      "every dimension of that name. `whole` dimensions are not split. *Partial operands* are sets "
      "of operands "
      "which may all be sums still owed over an axis; the results are then owed too.\n\n"
      "| operations | dimensions | partial operands | when split |\n|---|---|---|---|\n";
  for (const Row& row : rows) {
    text += fmt::format("| {} {}\n", fmt::join(row.labels, ", "), row.cells);
  }
  text += fmt::format(
      "\nWithout a rule, so run on whole arrays by every device and named in the "
      "plan: `{}`.\n",
      fmt::join(OpcodesWithoutRule(examples), "`, `"));
  return text;
}

}  // namespace minka
