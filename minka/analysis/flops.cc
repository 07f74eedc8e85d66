#include "minka/analysis/flops.h"

#include <algorithm>
#include <cmath>

#include "minka/analysis/trip_count.h"
#include "minka/ir/window.h"

namespace minka {
namespace {

int64_t OperandBytes(const Computation& computation, const Instruction& instruction,
                     size_t first = 0) {
  int64_t bytes = 0;
  for (size_t i = first; i < instruction.operands.size(); ++i) {
    bytes += computation.shape(instruction.operands[i]).num_bytes();
  }
  return bytes;
}

int64_t ResultBytes(const Instruction& instruction) {
  int64_t bytes = 0;
  for (const Shape& result : instruction.results) bytes += result.num_bytes();
  return bytes;
}

double ResultElements(const Instruction& instruction) {
  double elements = 0;
  for (const Shape& result : instruction.results) {
    elements += static_cast<double>(result.num_elements());
  }
  return elements;
}

double DotFlops(const Computation& computation, const Instruction& dot) {
  const Shape& lhs = computation.shape(dot.operands[0]);
  auto contracted = 1.0;
  for (const int64_t dim : dot.As<DotAttributes>().lhs_contracting) {
    contracted *= static_cast<double>(lhs.dims[dim]);
  }
  return 2 * contracted * ResultElements(dot);
}

double ConvolutionFlops(const Computation& computation, const Instruction& convolution) {
  const auto& a = convolution.As<ConvolutionAttributes>();
  const Shape& input = computation.shape(convolution.operands[0]);
  const Shape& kernel = computation.shape(convolution.operands[1]);
  const Shape& result = convolution.shape();
  double products = static_cast<double>(kernel.dims[a.kernel_input_feature]) *
                    static_cast<double>(result.dims[a.output_batch]) *
                    static_cast<double>(result.dims[a.output_feature]);
  for (size_t i = 0; i < a.window.size(); ++i) {
    products *= NumWindowTaps(input.dims[a.input_spatial[i]], a.window[i]);
  }
  return 2 * products;
}

// Elements that the window meets over all its positions.
double WindowElements(const Shape& base, const std::vector<WindowDim>& window) {
  double elements = 1;
  for (int dim = 0; dim < base.rank(); ++dim)
    elements *= NumWindowTaps(base.dims[dim], window[dim]);
  return elements;
}

InstructionWork Times(InstructionWork work, double count) {
  work.flops *= count;
  work.elementwise *= count;
  work.transcendentals *= count;
  work.bytes = static_cast<int64_t>(static_cast<double>(work.bytes) * count);
  return work;
}

// `runs` runs of a scalar computation inside a loop over arrays, whose own bytes do not count.
InstructionWork ScalarRuns(const Module& module, ComputationId id, double runs) {
  InstructionWork work = Times(WorkOf(module, module.computations[id]), runs);
  work.bytes = 0;
  return work;
}

double Total(const InstructionWork& work) { return work.flops + work.elementwise; }

InstructionWork MostExpensiveBranch(const Module& module, const Instruction& conditional) {
  InstructionWork most;
  for (const ComputationId branch : conditional.called) {
    const InstructionWork work = WorkOf(module, module.computations[branch]);
    if (Total(work) > Total(most)) most = work;
  }
  return most;
}

InstructionWork LoopWork(const Module& module, const Computation& computation, InstructionId id) {
  const Instruction& loop = computation.instructions[id];
  InstructionWork once = WorkOf(module, module.computations[loop.called[0]]);
  once += WorkOf(module, module.computations[loop.called[1]]);
  return Times(once, static_cast<double>(TripCount(module, computation, id).value_or(1)));
}

double SortComparisons(const Computation& computation, const Instruction& sort) {
  const Shape& shape = computation.shape(sort.operands[0]);
  const auto sorted = static_cast<double>(shape.dims[sort.As<DimensionsAttributes>().dims[0]]);
  return static_cast<double>(shape.num_elements()) * std::log2(std::max(sorted, 2.0));
}

// What is computed; bytes come on top.
InstructionWork ComputeOf(const Module& module, const Computation& computation, InstructionId id) {
  const Instruction& instruction = computation.instructions[id];
  const auto elements_of = [&](size_t operand) {
    return static_cast<double>(computation.shape(instruction.operands[operand]).num_elements());
  };
  switch (instruction.opcode) {
    case Opcode::kDot:
      return {.flops = DotFlops(computation, instruction)};
    case Opcode::kConvolution:
      return {.flops = ConvolutionFlops(computation, instruction)};
    case Opcode::kReduce:
    case Opcode::kMap:
      return ScalarRuns(module, instruction.called[0], elements_of(0));
    case Opcode::kReduceWindow:
      return ScalarRuns(module, instruction.called[0],
                        WindowElements(computation.shape(instruction.operands[0]),
                                       instruction.As<WindowAttributes>().dims));
    case Opcode::kSelectAndScatter: {
      InstructionWork work = ScalarRuns(module, instruction.called[0],
                                        WindowElements(computation.shape(instruction.operands[0]),
                                                       instruction.As<WindowAttributes>().dims));
      return work += ScalarRuns(module, instruction.called[1], elements_of(1));
    }
    case Opcode::kBatchNormInference:
      return {.elementwise = 2 * elements_of(0)};
    case Opcode::kBatchNormTraining:  // two sums, then (x - mean) scale + offset
      return {.elementwise = 6 * elements_of(0)};
    case Opcode::kBatchNormGrad:
      return {.elementwise = 9 * elements_of(0)};
    case Opcode::kScatter:
      return ScalarRuns(module, instruction.called[0],
                        elements_of(instruction.operands.size() - 1));
    case Opcode::kTopK:
      return {.elementwise = elements_of(0)};
    case Opcode::kSort:
      return ScalarRuns(module, instruction.called[0], SortComparisons(computation, instruction));
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
      return ScalarRuns(module, instruction.called[0], elements_of(0));
    default: {
      const double elements = ResultElements(instruction);
      return {.elementwise = elements * ElementWeight(instruction.opcode),
              .transcendentals = IsTranscendental(instruction.opcode) ? elements : 0};
    }
  }
}

int64_t BytesOf(const Computation& computation, const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kParameter:
    case Opcode::kConstant:
    case Opcode::kReshape:
    case Opcode::kOptBarrier:
      return 0;
    case Opcode::kSlice:
    case Opcode::kDynamicSlice:
    case Opcode::kGather:
      return 2 * ResultBytes(instruction) + OperandBytes(computation, instruction, 1);
    case Opcode::kDynamicUpdateSlice:  // in place: the update is read and written
      return OperandBytes(computation, instruction, 1) +
             computation.shape(instruction.operands[1]).num_bytes();
    case Opcode::kScatter: {  // in place: the touched elements are read and written
      const size_t num_tables = instruction.operands.size() / 2;
      return OperandBytes(computation, instruction, num_tables) +
             2 * OperandBytes(computation, instruction, num_tables + 1);
    }
    default:
      return OperandBytes(computation, instruction) + ResultBytes(instruction);
  }
}

}  // namespace

