#include "lapack_calls.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "lu.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo.pb.h"
#include "minka/ir/replace_by_calls.h"
#include "triangular_solve.h"

namespace minka {
namespace {

// "potrf" of "lapack_spotrf_ffi", whose letter behind the prefix is the type; empty: no such call.
std::string_view RoutineOf(const Instruction& instruction) {
  if (instruction.opcode != Opcode::kCustomCall) return "";
  std::string_view name = instruction.As<OpaqueAttributes>().name;
  constexpr std::string_view kPrefix = "lapack_", kSuffix = "_ffi";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return "";
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  return name.empty() ? name : name.substr(1);
}

// The letter that an attribute of the call is: backend_config holds "{uplo = 76 : ui8, ...}".
char LetterOf(const Instruction& call, std::string_view attribute) {
  hlo::HloInstructionProto proto;
  if (!call.undecoded || !proto.ParseFromString(*call.undecoded)) return 0;
  const std::string& config = proto.backend_config();
  const std::string wanted = fmt::format("{} = ", attribute);
  const size_t found = config.find(wanted);
  if (found == std::string::npos) return 0;
  int letter = 0;
  for (size_t i = found + wanted.size(); i < config.size() && config[i] >= '0' && config[i] <= '9';
       ++i) {
    letter = letter * 10 + (config[i] - '0');
  }
  return static_cast<char>(letter);
}

// Writes one call anew, on parameters that are its operands.
class Replacement {
 public:
  Replacement(const Computation& computation, const Instruction& call)
      : call_(call), module_(call.name), b_(module_.Entry()) {
    b_.SetOpName(call.op_name);
    for (const Value operand : call.operands) {
      operands_.push_back(
          b_.Parameter(computation.shape(operand), fmt::format("operand{}", operands_.size())));
    }
  }

  Module Run(const std::vector<Value>& results) && {
    b_.SetResults(results);
    absl::StatusOr<Module> module = std::move(module_).Finish();
    MINKA_CHECK(module.ok(), "{}: {}", call_.name, Message(module.status()));
    return *std::move(module);
  }

  std::vector<Value> Cholesky() {
    hlo::HloInstructionProto fields;
    fields.mutable_cholesky_options()->set_lower(IsLower());
    return {Opaque(Opcode::kOther, "cholesky", 1, fields)[0], Success(1)};
  }

  std::vector<Value> TriangularSolve() {
    using Transpose = TriangularForm::Transpose;
    const char transpose = LetterOf(call_, "trans_x");
    const TriangularForm form{.is_left = LetterOf(call_, "side") == 'L',
                              .is_lower = IsLower(),
                              .has_unit_diagonal = LetterOf(call_, "diag") == 'U',
                              .transpose = transpose == 'C'   ? Transpose::kAdjoint
                                           : transpose == 'T' ? Transpose::kTranspose
                                                              : Transpose::kNone};
    return {minka::TriangularSolve(b_, operands_[0], operands_[1], form)};
  }

  // The same packed form in both: R above, reflectors below the diagonal.
  std::vector<Value> Qr() { return Opaque(Opcode::kCustomCall, "Qr", 2, {}); }

  std::vector<Value> Reflectors() {
    return Opaque(Opcode::kCustomCall, "ProductOfElementaryHouseholderReflectors", 1, {});
  }

  std::vector<Value> Lu() {
    const LuFactors lu = FactorLu(b_, operands_[0]);
    return {lu.factors, lu.pivots, Success(2)};
  }

  std::vector<Value> Eigh() {
    if (b_.shape(operands_[0]).dims.back() == 1) return EighOfNumbers();
    // Lower or upper triangle, ascending order, as many sweeps and as exact as JAX has it on TPUs.
    hlo::HloInstructionProto fields;
    fields.set_backend_config(fmt::format("{},1,100,1e-6", IsLower() ? 1 : 0));
    std::vector<Value> results = Opaque(Opcode::kCustomCall, "Eigh", 2, fields);
    results.push_back(Success(2));
    return results;
  }

 private:
  bool IsLower() const { return LetterOf(call_, "uplo") == 'L'; }

  std::vector<Value> EighOfNumbers() {
    const Value x = operands_[0];
    return {b_.FullLike(x, 1), b_.Reshape(x, call_.results[1].dims), Success(2)};
  }

  // With the call's first results.
  std::vector<Value> Opaque(Opcode opcode, std::string name, int32_t num_results,
                            const hlo::HloInstructionProto& fields) {
    const Value first =
        b_.Append({.opcode = opcode,
                   .operands = operands_,
                   .results = {call_.results.begin(), call_.results.begin() + num_results},
                   .attributes = OpaqueAttributes{.name = std::move(name)},
                   .undecoded = std::make_shared<std::string>(fields.SerializeAsString())});
    std::vector<Value> results;
    for (int32_t i = 0; i < num_results; ++i) results.push_back({first.instruction, i});
    return results;
  }

  // What LAPACK says when all went well.
  Value Success(size_t result) {
    const Shape& shape = call_.results[result];
    const Value zero = b_.Scalar(shape.type, 0);
    return shape.dims.empty() ? zero : b_.Broadcast(zero, shape.dims, {});
  }

  const Instruction& call_;
  ModuleBuilder module_;
  ComputationBuilder b_;
  std::vector<Value> operands_;
};

std::optional<Module> ReplacementOf(const Computation& computation, const Instruction& call) {
  const std::string_view routine = RoutineOf(call);
  const auto written = [&](std::vector<Value> (Replacement::*write)()) {
    Replacement replacement(computation, call);
    const std::vector<Value> results = (replacement.*write)();
    return std::move(replacement).Run(results);
  };
  if (routine == "potrf") return written(&Replacement::Cholesky);
  if (routine == "trsm") return written(&Replacement::TriangularSolve);
  if (routine == "geqrf") return written(&Replacement::Qr);
  if (routine == "orgqr" || routine == "ungqr") return written(&Replacement::Reflectors);
  if (routine == "getrf") return written(&Replacement::Lu);
  if (routine == "syevd") return written(&Replacement::Eigh);
  return std::nullopt;
}

}  // namespace

Module ReplaceLapackCalls(const Module& module) { return ReplaceByCalls(module, ReplacementOf); }

}  // namespace minka
