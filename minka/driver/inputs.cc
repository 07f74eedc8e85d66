#include "minka/driver/inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/frontend/random.h"

namespace minka {
namespace {

Literal FromBytes(const Shape& shape, std::string bytes) {
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

// Element i from 32 random bits of the name, the seed and i.
template <typename T, typename Draw>
Literal Drawn(const Shape& shape, ElementType type, const std::string& name, uint64_t seed,
              int64_t num_elements, Draw draw) {
  const uint64_t key = SiteKey(MixKey(seed), SiteConstant(name));
  std::string bytes(static_cast<size_t>(num_elements) * sizeof(T), '\0');
  constexpr int64_t kPiece = 1 << 20;
  const auto num_pieces = static_cast<int>((num_elements + kPiece - 1) / kPiece);
  ForEachInParallel(num_pieces, NumHardwareThreads(), [&](int piece) {
    const int64_t end = std::min(num_elements, (piece + 1) * kPiece);
    for (int64_t i = piece * kPiece; i < end; ++i) {
      const T value = draw(SquaresBits(static_cast<uint64_t>(i), key));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  });
  return FromBytes({type, shape.dims}, std::move(bytes));
}

Literal RandomBits(const Shape& shape, const std::string& name, uint64_t seed) {
  Literal words = Drawn<uint32_t>(shape, shape.type, name, seed, (shape.num_bytes() + 3) / 4,
                                  [](uint32_t bits) { return bits; });
  return FromBytes(shape, words.bytes->substr(0, static_cast<size_t>(shape.num_bytes())));
}

Literal RandomIntegers(const Shape& shape, const std::string& name, uint64_t seed, int64_t bound) {
  const Literal wide =
      Drawn<int64_t>(shape, ElementType::kS64, name, seed, shape.num_elements(),
                     [bound](uint32_t bits) { return static_cast<int64_t>(bits) * bound >> 32; });
  return ConvertLiteral(wide, shape.type);
}

Literal RandomFloats(const Shape& shape, const std::string& name, uint64_t seed, bool is_batch) {
  if (is_batch) {
    const Literal normal = InitialValue({Initializer::Kind::kNormal, 1.0},
                                        {ElementType::kF32, shape.dims}, name, seed);
    return ConvertLiteral(normal, shape.type);
  }
  const auto uniform = [](uint32_t bits) { return bits * 0x1p-32 * 0.04; };
  if (shape.type == ElementType::kF32) {  // most, and as converted below
    return Drawn<float>(shape, shape.type, name, seed, shape.num_elements(),
                        [&](uint32_t bits) { return static_cast<float>(uniform(bits)); });
  }
  return ConvertLiteral(
      Drawn<double>(shape, ElementType::kF64, name, seed, shape.num_elements(), uniform),
      shape.type);
}

// A complex array as twice as many real elements, and the other way.
Shape AsReal(const Shape& shape) {
  Shape real{shape.type == ElementType::kC64 ? ElementType::kF32 : ElementType::kF64, shape.dims};
  real.dims.push_back(2);
  return real;
}

bool IsUnsignedWord(ElementType type) {
  return type == ElementType::kU32 || type == ElementType::kU64;
}

}  // namespace

absl::StatusOr<std::vector<Literal>> InputsFromTensors(const Module& module,
                                                       const TensorFile& file) {
  const Computation& entry = module.entry_computation();
  std::vector<Literal> inputs;
  for (size_t i = 0; i < entry.parameters.size(); ++i) {
    const Instruction& parameter = entry.instructions[entry.parameters[i]];
    const auto tensor = file.tensors.find(std::to_string(i));
    if (tensor == file.tensors.end()) {
      return InvalidArgument("the inputs have no tensor \"{}\" for parameter {} ({}, {})", i, i,
                             parameter.name, ToString(parameter.shape()));
    }
    if (tensor->second.shape != parameter.shape()) {
      return InvalidArgument("input \"{}\" is {}; parameter {} ({}) is {}", i,
                             ToString(tensor->second.shape), i, parameter.name,
                             ToString(parameter.shape()));
    }
    inputs.push_back(FromBytes(tensor->second.shape, tensor->second.bytes));
  }
  for (const auto& [name, tensor] : file.tensors) {
    bool known = false;
    for (size_t i = 0; i < inputs.size() && !known; ++i) known = name == std::to_string(i);
    if (!known) {
      return InvalidArgument("the inputs have a tensor \"{}\"; the module has parameters 0 to {}",
                             name, inputs.size() - 1);
    }
  }
  return inputs;
}

TensorFile ToTensorFile(std::span<const Literal> values) {
  TensorFile file;
  for (size_t i = 0; i < values.size(); ++i) {
    file.tensors[std::to_string(i)] = {values[i].shape, *values[i].bytes};
  }
  return file;
}

absl::StatusOr<Literal> RandomInput(const Step& step, int parameter, uint64_t seed) {
  const Computation& entry = step.module.entry_computation();
  const Shape& shape = entry.instructions[entry.parameters[parameter]].shape();
  const ParameterInfo& info = step.parameters[parameter];
  const std::string name = fmt::format("{}:{}", parameter, info.name);
  if (info.role == ParameterRole::kKey) return RandomBits(shape, name, seed);
  if (IsFloat(shape.type)) {
    return RandomFloats(shape, name, seed, info.role == ParameterRole::kBatch);
  }
  if (IsComplex(shape.type)) {
    const Literal real =
        RandomFloats(AsReal(shape), name, seed, info.role == ParameterRole::kBatch);
    return Literal{shape, real.bytes};
  }
  if (!IsInteger(shape.type) && shape.type != ElementType::kPred) {
    return Unimplemented("parameter {} ({}) is {}: no random values for that type", parameter,
                         info.name, ToString(shape));
  }
  const std::optional<int64_t> bound = IndexBound(step.module, parameter);
  if (!bound && IsUnsignedWord(shape.type)) return RandomBits(shape, name, seed);
  return RandomIntegers(shape, name, seed, bound.value_or(2));
}

absl::StatusOr<std::vector<Literal>> RandomBatch(const Step& step, uint64_t seed) {
  std::vector<Literal> batch;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (step.parameters[i].role != ParameterRole::kBatch) continue;
    ASSIGN_OR_RETURN(batch.emplace_back(), RandomInput(step, static_cast<int>(i), seed));
  }
  return batch;
}

absl::StatusOr<std::vector<Literal>> RandomInputs(const Step& step, uint64_t seed) {
  std::vector<Literal> inputs;
  for (int i = 0; i < static_cast<int>(step.parameters.size()); ++i) {
    ASSIGN_OR_RETURN(Literal input, RandomInput(step, i, seed));
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::vector<Literal> InitialValues(const Step& step,
                                   std::span<const std::optional<Initializer>> initializers,
                                   uint64_t seed) {
  const Computation& entry = step.module.entry_computation();
  std::vector<Literal> values(step.parameters.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!initializers[i]) continue;
    values[i] = InitialValue(*initializers[i], entry.instructions[entry.parameters[i]].shape(),
                             step.parameters[i].name, seed);
  }
  return values;
}

Literal StepKey(uint64_t seed, int64_t step) {
  const uint64_t words[] = {MixKey(seed), MixKey(seed ^ static_cast<uint64_t>(step + 1))};
  const uint32_t key[] = {static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[1])};
  return FromBytes({ElementType::kU32, {2}}, std::string(reinterpret_cast<const char*>(key), 8));
}

}  // namespace minka