InstructionWork& InstructionWork::operator+=(const InstructionWork& other) {
  flops += other.flops;
  elementwise += other.elementwise;
  transcendentals += other.transcendentals;
  bytes += other.bytes;
  return *this;
}

InstructionWork WorkOf(const Module& module, const Computation& computation, InstructionId id) {
  const Instruction& instruction = computation.instructions[id];
  switch (instruction.opcode) {
    case Opcode::kWhile:
      return LoopWork(module, computation, id);
    case Opcode::kConditional:
      return MostExpensiveBranch(module, instruction);
    case Opcode::kCall:
      return WorkOf(module, module.computations[instruction.called[0]]);
    default: {
      InstructionWork work = ComputeOf(module, computation, id);
      work.bytes = BytesOf(computation, instruction);
      return work;
    }
  }
}

InstructionWork WorkOf(const Module& module, const Computation& computation) {
  InstructionWork total;
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    total += WorkOf(module, computation, id);
  }
  return total;
}

// Roughly the vector instructions of XLA:CPU's expansions: a division or root is a long-latency
// instruction, exp and log are polynomials of degree 5 to 8 with range reduction, the others are
// built from these.
double ElementWeight(Opcode opcode) {
  switch (opcode) {
    case Opcode::kDivide:
    case Opcode::kRemainder:
    case Opcode::kRsqrt:
    case Opcode::kSqrt:
      return 4;
    case Opcode::kExponential:
    case Opcode::kExponentialMinusOne:
    case Opcode::kLog:
    case Opcode::kLogPlusOne:
    case Opcode::kTanh:
      return 12;
    case Opcode::kLogistic:
    case Opcode::kCosine:
    case Opcode::kSine:
    case Opcode::kCbrt:
    case Opcode::kErf:
    case Opcode::kRng:
    case Opcode::kRngBitGenerator:
      return 16;
    case Opcode::kAcos:
    case Opcode::kAcosh:
    case Opcode::kAsin:
    case Opcode::kAsinh:
    case Opcode::kAtan2:
    case Opcode::kAtanh:
    case Opcode::kCosh:
    case Opcode::kPower:
    case Opcode::kSinh:
    case Opcode::kTan:
      return 24;
    case Opcode::kCopy:
      return 0;
    default:
      return IsElementwise(opcode) ? 1 : 0;
  }
}

bool IsTranscendental(Opcode opcode) { return IsElementwise(opcode) && ElementWeight(opcode) > 4; }

}  // namespace minka
