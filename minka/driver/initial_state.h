// State made where a training step wants it: a program of initial values is planned for each mesh
// with the step's placement and runs there, so that no device makes, and nobody ships, more of it
// than that device keeps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/frontend/parameters.h"
#include "minka/ir/step.h"
#include "minka/lowering/stack_rows.h"
#include "minka/runtime/mesh/distributed_array.h"
#include "minka/runtime/pipeline/pipeline_executor.h"
#include "minka/runtime/pipeline/session.h"

namespace minka {

// What runs on every mesh: values of the training step's parameters from a few inputs.
struct InitialValuesProgram {
  Step step;                    // its results are values
  std::vector<int> parameters;  // of the training step, by result; each lies on one mesh
};

// Of a program that makes parameters of a given step, one that makes them as the step that has rows
// takes them.
absl::StatusOr<InitialValuesProgram> ProgramInRows(InitialValuesProgram program,
                                                   const StepRows& rows);

// Arrays by result, laid out as `training` wants the parameters; `inputs` by parameter of the
// program. Unimplemented where it calls libraries that only some devices have; a program that
// cannot be planned is refused as any other.
absl::StatusOr<std::vector<DistributedArray>> MakeValues(const InitialValuesProgram& program,
                                                         std::span<const Literal> inputs,
                                                         const PipelineExecutor& training,
                                                         Session& session);

// The program that makes what InitialValue makes, of the parameters of the given step that have an
// initializer and of which `training`, which has these rows, has each on one mesh. Its input is
// SeedOf(seed).
absl::StatusOr<InitialValuesProgram> TraceInitialValues(
    const Step& given, std::span<const std::optional<Initializer>> initializers,
    const StepRows& rows, const PipelineExecutor& training);
Literal SeedOf(uint64_t seed);

}  // namespace minka
