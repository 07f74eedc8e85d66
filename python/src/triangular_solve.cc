#include "triangular_solve.h"

#include <memory>
#include <string>

#include "minka/ir/hlo.pb.h"

namespace minka {

Value TriangularSolve(ComputationBuilder& b, Value a, Value y, const TriangularForm& form) {
  hlo::HloInstructionProto fields;
  hlo::TriangularSolveOptions& options = *fields.mutable_triangular_solve_options();
  options.set_left_side(form.is_left);
  options.set_lower(form.is_lower);
  options.set_unit_diagonal(form.has_unit_diagonal);
  options.set_transpose_a(static_cast<int>(form.transpose));
  return b.Append({.opcode = Opcode::kOther,
                   .operands = {a, y},
                   .results = {b.shape(y)},
                   .attributes = OpaqueAttributes{.name = "triangular-solve"},
                   .undecoded = std::make_shared<std::string>(fields.SerializeAsString())});
}

}  // namespace minka
