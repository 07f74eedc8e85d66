#include "tests/support/random_modules.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/ir/simplify.h"
#include "tests/support/program_generator.h"

namespace minka {
namespace {

Literal IntegerLiteral(const Shape& shape, const std::vector<int64_t>& values) {
  std::string bytes;
  for (const int64_t value : values) {
    bytes += *ScalarLiteral(shape.type, static_cast<double>(value)).bytes;
  }
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

}  // namespace

RandomProgram ProgramGenerator::Run() {
  AddParameter(kF32, RandomDims(2));
  AddParameter(kF32, RandomDims(2));
  AddParameter(kF32, RandomDims(3));
  AddParameter(kF32, RandomDims(1));
  AddParameter(kS32, RandomDims(1));
  AddParameter(kPred, RandomDims(2));
  for (int i = 0; i < options_.num_operations; ++i) {
    Step();
    if (i % 2 == 0) Elementwise();
  }
  return Finish();
}

ProgramGenerator::Dims ProgramGenerator::RandomDims(int rank) {
  static constexpr int64_t kSizes[] = {2, 4, 8, 8, 12, 16, 3};
  Dims dims;
  while (static_cast<int>(dims.size()) < rank) {
    dims.push_back(OneOf(kSizes));
    if (Product(dims) > kMaxElements) dims.back() = 2;
  }
  return dims;
}

ProgramGenerator::Known ProgramGenerator::Keep(Value value, double bound) {
  known_.push_back({value, bound});
  return known_.back();
}

ProgramGenerator::Known ProgramGenerator::AddParameter(ElementType type, const Dims& dims) {
  const int64_t low = type == kPred ? 0 : type == kS32 ? -3 : -4;
  const int64_t high = type == kPred ? 1 : type == kS32 ? 17 : 4;
  std::vector<int64_t> values(static_cast<size_t>(Product(dims)));
  for (int64_t& value : values) value = Between(low, high);
  inputs_.push_back(IntegerLiteral({type, dims}, values));
  const std::string name = fmt::format("p{}", inputs_.size() - 1);
  return Keep(builder_.Parameter({type, dims}, name), static_cast<double>(high));
}

ProgramGenerator::Known ProgramGenerator::Pick(ElementType type, int min_rank) {
  for (int attempt = 0; attempt < 12; ++attempt) {
    const auto size = static_cast<int64_t>(known_.size());
    const Known& x = known_[std::max(Below(size), Below(size))];
    if (shape(x.value).type == type && rank(x) >= min_rank) return x;
  }
  return Create(type, RandomDims(std::max(min_rank, 1)));
}

ProgramGenerator::Known ProgramGenerator::PickSplittable(ElementType type) {
  Known x = Pick(type, 1);
  const auto is_even = [](int64_t dim) { return dim % 2 == 0; };
  for (int attempt = 0; attempt < 4; ++attempt) {
    const Dims& dims = shape(x.value).dims;
    if (std::any_of(dims.begin(), dims.end(), is_even)) return x;
    x = Pick(type, 1);
  }
  return x;
}

ProgramGenerator::Known ProgramGenerator::PickLike(ElementType type, const Dims& dims) {
  std::vector<Known> same;
  for (const Known& x : known_) {
    if (shape(x.value) == Shape{type, dims}) same.push_back(x);
  }
  if (!same.empty() && Chance(80)) return same[Below(static_cast<int64_t>(same.size()))];
  return Create(type, dims);
}

ProgramGenerator::Known ProgramGenerator::Create(ElementType type, const Dims& dims) {
  if (inputs_.size() < 12 && Chance(40)) return AddParameter(type, dims);
  if (type != kPred && !dims.empty() && Chance(30)) {
    const int64_t dim = Below(static_cast<int64_t>(dims.size()));
    return Keep(builder_.Iota({type, dims}, dim), static_cast<double>(dims[dim]));
  }
  if (Chance(50)) {
    const Value scalar = builder_.Scalar(type, static_cast<double>(Below(2)));
    return Keep(dims.empty() ? scalar : builder_.Broadcast(scalar, dims, {}), 1);
  }
  std::vector<int64_t> values(static_cast<size_t>(Product(dims)));
  for (int64_t& value : values) value = type == kPred ? Below(2) : Between(-3, 3);
  return Keep(builder_.Constant(IntegerLiteral({type, dims}, values)), 3);
}

ProgramGenerator::Known ProgramGenerator::Bounded(Known x, double limit) {
  if (x.bound <= limit) return x;
  const Value low = builder_.FullLike(x.value, -limit);
  const Value high = builder_.FullLike(x.value, limit);
  return Keep(builder_.Clamp(low, x.value, high), limit);
}

void ProgramGenerator::Step() {
  using Method = void (ProgramGenerator::*)();
  static constexpr Method kMethods[] = {&ProgramGenerator::Dot,
                                        &ProgramGenerator::Dot,
                                        &ProgramGenerator::Dot,
                                        &ProgramGenerator::Reduce,
                                        &ProgramGenerator::Reduce,
                                        &ProgramGenerator::Reduce,
                                        &ProgramGenerator::Compare,
                                        &ProgramGenerator::Select,
                                        &ProgramGenerator::Clamp,
                                        &ProgramGenerator::Convert,
                                        &ProgramGenerator::Convert,
                                        &ProgramGenerator::Broadcast,
                                        &ProgramGenerator::Broadcast,
                                        &ProgramGenerator::Reshape,
                                        &ProgramGenerator::Reshape,
                                        &ProgramGenerator::Transpose,
                                        &ProgramGenerator::Slice,
                                        &ProgramGenerator::Pad,
                                        &ProgramGenerator::Concatenate,
                                        &ProgramGenerator::Reverse,
                                        &ProgramGenerator::Reverse,
                                        &ProgramGenerator::Create1,
                                        &ProgramGenerator::DynamicSlice,
                                        &ProgramGenerator::DynamicUpdateSlice,
                                        &ProgramGenerator::Gather,
                                        &ProgramGenerator::Gather,
                                        &ProgramGenerator::Scatter,
                                        &ProgramGenerator::Scatter,
                                        &ProgramGenerator::Barrier,
                                        &ProgramGenerator::While,
                                        &ProgramGenerator::Sort,
                                        &ProgramGenerator::Map,
                                        &ProgramGenerator::Convolution,
                                        &ProgramGenerator::Convolution,
                                        &ProgramGenerator::Convolution,
                                        &ProgramGenerator::Convolution,
                                        &ProgramGenerator::Pool,
                                        &ProgramGenerator::Pool,
                                        &ProgramGenerator::Pool,
                                        &ProgramGenerator::Pool,
                                        &ProgramGenerator::SelectAndScatter,
                                        &ProgramGenerator::SelectAndScatter,
                                        &ProgramGenerator::BatchNorm,
                                        &ProgramGenerator::BatchNorm,
                                        &ProgramGenerator::BatchNorm,
                                        &ProgramGenerator::RandomBits,
                                        &ProgramGenerator::Bitcast,
                                        &ProgramGenerator::ReduceOther,
                                        &ProgramGenerator::ReduceOther,
                                        &ProgramGenerator::ReduceOther,
                                        &ProgramGenerator::Conditional,
                                        &ProgramGenerator::Argmax,
                                        &ProgramGenerator::SortPairs,
                                        &ProgramGenerator::TopK,
                                        &ProgramGenerator::LoopWithCollectives,
                                        &ProgramGenerator::LoopWithCollectives,
                                        &ProgramGenerator::ConditionalWithCollectives,
                                        &ProgramGenerator::ComplexNumbers,
                                        &ProgramGenerator::ComplexNumbers,
                                        &ProgramGenerator::GatherVectors,
                                        &ProgramGenerator::GatherWindows,
                                        &ProgramGenerator::ScatterWindows};
  (this->*OneOf(kMethods))();
}

RandomProgram ProgramGenerator::Finish() {
  for (int i = 0; i < options_.num_inexact; ++i) Inexact();
  const UseTable uses(builder_.computation());
  std::vector<Value> results;
  for (const Known& x : known_) {
    const bool is_input = builder_.computation().instruction(x.value).opcode == Opcode::kParameter;
    if (uses.uses(x.value).empty() && !is_input) results.push_back(x.value);
  }
  RandomProgram program;
  program.noise.assign(results.size(), 0);
  for (const Rounded& x : inexact_) {
    results.push_back(x.value);
    program.noise.push_back(x.noise);
  }
  AddAliases(results);
  builder_.SetResults(results);
  absl::StatusOr<Module> module = std::move(target_).Finish();
  MINKA_CHECK(module.ok(), "random program: {}", std::string(module.status().message()));
  program.module = EliminateDeadCode(EliminateCommonSubexpressions(*module));
  program.inputs = std::move(inputs_);
  return program;
}

void ProgramGenerator::AddAliases(const std::vector<Value>& results) {
  std::vector<bool> is_taken(results.size());
  const std::vector<InstructionId> parameters = builder_.computation().parameters;
  for (size_t parameter = 0; parameter < parameters.size(); ++parameter) {
    for (size_t result = 0; result < results.size(); ++result) {
      if (is_taken[result] || shape(results[result]) != shape({parameters[parameter], 0}) ||
          !Chance(50)) {
        continue;
      }
      is_taken[result] = true;
      target_.AddAlias({static_cast<int>(result), static_cast<int>(parameter)});
      break;
    }
  }
}

RandomProgram MakeRandomProgram(uint64_t seed, const RandomProgramOptions& options) {
  return ProgramGenerator(seed, options).Run();
}

}  // namespace minka
