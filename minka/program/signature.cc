#include "minka/program/signature.h"

#include <utility>

namespace minka {

MeshSignature SignatureOf(const Module& module, std::vector<Sharding> parameters,
                          std::vector<Sharding> results) {
  MeshSignature signature{.parameter_shardings = std::move(parameters),
                          .result_shardings = std::move(results)};
  const Computation& entry = module.entry_computation();
  for (const InstructionId id : entry.parameters) {
    signature.parameters.push_back(entry.instructions[id].shape());
  }
  for (const Value result : entry.results) signature.results.push_back(entry.shape(result));
  return signature;
}

MeshSignature SignatureOf(const Module& module) {
  MeshSignature signature = SignatureOf(module, {}, {});
  for (const Shape& shape : signature.parameters) {
    signature.parameter_shardings.push_back(Sharding::Replicated(shape.rank()));
  }
  for (const Shape& shape : signature.results) {
    signature.result_shardings.push_back(Sharding::Replicated(shape.rank()));
  }
  return signature;
}

}  // namespace minka
