#include "minka/ir/expand_batch_norm.h"

#include <optional>
#include <utility>
#include <vector>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/replace_by_calls.h"

namespace minka {
namespace {

bool IsBatchNorm(Opcode opcode) {
  return opcode == Opcode::kBatchNormTraining || opcode == Opcode::kBatchNormInference ||
         opcode == Opcode::kBatchNormGrad;
}

// Writes the body of one instruction.
class Expansion {
 public:
  Expansion(const Computation& computation, const Instruction& instruction)
      : instruction_(instruction),
        attributes_(instruction.As<BatchNormAttributes>()),
        module_("batch_norm"),
        b_(module_.Entry()) {
    b_.SetOpName(instruction.op_name);
    const Shape& x = computation.shape(instruction.operands[0]);
    type_ = x.type == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
    dims_ = x.dims;
    for (int64_t dim = 0; dim < x.rank(); ++dim) {
      if (dim != attributes_.feature_index) reduced_.push_back(dim);
    }
    num_examples_ = 1;
    for (const int64_t dim : reduced_) num_examples_ *= static_cast<double>(dims_[dim]);
    for (const Value operand : instruction.operands) {
      parameters_.push_back(b_.Parameter(computation.shape(operand), "operand"));
    }
    // After all parameters, whose numbers follow their places.
    for (Value& parameter : parameters_) parameter = b_.Convert(parameter, type_);
  }

  Module Run() && {
    std::vector<Value> results = Results();
    for (size_t i = 0; i < results.size(); ++i) {
      results[i] = b_.Convert(results[i], instruction_.results[i].type);
    }
    b_.SetResults(results);
    absl::StatusOr<Module> module = std::move(module_).Finish();
    MINKA_CHECK(module.ok(), "{}: {}", OpcodeName(instruction_.opcode), Message(module.status()));
    return *std::move(module);
  }

 private:
  Value Add(Value x, Value y) { return b_.Binary(Opcode::kAdd, x, y); }
  Value Subtract(Value x, Value y) { return b_.Binary(Opcode::kSubtract, x, y); }
  Value Multiply(Value x, Value y) { return b_.Binary(Opcode::kMultiply, x, y); }
  Value Times(Value x, double factor) { return Multiply(x, b_.FullLike(x, factor)); }
  Value Spread(Value vector) { return b_.Broadcast(vector, dims_, {attributes_.feature_index}); }
  Value Sum(Value x) { return b_.Reduce(x, b_.Scalar(type_, 0), reduced_, Opcode::kAdd); }
  Value InverseDeviation(Value variance) {
    return b_.Unary(Opcode::kRsqrt, Add(variance, b_.FullLike(variance, attributes_.epsilon)));
  }

  Value Normalised(Value mean, Value variance) {
    const Value slope = Multiply(parameters_[1], InverseDeviation(variance));
    const Value centered = Subtract(parameters_[0], Spread(mean));
    return Add(Multiply(centered, Spread(slope)), Spread(parameters_[2]));
  }

  std::vector<Value> Results() {
    switch (instruction_.opcode) {
      case Opcode::kBatchNormInference:
        return {Normalised(parameters_[3], parameters_[4])};
      case Opcode::kBatchNormTraining: {
        const Value x = parameters_[0];
        const Value mean = Times(Sum(x), 1 / num_examples_);
        const Value difference =
            Subtract(Times(Sum(Multiply(x, x)), 1 / num_examples_), Multiply(mean, mean));
        // Rounding must not make it negative.
        const Value variance = b_.Binary(Opcode::kMaximum, difference, b_.FullLike(difference, 0));
        return {Normalised(mean, variance), mean, variance};
      }
      default:
        return Gradients();
    }
  }

  // Ioffe and Szegedy (arXiv:1502.03167, section 3), with r = 1 / sqrt(variance + epsilon):
  // scale r (g - sum(g) / n - (x - mean) r^2 sum(g (x - mean)) / n).
  std::vector<Value> Gradients() {
    const Value scale = parameters_[1], g = parameters_[4];
    const Value centered = Subtract(parameters_[0], Spread(parameters_[2]));
    const Value r = InverseDeviation(parameters_[3]);
    const Value sum = Sum(g);
    const Value moment = Sum(Multiply(g, centered));
    const Value slope = Times(Multiply(Multiply(r, r), moment), 1 / num_examples_);
    const Value inner = Subtract(Subtract(g, Spread(Times(sum, 1 / num_examples_))),
                                 Multiply(centered, Spread(slope)));
    return {Multiply(Spread(Multiply(scale, r)), inner), Multiply(moment, r), sum};
  }

  const Instruction& instruction_;
  const BatchNormAttributes attributes_;
  ModuleBuilder module_;
  ComputationBuilder b_;
  ElementType type_ = ElementType::kF32;
  std::vector<int64_t> dims_, reduced_;
  double num_examples_ = 1;
  std::vector<Value> parameters_;
};

}  // namespace

Module ExpandBatchNorm(Module module) {
  return ReplaceByCalls(std::move(module),
                        [](const Computation& computation, const Instruction& instruction) {
                          return IsBatchNorm(instruction.opcode)
                                     ? std::optional(Expansion(computation, instruction).Run())
                                     : std::nullopt;
                        });
}

}  // namespace minka
