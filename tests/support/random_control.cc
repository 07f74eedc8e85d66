#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "tests/support/program_generator.h"

namespace minka {

void ProgramGenerator::Barrier() {
  const Known x = Pick(kF32), y = Pick(kF32), z = Pick(kPred);
  const Value values[] = {x.value, y.value, z.value};
  const std::vector<Value> kept = builder_.OptBarrier(values);
  Keep(kept[0], x.bound);
  Keep(kept[1], y.bound);
  Keep(kept[2], 1);
}

void ProgramGenerator::While() {
  const Known x = Bounded(Pick(kF32), kLimit / 8);
  const Known y = Bounded(PickLike(kF32, shape(x.value).dims), kLimit / 8);
  const Shape counter{kS32, {}};
  ComputationBuilder body = target_.AddComputation("body");
  {
    const Value i = body.Parameter(counter, "i");
    const Value a = body.Parameter(shape(x.value), "x");
    const Value b = body.Parameter(shape(x.value), "y");
    const Value as_float = body.Convert(i, kF32);
    const Dims& dims = shape(x.value).dims;
    const Value spread = dims.empty() ? as_float : body.Broadcast(as_float, dims, {});
    const Value sum = body.Binary(Opcode::kAdd, body.Binary(Opcode::kAdd, a, b), spread);
    body.SetResults({body.Binary(Opcode::kAdd, i, body.Scalar(kS32, 1)), sum, b});
  }
  ComputationBuilder condition = target_.AddComputation("condition");
  {
    const Value i = condition.Parameter(counter, "i");
    condition.Parameter(shape(x.value), "x");
    condition.Parameter(shape(x.value), "y");
    condition.SetResults(
        {condition.Compare(CompareAttributes::Direction::kLt, i, condition.Scalar(kS32, 3))});
  }
  Instruction loop{.opcode = Opcode::kWhile,
                   .operands = {builder_.Scalar(kS32, 0), x.value, y.value},
                   .called = {target_.id(body), target_.id(condition)}};
  const Value first = builder_.Append(std::move(loop));
  Keep({first.instruction, 1}, x.bound + 3 * y.bound + 3);
}

void ProgramGenerator::Conditional() {
  const Known predicate = PickLike(kPred, {});
  const Known x = Pick(kF32);
  std::vector<ComputationId> branches;
  for (const Opcode opcode : {Opcode::kNegate, Opcode::kAbs}) {
    ComputationBuilder branch = target_.AddComputation("branch");
    const Value argument = branch.Parameter(shape(x.value), "x");
    branch.SetResults({branch.Unary(opcode, argument)});
    branches.push_back(target_.id(branch));
  }
  Keep(builder_.Append({.opcode = Opcode::kConditional,
                        .operands = {predicate.value, x.value, x.value},
                        .called = branches}),
       x.bound);
}

void ProgramGenerator::LoopWithCollectives() {
  const Known x = Bounded(Pick(kF32, 2), 8);
  if (rank(x) != 2) return;
  const int64_t rows = shape(x.value).dims[0], columns = RandomDims(1)[0];
  const Known h = Bounded(PickLike(kF32, {rows, columns}), 8);
  const Dims sum_dims = {shape(x.value).dims[1], columns};
  const Known sum = Bounded(PickLike(kF32, sum_dims), kLimit / 8);
  const Shape shapes[] = {
      {kS32, {}}, {kF32, sum_dims}, {kF32, {3, rows, columns}}, shape(h.value), shape(x.value)};
  const auto add_parameters = [&](ComputationBuilder& called) {
    std::vector<Value> values;
    for (const Shape& carried : shapes) {
      values.push_back(called.Parameter(carried, fmt::format("c{}", values.size())));
    }
    return values;
  };
  ComputationBuilder body = target_.AddComputation("body");
  const std::vector<Value> in = add_parameters(body);
  const Value product = body.Dot(in[4], in[3], {{0}, {0}, {}, {}});
  const Value zero = body.Scalar(kS32, 0);
  const Value starts[] = {in[0], zero, zero};
  const Value saved =
      body.DynamicUpdateSlice(in[2], body.Reshape(in[3], {1, rows, columns}), starts);
  const int64_t dim = Below(2);
  const Value total = body.Reduce(in[3], body.Scalar(kF32, 0), {dim}, Opcode::kAdd);
  const Value spread = body.Broadcast(total, {rows, columns}, {1 - dim});
  const Value next = body.Binary(Opcode::kSubtract, in[3], spread);
  body.SetResults({body.Binary(Opcode::kAdd, in[0], body.Scalar(kS32, 1)),
                   body.Binary(Opcode::kAdd, in[1], product), saved,
                   body.Clamp(body.FullLike(next, -8), next, body.FullLike(next, 8)), in[4]});
  ComputationBuilder condition = target_.AddComputation("condition");
  const Value count = add_parameters(condition)[0];
  condition.SetResults(
      {condition.Compare(CompareAttributes::Direction::kLt, count, condition.Scalar(kS32, 3))});
  const Value stack = builder_.Broadcast(builder_.Scalar(kF32, 0), shapes[2].dims, {});
  const Value loop =
      builder_.Append({.opcode = Opcode::kWhile,
                       .operands = {builder_.Scalar(kS32, 0), sum.value, stack, h.value, x.value},
                       .called = {target_.id(body), target_.id(condition)}});
  Keep({loop.instruction, 1}, sum.bound + 3 * 64 * static_cast<double>(rows));
  Keep({loop.instruction, 2}, 8);
  Keep({loop.instruction, 3}, 8);
}

void ProgramGenerator::ConditionalWithCollectives() {
  const Known x = Bounded(Pick(kF32, 2), 4096);
  if (rank(x) != 2) return;
  const Dims dims = shape(x.value).dims;
  const int64_t dim = Below(2);
  ComputationBuilder centred = target_.AddComputation("centred");
  const Value a = centred.Parameter(shape(x.value), "x");
  const Value total = centred.Reduce(a, centred.Scalar(kF32, 0), {dim}, Opcode::kAdd);
  centred.SetResults(
      {centred.Binary(Opcode::kSubtract, a, centred.Broadcast(total, dims, {1 - dim})),
       centred.Dot(a, a, {{dim}, {dim}, {}, {}})});
  ComputationBuilder plain = target_.AddComputation("plain");
  const Value b = plain.Parameter(shape(x.value), "x");
  const int64_t other = dims[1 - dim];
  plain.SetResults(
      {plain.Unary(Opcode::kAbs, b), plain.Broadcast(plain.Scalar(kF32, 1), {other, other}, {})});
  const Known y = PickLike(kF32, dims);
  const Value number = builder_.Convert(PickLike(kPred, {}).value, kS32);
  const Known small = Bounded(x, 128);
  const Value first = builder_.Append({.opcode = Opcode::kConditional,
                                       .operands = {number, small.value, y.value},
                                       .called = {target_.id(centred), target_.id(plain)}});
  Keep({first.instruction, 0}, std::max(y.bound, 128 * 17.0));
  Keep({first.instruction, 1}, 128 * 128 * 16.0);
}

}  // namespace minka
